package postrider_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	postrider "postrider.dev/sdk"
)

// feed is what a node does with the subscriptions that come to it, one after another.
type feed struct {
	mu       sync.Mutex // guards the rest
	requests []*queuev1.SubscribeRequest
	scripts  []func(send func(...*queuev1.SubscribeEvent)) error
}

func (n *node) Subscribe(req *queuev1.SubscribeRequest, stream grpc.ServerStreamingServer[queuev1.SubscribeResponse]) error {
	return n.feed.serve(req, stream)
}

func (f *feed) serve(req *queuev1.SubscribeRequest, stream grpc.ServerStreamingServer[queuev1.SubscribeResponse]) error {
	f.mu.Lock()
	n := len(f.requests)
	f.requests = append(f.requests, req)
	f.mu.Unlock()
	if n >= len(f.scripts) {
		<-stream.Context().Done()
		return stream.Context().Err()
	}
	return f.scripts[n](func(events ...*queuev1.SubscribeEvent) {
		_ = stream.Send(&queuev1.SubscribeResponse{Events: events}) // the client may be gone
	})
}

func stands(token string) *queuev1.SubscribeEvent {
	return &queuev1.SubscribeEvent{Resume: token, Kind: &queuev1.SubscribeEvent_Heartbeat{Heartbeat: &queuev1.SubscribeHeartbeat{}}}
}

func message(offset int64) *queuev1.SubscribeEvent {
	return &queuev1.SubscribeEvent{Resume: fmt.Sprint("behind ", offset), Kind: &queuev1.SubscribeEvent_Message{Message: &queuev1.SubscribedMessage{Offset: offset}}}
}

func closed(token string, why queuev1.ClosedReason) *queuev1.SubscribeEvent {
	return &queuev1.SubscribeEvent{Resume: token, Kind: &queuev1.SubscribeEvent_Closed{Closed: &queuev1.SubscribeClosed{Reason: why}}}
}

func TestASubscriptionGoesOnBehindWhatTheHandlerHad(t *testing.T) {
	t.Parallel()
	f := &feed{scripts: []func(func(...*queuev1.SubscribeEvent)) error{
		func(func(...*queuev1.SubscribeEvent)) error { return status.Error(codes.Unavailable, "not yet") },
		func(send func(...*queuev1.SubscribeEvent)) error {
			send(stands("begin"))
			send(message(1), message(2))
			return status.Error(codes.Unavailable, "lost")
		},
		func(send func(...*queuev1.SubscribeEvent)) error {
			send(stands("behind 2"))
			send(message(3), &queuev1.SubscribeEvent{Resume: "behind the gap", Kind: &queuev1.SubscribeEvent_Gap{Gap: &queuev1.SubscribeGap{From: 4, To: 6}}})
			send(closed("behind the gap", queuev1.ClosedReason_CLOSED_REASON_SLOW))
			return nil
		},
		func(send func(...*queuev1.SubscribeEvent)) error {
			send(stands("looked through"))
			return nil // a node that says nothing
		},
		func(send func(...*queuev1.SubscribeEvent)) error {
			send(message(6), closed("x", queuev1.ClosedReason_CLOSED_REASON_QUEUE_DELETED))
			return nil
		},
	}}
	c := dial(t, start(t, &node{feed: f}))
	var got []int64
	var gaps []postrider.Gap
	var ready []string
	var codesSeen []string

	err := c.Subscribe(t.Context(), "q", func(_ context.Context, m *postrider.SubscribedMessage) error {
		got = append(got, m.Offset)
		return nil
	}, postrider.SubscribeOptions{
		From: "earliest", OnGap: func(g postrider.Gap) { gaps = append(gaps, g) }, OnReady: func(token string) { ready = append(ready, token) },
		OnError: func(err error) { codesSeen = append(codesSeen, postrider.Code(err)) },
	})

	require.Equal(t, "QUEUE_DELETED", postrider.Code(err))
	require.Equal(t, []int64{1, 2, 3, 6}, got)
	require.Equal(t, []postrider.Gap{{From: 4, To: 6, Resume: "behind the gap"}}, gaps)
	require.Equal(t, []string{"begin", "behind 2", "looked through", "behind 6"}, ready)
	require.Equal(t, []string{"Unavailable", "Unavailable", "SLOW", ""}, codesSeen)
	var from, resume []string
	for _, r := range f.requests {
		from, resume = append(from, r.GetFrom()), append(resume, r.GetResume())
		require.NotEmpty(t, r.GetSkipOrigin())
	}
	require.Equal(t, []string{"earliest", "earliest", "", "", ""}, from)
	require.Equal(t, []string{"", "", "behind 2", "behind the gap", "looked through"}, resume)
}

func TestASubscriptionEndsWithItsHandlersErrorAndWithItsContext(t *testing.T) {
	t.Parallel()
	script := func(send func(...*queuev1.SubscribeEvent)) error {
		send(stands("s"), message(1))
		return nil
	}
	f := &feed{scripts: []func(func(...*queuev1.SubscribeEvent)) error{script, script}}
	c := dial(t, start(t, &node{feed: f}))
	enough := errors.New("enough")

	err := c.Subscribe(t.Context(), "q", func(context.Context, *postrider.SubscribedMessage) error { return enough }, postrider.SubscribeOptions{Echo: true})
	require.ErrorIs(t, err, enough)
	require.Empty(t, f.requests[0].GetSkipOrigin())

	ctx, cancel := context.WithCancel(t.Context())
	require.NoError(t, c.Subscribe(ctx, "q", func(context.Context, *postrider.SubscribedMessage) error {
		cancel()
		return nil
	}, postrider.SubscribeOptions{}))
}
