package postrider_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	postrider "postrider.dev/sdk"
)

// once hands out one lease and then nothing.
func once(resp *queuev1.PopResponse) func(int, *queuev1.PopRequest) (*queuev1.PopResponse, error) {
	return func(n int, _ *queuev1.PopRequest) (*queuev1.PopResponse, error) {
		if n == 1 {
			return resp, nil
		}
		return nil, nil //nolint:nilnil // the fake parks the pop
	}
}

func TestWhatAHandlerReturnsBecomesAckNackOrReject(t *testing.T) {
	t.Parallel()
	n := start(t, &node{onPop: once(leased(time.Minute, [2]string{"p1", "fine"}, [2]string{"p2", "later"}, [2]string{"p3", "never"}, [2]string{"p4", "soon"}))})
	c := dial(t, n)
	ctx, cancel := context.WithCancel(t.Context())
	handled := 0

	err := c.Consume(ctx, "q", func(_ context.Context, d *postrider.Delivery) error {
		if handled++; handled == 4 {
			cancel()
		}
		switch string(d.Payload) {
		case "later":
			return errors.New("not yet")
		case "never":
			return postrider.Reject(errors.New("malformed"))
		case "soon":
			return postrider.RetryAfter(errors.New("busy"), 3*time.Second)
		default:
			return nil
		}
	}, postrider.ConsumeOptions{})

	require.NoError(t, err)
	require.Len(t, n.acks, 1)
	var got []string
	for _, s := range n.acks[0].GetSettlements() {
		got = append(got, fmt.Sprint(s.GetMessageId(), " ", s.GetAction(), " ", s.GetReason(), " ", s.GetDelay().AsDuration()))
	}
	require.Equal(t, []string{
		"fine ACK_ACTION_ACK  0s", "later ACK_ACTION_NACK not yet 0s", "never ACK_ACTION_REJECT malformed 0s", "soon ACK_ACTION_NACK busy 3s",
	}, got)
}

func TestMessagesBehindAFailedOneOfTheirPartitionAreNotHandled(t *testing.T) {
	t.Parallel()
	n := start(t, &node{onPop: once(leased(time.Minute, [2]string{"p1", "a"}, [2]string{"p1", "b"}, [2]string{"p2", "c"}))})
	c := dial(t, n)
	ctx, cancel := context.WithCancel(t.Context())
	var handled []string

	err := c.Consume(ctx, "q", func(_ context.Context, d *postrider.Delivery) error {
		handled = append(handled, string(d.Payload))
		if len(handled) == 2 {
			cancel()
		}
		if string(d.Payload) == "a" {
			return errors.New("failed")
		}
		return nil
	}, postrider.ConsumeOptions{})

	require.NoError(t, err)
	require.Equal(t, []string{"a", "c"}, handled)
}

func TestASettledLeaseTravelsWithTheNextPop(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	n := start(t, &node{onPop: func(n int, req *queuev1.PopRequest) (*queuev1.PopResponse, error) {
		if n == 1 {
			return leased(time.Minute, [2]string{"p", "m"}), nil
		}
		cancel()
		return &queuev1.PopResponse{Settled: settled(req.GetSettle()).GetResults()}, nil
	}})

	err := dial(t, n).Consume(ctx, "q", func(context.Context, *postrider.Delivery) error { return nil }, postrider.ConsumeOptions{})

	require.NoError(t, err)
	require.Equal(t, "m", n.pops[1].GetSettle().GetSettlements()[0].GetMessageId())
}

func TestALeaseIsRenewedWhileItsHandlerWorks(t *testing.T) {
	t.Parallel()
	renewed := make(chan struct{}, 10)
	n := start(t, &node{
		onPop: once(leased(300*time.Millisecond, [2]string{"p", "slow"})),
		onRenew: func() (*queuev1.RenewResponse, error) {
			renewed <- struct{}{}
			return &queuev1.RenewResponse{LeaseDuration: durationpb.New(300 * time.Millisecond)}, nil
		},
	})
	ctx, cancel := context.WithCancel(t.Context())

	err := dial(t, n).Consume(ctx, "q", func(ctx context.Context, _ *postrider.Delivery) error {
		for range 5 { // well past the first deadline
			select {
			case <-renewed:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		cancel()
		return nil
	}, postrider.ConsumeOptions{OnError: func(err error) { t.Error(err) }})

	require.NoError(t, err)
	require.Equal(t, queuev1.AckAction_ACK_ACTION_ACK, n.acks[0].GetSettlements()[0].GetAction())
}

func TestAHandlerEndsBeforeALeaseThatCannotBeRenewedIsLost(t *testing.T) {
	t.Parallel()
	n := start(t, &node{
		onPop:   once(leased(500*time.Millisecond, [2]string{"p", "slow"})),
		onRenew: func() (*queuev1.RenewResponse, error) { return nil, refusal(codes.Unavailable, "DATABASE_AWAY") },
	})
	ctx, cancel := context.WithCancel(t.Context())
	began := time.Now()
	var cause error
	var after time.Duration

	err := dial(t, n).Consume(ctx, "q", func(ctx context.Context, _ *postrider.Delivery) error {
		<-ctx.Done()
		cause, after = context.Cause(ctx), time.Since(began)
		cancel()
		return cause
	}, postrider.ConsumeOptions{})

	require.NoError(t, err)
	require.ErrorIs(t, cause, postrider.ErrLeaseLost)
	require.Less(t, after, 550*time.Millisecond)
}

func TestAConsumerThatIsRefusedForGoodEndsWithTheReason(t *testing.T) {
	t.Parallel()
	n := start(t, &node{onPop: func(int, *queuev1.PopRequest) (*queuev1.PopResponse, error) {
		return nil, refusal(codes.InvalidArgument, "NAME_TOO_LONG")
	}})

	err := dial(t, n).Consume(t.Context(), "q", func(context.Context, *postrider.Delivery) error { return nil }, postrider.ConsumeOptions{})

	require.Equal(t, "NAME_TOO_LONG", postrider.Code(err))
}

func TestAConsumerThatStopsReleasesWhatItDidNotHandle(t *testing.T) {
	t.Parallel()
	n := start(t, &node{onPop: once(leased(time.Minute, [2]string{"p1", "first"}, [2]string{"p2", "second"}))})
	ctx, cancel := context.WithCancel(t.Context())

	err := dial(t, n).Consume(ctx, "q", func(context.Context, *postrider.Delivery) error {
		cancel()
		return nil
	}, postrider.ConsumeOptions{})

	require.NoError(t, err)
	require.Equal(t, "first", n.acks[0].GetSettlements()[0].GetMessageId())
	require.Equal(t, []string{"second"}, n.back[0].GetMessageIds())
}

func TestARepeatedAckOfAWholeLeaseNamesItsMessages(t *testing.T) {
	t.Parallel()
	n := start(t, &node{onPop: once(leased(time.Minute, [2]string{"p", "a"}, [2]string{"p", "b"}))})
	n.onAck = func(n int) error {
		if n == 1 {
			return refusal(codes.Unavailable, "GONE")
		}
		return nil
	}
	lease, err := dial(t, n).Pop(t.Context(), "q", postrider.PopOptions{})
	require.NoError(t, err)

	results, err := lease.Ack(t.Context())

	require.NoError(t, err)
	require.True(t, n.acks[0].GetAckRest())
	require.Len(t, n.acks[1].GetSettlements(), 2)
	require.Len(t, results, 2)
}

func TestAReasonThatNoServerTakesIsMadeOneThatItTakes(t *testing.T) {
	t.Parallel()
	n := start(t, &node{onPop: once(leased(time.Minute, [2]string{"p", "m"}))})
	ctx, cancel := context.WithCancel(t.Context())

	err := dial(t, n).Consume(ctx, "q", func(context.Context, *postrider.Delivery) error {
		cancel()
		return errors.New("nul \x00, bad \xff, long " + strings.Repeat("€", 1000))
	}, postrider.ConsumeOptions{})

	require.NoError(t, err)
	reason := n.acks[0].GetSettlements()[0].GetReason()
	require.True(t, utf8.ValidString(reason))
	require.NotContains(t, reason, "\x00")
	require.LessOrEqual(t, len(reason), 1024)
	require.Greater(t, len(reason), 1000)
}

func TestWhatADrainingNodeDidNotSettleIsSettledElsewhere(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	n := start(t, &node{onPop: func(n int, req *queuev1.PopRequest) (*queuev1.PopResponse, error) {
		switch n {
		case 1:
			return leased(time.Minute, [2]string{"p", "m"}), nil
		case 2:
			return &queuev1.PopResponse{Draining: true}, nil // it was going away and settled nothing
		default:
			cancel()
			return &queuev1.PopResponse{Settled: settled(req.GetSettle()).GetResults()}, nil
		}
	}})

	err := dial(t, n).Consume(ctx, "q", func(context.Context, *postrider.Delivery) error { return nil }, postrider.ConsumeOptions{})

	require.NoError(t, err)
	require.Equal(t, "m", n.pops[2].GetSettle().GetSettlements()[0].GetMessageId())
}

func TestMessagesBehindADeadLetterAreGivenBack(t *testing.T) {
	t.Parallel()
	n := start(t, &node{
		onPop: once(leased(time.Minute, [2]string{"p1", "last-try"}, [2]string{"p1", "behind"}, [2]string{"p2", "bad"}, [2]string{"p2", "after-bad"})),
		status: func(id string) queuev1.AckStatus {
			if id == "last-try" || id == "bad" {
				return queuev1.AckStatus_ACK_STATUS_DEAD_LETTERED
			}
			return queuev1.AckStatus_ACK_STATUS_SETTLED
		},
	})
	ctx, cancel := context.WithCancel(t.Context())
	var handled []string

	err := dial(t, n).Consume(ctx, "q", func(_ context.Context, d *postrider.Delivery) error {
		handled = append(handled, string(d.Payload))
		switch string(d.Payload) {
		case "last-try":
			return errors.New("failed")
		case "bad":
			return postrider.Reject(errors.New("malformed"))
		default:
			cancel()
			return nil
		}
	}, postrider.ConsumeOptions{})

	require.NoError(t, err)
	require.Equal(t, []string{"last-try", "bad", "after-bad"}, handled, "a reject does not stop its partition")
	require.Equal(t, []string{"behind"}, n.back[0].GetMessageIds())
}

func TestAConsumerAsksAgainNowAndThenWhilePopsAreInMaintenanceAndThenGoesOn(t *testing.T) {
	t.Parallel()
	var asked []time.Time
	n := start(t, &node{onPop: func(i int, _ *queuev1.PopRequest) (*queuev1.PopResponse, error) {
		asked = append(asked, time.Now())
		if i < 3 {
			return &queuev1.PopResponse{PopMaintenance: &queuev1.PopMaintenance{Reason: "moving"}}, nil
		}
		return leased(time.Minute, [2]string{"p1", "fine"}), nil
	}})
	c := dial(t, n)
	ctx, cancel := context.WithCancel(t.Context())

	err := c.Consume(ctx, "q", func(context.Context, *postrider.Delivery) error {
		cancel()
		return nil
	}, postrider.ConsumeOptions{})

	require.NoError(t, err)
	require.GreaterOrEqual(t, asked[1].Sub(asked[0]), 400*time.Millisecond, "it asked again at once")
	require.GreaterOrEqual(t, asked[2].Sub(asked[1]), 400*time.Millisecond, "it asked again at once")
}
