// Package conformance is one table of cases that the public surface must pass over REST and over gRPC alike. It is black box: a base URL, a gRPC address and a
// key. It runs here against a dispatcher in memory, and in tests/e2e against the real one.
package conformance

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	adminv1 "postrider.dev/proto/gen/postrider/admin/v1"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
)

// Client is the surface, however it is reached. Errors are *Error.
type Client interface {
	Push(ctx context.Context, req *queuev1.PushRequest) (*queuev1.PushResponse, error)
	Pop(ctx context.Context, req *queuev1.PopRequest) (*queuev1.PopResponse, error)
	Ack(ctx context.Context, req *queuev1.AckRequest) (*queuev1.AckResponse, error)
	Renew(ctx context.Context, req *queuev1.RenewRequest) (*queuev1.RenewResponse, error)
	Release(ctx context.Context, req *queuev1.ReleaseRequest) (*queuev1.ReleaseResponse, error)
	Transact(ctx context.Context, req *queuev1.TransactRequest) (*queuev1.TransactResponse, error)
	// Subscribe returns the first n events that are no heartbeats.
	Subscribe(ctx context.Context, req *queuev1.SubscribeRequest, n int) ([]*queuev1.SubscribeEvent, error)
	LookupMessage(ctx context.Context, req *queuev1.LookupMessageRequest) (*queuev1.LookupMessageResponse, error)
	DeleteMessage(ctx context.Context, req *queuev1.DeleteMessageRequest) (*queuev1.DeleteMessageResponse, error)
	PeekMessages(ctx context.Context, req *queuev1.PeekMessagesRequest) (*queuev1.PeekMessagesResponse, error)
	ConfigureQueue(ctx context.Context, req *queuev1.ConfigureQueueRequest) (*queuev1.ConfigureQueueResponse, error)
	ListQueues(ctx context.Context, req *queuev1.ListQueuesRequest) (*queuev1.ListQueuesResponse, error)
	GetQueue(ctx context.Context, req *queuev1.GetQueueRequest) (*queuev1.GetQueueResponse, error)
	DeleteQueue(ctx context.Context, req *queuev1.DeleteQueueRequest) (*queuev1.DeleteQueueResponse, error)
	ListPartitions(ctx context.Context, req *queuev1.ListPartitionsRequest) (*queuev1.ListPartitionsResponse, error)
	CreateGroup(ctx context.Context, req *queuev1.CreateGroupRequest) (*queuev1.CreateGroupResponse, error)
	DeleteGroup(ctx context.Context, req *queuev1.DeleteGroupRequest) (*queuev1.DeleteGroupResponse, error)
	SeekGroup(ctx context.Context, req *queuev1.SeekGroupRequest) (*queuev1.SeekGroupResponse, error)
	ListDeadLetters(ctx context.Context, req *queuev1.ListDeadLettersRequest) (*queuev1.ListDeadLettersResponse, error)
	GetDeadLetter(ctx context.Context, req *queuev1.GetDeadLetterRequest) (*queuev1.GetDeadLetterResponse, error)
	PurgeDeadLetters(ctx context.Context, req *queuev1.PurgeDeadLettersRequest) (*queuev1.PurgeDeadLettersResponse, error)
	RotateQueueKey(ctx context.Context, req *queuev1.RotateQueueKeyRequest) (*queuev1.RotateQueueKeyResponse, error)
	RedriveDeadLetters(ctx context.Context, req *queuev1.RedriveDeadLettersRequest) (*queuev1.RedriveDeadLettersResponse, error)
	CreateTenant(ctx context.Context, req *adminv1.CreateTenantRequest) (*adminv1.CreateTenantResponse, error)
	ListTenants(ctx context.Context, req *adminv1.ListTenantsRequest) (*adminv1.ListTenantsResponse, error)
	CreateAPIKey(ctx context.Context, req *adminv1.CreateAPIKeyRequest) (*adminv1.CreateAPIKeyResponse, error)
	ListAPIKeys(ctx context.Context, req *adminv1.ListAPIKeysRequest) (*adminv1.ListAPIKeysResponse, error)
	RevokeAPIKey(ctx context.Context, req *adminv1.RevokeAPIKeyRequest) (*adminv1.RevokeAPIKeyResponse, error)
	GetSpool(ctx context.Context, req *adminv1.GetSpoolRequest) (*adminv1.GetSpoolResponse, error)
	GetMesh(ctx context.Context, req *adminv1.GetMeshRequest) (*adminv1.GetMeshResponse, error)
	GetModes(ctx context.Context, req *adminv1.GetModesRequest) (*adminv1.GetModesResponse, error)
	SetMode(ctx context.Context, req *adminv1.SetModeRequest) (*adminv1.SetModeResponse, error)
	ListNodes(ctx context.Context, req *adminv1.ListNodesRequest) (*adminv1.ListNodesResponse, error)
}

// Error is an error of either surface, in the words they share.
type Error struct {
	Code   string // stable, such as STALE_EPOCH
	Field  string
	Detail string
	HTTP   int        // over REST
	GRPC   codes.Code // over gRPC
}

func (e *Error) Error() string {
	return fmt.Sprintf("%s: %s %s (HTTP %d, gRPC %s)", e.Code, e.Field, e.Detail, e.HTTP, e.GRPC)
}

// Code returns the stable code in err, empty if there is none.
func Code(err error) string {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Code
	}
	return ""
}

// overGRPC is the surface over gRPC.
type overGRPC struct {
	queue queuev1.QueueServiceClient
	admin adminv1.AdminServiceClient
}

// dialGRPC returns a client with the key, and a function that closes it.
func dialGRPC(addr, key string) (*grpc.ClientConn, error) {
	withKey := func(ctx context.Context) context.Context {
		if key == "" {
			return ctx
		}
		return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+key)
	}
	return grpc.NewClient("passthrough:///"+addr,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20), grpc.MaxCallSendMsgSize(64<<20)),
		grpc.WithUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			return fromStatus(invoke(withKey(ctx), method, req, reply, cc, opts...))
		}),
		grpc.WithStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			return open(withKey(ctx), desc, cc, method, opts...)
		}))
}

func fromStatus(err error) error {
	if err == nil {
		return nil
	}
	s := status.Convert(err)
	out := &Error{GRPC: s.Code(), Detail: s.Message()}
	for _, d := range s.Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			out.Code = d.GetReason()
		case *errdetails.BadRequest:
			if v := d.GetFieldViolations(); len(v) > 0 {
				out.Field = v[0].GetField()
			}
		}
	}
	return out
}
