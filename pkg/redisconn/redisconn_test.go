package redisconn_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"postrider.dev/pkg/clock"
	"postrider.dev/pkg/redisconn"
	"postrider.dev/pkg/redistest"
)

func TestMain(m *testing.M) {
	redisconn.SilenceDriver()
	goleak.VerifyTestMain(m, redistest.IgnoreProbe())
}

// ear is a Handler whose calls a test can wait for.
type ear struct {
	subscribed chan struct{}
	lost       chan error
	heard      chan string
}

func newEar() *ear {
	return &ear{subscribed: make(chan struct{}, 1000), lost: make(chan error, 1000), heard: make(chan string, 1000)}
}

func (e *ear) OnSubscribed()                            { e.subscribed <- struct{}{} }
func (e *ear) OnLost(err error)                         { e.lost <- err }
func (e *ear) OnMessage(channel string, payload []byte) { e.heard <- channel + ":" + string(payload) }

// patience bounds every wait of these tests; what they wait for takes milliseconds.
const patience = 20 * time.Second

func await[T any](t *testing.T, what string, ch <-chan T) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(patience):
		t.Fatalf("no %s within %v", what, patience)
		panic("unreachable")
	}
}

func open(t *testing.T, url string) *redisconn.Client {
	t.Helper()
	c, err := redisconn.Open(url, redisconn.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

// listen runs a subscriber until the test's end.
func listen(t *testing.T, url string, opts redisconn.SubscriberOptions, channels ...string) (*redisconn.Subscriber, *ear) {
	t.Helper()
	e := newEar()
	s := redisconn.NewSubscriber(open(t, url), clock.Real{}, e, opts, channels...)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, await(t, "end of the subscriber", done))
	})
	return s, e
}

func TestPublishedHintsAreHeardInOrder(t *testing.T) {
	t.Parallel()
	urls := map[string]string{"real": redistest.Start(t).URL(), "mini": "redis://" + redistest.Mini(t).Addr()}
	for name, url := range urls {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, e := listen(t, url, redisconn.SubscriberOptions{}, "a", "b")
			await(t, "confirmation", e.subscribed)
			require.True(t, s.Subscribed())

			c := open(t, url)
			for i := range 50 {
				require.NoError(t, c.Publish(t.Context(), []string{"a", "b"}[i%2], fmt.Append(nil, i)))
			}

			for i := range 50 {
				require.Equal(t, fmt.Sprintf("%s:%d", []string{"a", "b"}[i%2], i), await(t, "message", e.heard))
			}
		})
	}
}

func TestSubscriberReturnsAfterRestartAndSaysSo(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s, e := listen(t, server.TCPURL(), redisconn.SubscriberOptions{MaxPause: 100 * time.Millisecond}, "a")
	await(t, "confirmation", e.subscribed)

	server.Stop()
	require.Error(t, await(t, "loss", e.lost))
	require.Error(t, await(t, "second loss, of an attempt to return", e.lost))
	require.False(t, s.Subscribed())
	server.Restart()
	await(t, "second confirmation", e.subscribed)

	require.NoError(t, open(t, server.TCPURL()).Publish(t.Context(), "a", []byte("back")))
	require.Equal(t, "a:back", await(t, "message", e.heard))
}

func TestSubscriberFindsASilentlyDeadSubscription(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	_, e := listen(t, server.URL(), redisconn.SubscriberOptions{PingEvery: 100 * time.Millisecond, MaxPause: 100 * time.Millisecond}, "a")
	await(t, "confirmation", e.subscribed)

	server.Freeze()
	require.ErrorIs(t, await(t, "loss", e.lost), redisconn.ErrSilent)
	server.Thaw()

	await(t, "second confirmation", e.subscribed)
}

func TestIdleSubscriptionIsKeptByPings(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	proxy := newProxy(t, server.Addr())
	s, e := listen(t, "redis://"+proxy.addr, redisconn.SubscriberOptions{PingEvery: 300 * time.Millisecond}, "a") // the answer may take as long on a busy machine
	await(t, "confirmation", e.subscribed)

	for range 5 { // each answer is at least one more read, whatever its size
		await(t, "answer to a ping", proxy.answers)
	}

	require.True(t, s.Subscribed())
	require.Empty(t, e.lost)
}

func TestPublishGivesUpWithinItsBound(t *testing.T) {
	t.Parallel()
	deaf, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0") // accepts (the kernel does) and never answers
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, deaf.Close()) })
	frozen := redistest.Start(t)
	warm := open(t, frozen.URL())
	require.NoError(t, warm.Ready(t.Context()))
	frozen.Freeze()
	t.Cleanup(frozen.Thaw)

	for name, c := range map[string]*redisconn.Client{
		"never answers": open(t, "redis://"+deaf.Addr().String()), "frozen": warm, "absent": open(t, "redis://127.0.0.1:1"),
	} {
		start := time.Now()
		var all sync.WaitGroup
		for range 20 { // more than the pool holds
			all.Go(func() {
				if c.Publish(t.Context(), "a", nil) == nil {
					t.Errorf("%s: published", name)
				}
			})
		}
		all.Wait()
		require.Less(t, time.Since(start), 3*time.Second, name)
	}
}

func TestRandomCancelsLeaveNothingBehind(t *testing.T) {
	t.Parallel()
	url := redistest.Start(t).URL()
	c := open(t, url)
	for i := range 500 {
		ctx, cancel := context.WithCancel(t.Context())
		e := newEar()
		done := make(chan error, 1)
		go func() {
			done <- redisconn.NewSubscriber(c, clock.Real{}, e, redisconn.SubscriberOptions{}, "a").Run(ctx)
		}()
		switch i % 3 {
		case 0:
			await(t, "confirmation", e.subscribed)
		case 1:
			require.NoError(t, c.Ready(ctx)) // some time, on the same server
		}
		cancel()
		require.NoError(t, await(t, "end", done))
	}
}

// proxy forwards TCP and reports each read of an answer.
type proxy struct {
	addr    string
	answers chan int
}

func newProxy(t *testing.T, target string) *proxy {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &proxy{addr: l.Addr().String(), answers: make(chan int, 1000)}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := new(net.Dialer).DialContext(context.WithoutCancel(t.Context()), "tcp", target)
			if err != nil {
				_ = in.Close()
				continue
			}
			all.Go(func() {
				_, err := io.Copy(out, in)
				_ = errors.Join(err, out.Close()) // either side ends it
			})
			all.Go(func() { p.forward(in, out) })
		}
	})
	t.Cleanup(func() { _ = l.Close(); all.Wait() })
	return p
}

func (p *proxy) forward(in, out net.Conn) {
	defer in.Close() //nolint:errcheck // a test's proxy
	buf := make([]byte, 4096)
	for {
		n, err := out.Read(buf)
		if err != nil {
			return
		}
		select {
		case p.answers <- n:
		default:
		}
		if _, err := in.Write(buf[:n]); err != nil {
			return
		}
	}
}
