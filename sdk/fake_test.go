package postrider_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/durationpb"

	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	postrider "postrider.dev/sdk"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// node is a server in memory whose answers the test decides.
type node struct {
	queuev1.UnimplementedQueueServiceServer

	lis *bufconn.Listener
	srv *grpc.Server

	mu     sync.Mutex // guards the rest
	pushes []*queuev1.PushRequest
	pops   []*queuev1.PopRequest
	acks   []*queuev1.AckRequest
	back   []*queuev1.ReleaseRequest
	renews int

	onPush  func(n int, req *queuev1.PushRequest) (*queuev1.PushResponse, error)
	onPop   func(n int, req *queuev1.PopRequest) (*queuev1.PopResponse, error)
	onRenew func() (*queuev1.RenewResponse, error)
	onAck   func(n int) error
	status  func(messageID string) queuev1.AckStatus
	feed    *feed

	onTransact func(n int, key string, req *queuev1.TransactRequest) (*queuev1.TransactResponse, error)
	transacts  int // guarded by mu
}

// start serves the node; a client that dials its name reaches it.
func start(t *testing.T, n *node) *node {
	t.Helper()
	n.lis = bufconn.Listen(1 << 20)
	n.srv = grpc.NewServer()
	queuev1.RegisterQueueServiceServer(n.srv, n)
	done := make(chan error, 1)
	go func() { done <- n.srv.Serve(n.lis) }()
	t.Cleanup(func() {
		n.srv.Stop()
		require.NoError(t, <-done)
	})
	return n
}

// dial returns a client of the nodes, in order.
func dial(t *testing.T, nodes ...*node) *postrider.Client {
	t.Helper()
	addrs, byName := make([]string, len(nodes)), map[string]*node{}
	for i, n := range nodes {
		addrs[i] = fmt.Sprintf("node-%d:1", i)
		byName[addrs[i]] = n
	}
	dialer := func(ctx context.Context, addr string) (net.Conn, error) {
		n := byName[addr]
		if n == nil || n.lis == nil {
			return nil, errors.New("connection refused")
		}
		return n.lis.DialContext(ctx)
	}
	c, err := postrider.Dial(addrs, "prk_test", postrider.WithDialOptions(
		grpc.WithContextDialer(dialer), grpc.WithTransportCredentials(insecure.NewCredentials())))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

func (n *node) PushStream(stream grpc.BidiStreamingServer[queuev1.PushStreamRequest, queuev1.PushStreamResponse]) error {
	for {
		frame, err := stream.Recv()
		if err != nil {
			return nil //nolint:nilerr // the client ended the stream
		}
		resp := &queuev1.PushStreamResponse{}
		for _, e := range frame.GetEntries() {
			n.mu.Lock()
			n.pushes = append(n.pushes, e.GetRequest())
			count := len(n.pushes)
			n.mu.Unlock()
			answer, err := n.onPush(count, e.GetRequest())
			entry := &queuev1.PushStreamResponse_Entry{RequestId: e.GetRequestId(), Response: answer}
			if one, ok := errors.AsType[*entryError](err); ok {
				entry.Error, entry.ErrorStatus = &queuev1.ItemError{Code: one.reason}, int32(one.code)
			} else if err != nil {
				return err
			}
			resp.Entries = append(resp.Entries, entry)
		}
		if err := stream.Send(resp); err != nil {
			return err
		}
	}
}

// entryError answers one push; any other error ends the stream.
type entryError struct {
	code   codes.Code
	reason string
}

func (e *entryError) Error() string { return e.reason }

func (n *node) Pop(ctx context.Context, req *queuev1.PopRequest) (*queuev1.PopResponse, error) {
	n.mu.Lock()
	n.pops = append(n.pops, req)
	count := len(n.pops)
	n.mu.Unlock()
	resp, err := n.onPop(count, req)
	if resp == nil && err == nil {
		<-ctx.Done()
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	return resp, err
}

func (n *node) Ack(_ context.Context, req *queuev1.AckRequest) (*queuev1.AckResponse, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.acks = append(n.acks, req)
	if n.onAck != nil {
		if err := n.onAck(len(n.acks)); err != nil {
			return nil, err
		}
	}
	resp := settled(req)
	for _, r := range resp.GetResults() {
		if n.status != nil {
			r.Status = n.status(r.GetMessageId())
		}
	}
	return resp, nil
}

func (n *node) Renew(context.Context, *queuev1.RenewRequest) (*queuev1.RenewResponse, error) {
	n.mu.Lock()
	n.renews++
	n.mu.Unlock()
	return n.onRenew()
}

func (n *node) Release(_ context.Context, req *queuev1.ReleaseRequest) (*queuev1.ReleaseResponse, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.back = append(n.back, req)
	return &queuev1.ReleaseResponse{}, nil
}

func settled(req *queuev1.AckRequest) *queuev1.AckResponse {
	resp := &queuev1.AckResponse{}
	for _, s := range req.GetSettlements() {
		resp.Results = append(resp.Results, &queuev1.AckResult{MessageId: s.GetMessageId(), Status: queuev1.AckStatus_ACK_STATUS_SETTLED})
	}
	return resp
}

// queued answers a push as stored.
func queued(req *queuev1.PushRequest) *queuev1.PushResponse {
	resp := &queuev1.PushResponse{}
	for i := range req.GetItems() {
		resp.Results = append(resp.Results, &queuev1.PushResult{
			Status: queuev1.PushStatus_PUSH_STATUS_QUEUED, MessageId: fmt.Sprint("m", i), Offset: int64(i),
		})
	}
	return resp
}

// leased hands out messages named by their payload, in partitions given as "partition/payload".
func leased(length time.Duration, messages ...[2]string) *queuev1.PopResponse {
	resp := &queuev1.PopResponse{Lease: "L", LeaseDuration: durationpb.New(length)}
	for _, m := range messages {
		resp.Deliveries = append(resp.Deliveries, &queuev1.Delivery{MessageId: m[1], Partition: m[0], Payload: []byte(m[1]), Attempt: 1})
	}
	return resp
}

// refusal is an error as the server makes it.
func refusal(code codes.Code, reason string) error {
	st, err := status.New(code, "refused").WithDetails(&errdetails.ErrorInfo{Reason: reason, Domain: "postrider.dev"})
	if err != nil {
		return err
	}
	return st.Err()
}
