package keepstream_test

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"

	"postrider.dev/pkg/clock"
	"postrider.dev/pkg/keepstream"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeStream is a stream whose peer is the test.
type fakeStream struct {
	grpc.ClientStream

	ctx  context.Context //nolint:containedctx // a stream has a context
	in   chan string
	out  chan string
	fail chan error
}

func (f *fakeStream) Send(m *string) error {
	select {
	case f.out <- *m:
		return nil
	case <-f.ctx.Done():
		return io.EOF
	}
}

func (f *fakeStream) Recv() (*string, error) {
	select {
	case m := <-f.in:
		return &m, nil
	case err := <-f.fail:
		return nil, err
	case <-f.ctx.Done():
		return nil, f.ctx.Err()
	}
}

type peer struct{ opened chan *fakeStream }

func (p *peer) open(ctx context.Context) (grpc.BidiStreamingClient[string, string], error) {
	f := &fakeStream{ctx: ctx, in: make(chan string), out: make(chan string), fail: make(chan error)}
	p.opened <- f
	return f, nil
}

func run(t *testing.T, s *keepstream.Stream[string, string]) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
}

func text(s string) *string { return &s }

func TestAStreamThatEndsIsOpenedAgainAndSaysHelloAgain(t *testing.T) {
	t.Parallel()
	p := &peer{opened: make(chan *fakeStream, 1)}
	down := make(chan error, 1)
	s := keepstream.New(clock.Real{}, keepstream.Config[string, string]{
		Open: p.open, Hello: func() *string { return text("hello") }, Down: func(err error) { down <- err }, RetryMin: time.Millisecond,
	})
	run(t, s)

	first := <-p.opened
	require.Equal(t, "hello", <-first.out)
	first.in <- "welcome"
	first.fail <- errors.New("cut")

	require.ErrorContains(t, <-down, "cut")
	second := <-p.opened
	require.Equal(t, "hello", <-second.out)
}

func TestTheEndOfARunIsNoLossToReport(t *testing.T) {
	t.Parallel()
	p := &peer{opened: make(chan *fakeStream, 1)}
	up, lost := make(chan struct{}, 1), make(chan error, 1)
	s := keepstream.New(clock.Real{}, keepstream.Config[string, string]{
		Open: p.open, Up: func() { up <- struct{}{} }, Down: func(err error) { lost <- err },
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	(<-p.opened).in <- "welcome"
	<-up

	cancel()

	require.NoError(t, <-ended)
	require.Empty(t, lost)
}

func TestSendDropsAndCountsWhileThePeerHasNotAnswered(t *testing.T) {
	t.Parallel()
	p := &peer{opened: make(chan *fakeStream, 1)}
	up := make(chan struct{}, 1)
	s := keepstream.New(clock.Real{}, keepstream.Config[string, string]{Open: p.open, Up: func() { up <- struct{}{} }})
	require.False(t, s.Send(text("lost")))
	run(t, s)

	f := <-p.opened
	f.in <- "welcome"
	<-up
	require.True(t, s.Send(text("kept")))

	require.Equal(t, "kept", <-f.out)
}

func TestAFullQueueDropsInsteadOfBlocking(t *testing.T) {
	t.Parallel()
	p := &peer{opened: make(chan *fakeStream, 1)}
	up := make(chan struct{}, 1)
	s := keepstream.New(clock.Real{}, keepstream.Config[string, string]{Open: p.open, Up: func() { up <- struct{}{} }, Queue: 2})
	run(t, s)
	f := <-p.opened
	f.in <- "welcome"
	<-up

	accepted := 0
	for range 10 { // nobody reads f.out: one may be in Send, two wait
		if s.Send(text("x")) {
			accepted++
		}
	}

	require.LessOrEqual(t, accepted, 3)
}

func TestASilentPeerIsGivenUp(t *testing.T) {
	t.Parallel()
	clk := clock.NewFake(time.Unix(0, 0))
	p := &peer{opened: make(chan *fakeStream, 1)}
	down := make(chan error, 1)
	up := make(chan struct{}, 1)
	s := keepstream.New(clk, keepstream.Config[string, string]{
		Open: p.open, Silence: time.Second, Up: func() { up <- struct{}{} }, Down: func(err error) { down <- err },
	})
	run(t, s)
	f := <-p.opened
	f.in <- "welcome"
	<-up

	var err error
	require.Eventually(t, func() bool {
		clk.Advance(2 * time.Second) // again, should the stream still be taking note of the message
		select {
		case err = <-down:
			return true
		default:
			return false
		}
	}, 5*time.Second, time.Millisecond)

	require.ErrorIs(t, err, keepstream.ErrSilent)
	require.False(t, s.IsUp())
}
