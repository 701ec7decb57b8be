package server

import (
	"context"
	"net/http"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"postrider.dev/pkg/apierr"
	"postrider.dev/pkg/idempotency"
	"postrider.dev/pkg/tenant"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/ingress/internal/domain"
)

// Idempotency keys: a push carries its key in the request. Of other calls that change something the key is gRPC metadata, which REST routes get from the
// header of the same name; the owner of the effect remembers the answer: the dispatcher for queues (change hands the key on), this service for tenants
// and API keys (adminService). Pop, ack, renew and release take no key and ignore one: settling and renewing twice is the same as once, by the lease.

// change is forward for a call that changes something: the dispatcher gets the idempotency key that came with it, and what it says of a replay is passed
// on. With a key, or where twice is the same as once, a second dispatcher may be asked.
func change[Req proto.Message, Resp any](
	ctx context.Context, v *verbs, queue string, repeat bool, req Req,
	call func(queuev1.QueueServiceClient, context.Context, Req, ...grpc.CallOption) (Resp, error),
) (resp Resp, err error) {
	key, err := idempotency.Key(ctx)
	if err != nil {
		return resp, err
	}
	if key == "" {
		return forward(ctx, v, queue, repeat, req, call)
	}
	var header metadata.MD
	resp, err = forward(metadata.AppendToOutgoingContext(ctx, idempotency.Metadata, key), v, queue, true, req,
		func(c queuev1.QueueServiceClient, ctx context.Context, req Req, _ ...grpc.CallOption) (Resp, error) {
			return call(c, ctx, req, grpc.Header(&header))
		})
	if err != nil || !idempotency.Replayed(header) {
		return resp, err
	}
	return resp, idempotency.MarkReplayed(ctx)
}

// once runs do for a call of the administration: see idempotency.Do.
func once[Resp proto.Message](
	ctx context.Context, s *adminService, method string, req proto.Message, empty Resp, do func(AdminVerbs) (Resp, error),
) (resp Resp, replayed bool, err error) {
	caller, _ := tenant.CallerFrom(ctx)
	key, err := idempotency.NewRequest(ctx, caller.Tenant, method, req)
	if err != nil {
		return resp, false, err
	}
	resp, replayed, err = idempotency.Do(ctx, s.store, AdminVerbs(s.store), key, empty, do)
	if err != nil {
		var none Resp
		return none, false, wireError(err)
	}
	return resp, replayed, nil
}

// keyedCall gives a handler of ours what a gRPC call has: the idempotency key that was sent as metadata, and a place for the answer's header.
func keyedCall(ctx context.Context, sent http.Header) (context.Context, *runtime.ServerTransportStream, error) {
	keys := sent.Values(idempotency.Header)
	if _, err := idempotency.Check(keys); err != nil {
		return ctx, nil, err
	}
	header := &runtime.ServerTransportStream{}
	ctx = metadata.NewIncomingContext(ctx, metadata.MD{idempotency.Metadata: keys})
	return grpc.NewContextWithServerTransportStream(ctx, header), header, nil
}

// pushKey gives a push over gRPC the key of its metadata, if its request has none.
func pushKey(ctx context.Context, req *queuev1.PushRequest) error {
	key, err := idempotency.Key(ctx)
	switch {
	case err != nil:
		return err
	case key == "":
	case req.GetIdempotencyKey() == "":
		req.IdempotencyKey = key
	case req.GetIdempotencyKey() != key:
		return apierr.InvalidArgument(domain.CodeConflict, "idempotency_key", "two different idempotency keys for one request")
	}
	return nil
}
