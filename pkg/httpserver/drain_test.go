package httpserver_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"postrider.dev/pkg/clock"
	"postrider.dev/pkg/httpserver"
	"postrider.dev/pkg/run/runtest"
)

func TestDrainInOrder(t *testing.T) {
	t.Parallel()
	env := runtest.New(t)
	clk := clock.NewFake(time.Unix(0, 0))
	env.Clock = clk
	notReady := make(chan struct{})
	s := listen(t, env, httpserver.Options{DrainDelay: 5 * time.Second, DrainTimeout: time.Minute, OnDrain: func() { close(notReady) }})
	entered, release := make(chan struct{}), make(chan struct{})
	s.Router().Get("/poll", func(w http.ResponseWriter, _ *http.Request) {
		close(entered)
		<-s.Draining()
		<-release
		_, _ = io.WriteString(w, "resume elsewhere")
	})
	s.Router().Get("/", func(http.ResponseWriter, *http.Request) {})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	c := client(t, env)
	poll := make(chan string, 1)
	go func() { poll <- read(ctx, c, "http://mem.test/poll") }()
	<-entered

	cancel()
	<-notReady
	clk.BlockUntil(1)
	require.Equal(t, http.StatusOK, do(t, c, http.MethodGet, "http://mem.test/", http.NoBody).status, "1: not ready, and still serving")
	select {
	case <-s.Draining():
		t.Fatal("2 must wait for the delay")
	default:
	}
	clk.Advance(5 * time.Second)
	<-s.Draining()
	require.Empty(t, done, "3: what is in flight is waited for")
	close(release)
	require.Equal(t, "resume elsewhere", <-poll)
	require.NoError(t, <-done)
	<-s.Done()
}

// read returns the body at url, or what went wrong.
func read(ctx context.Context, c *http.Client, url string) string {
	req, err := http.NewRequestWithContext(context.WithoutCancel(ctx), http.MethodGet, url, http.NoBody)
	if err != nil {
		return err.Error()
	}
	res, err := c.Do(req)
	if err != nil {
		return err.Error()
	}
	body, err := io.ReadAll(res.Body)
	if err = errors.Join(err, res.Body.Close()); err != nil {
		return err.Error()
	}
	return string(body)
}

func TestAHandlerThatIgnoresDrainingIsCutOff(t *testing.T) {
	t.Parallel()
	env := runtest.New(t)
	s := listen(t, env, httpserver.Options{DrainTimeout: 30 * time.Millisecond})
	entered, ended := make(chan struct{}), make(chan struct{})
	s.Router().Get("/", func(_ http.ResponseWriter, r *http.Request) {
		close(entered)
		<-r.Context().Done()
		close(ended)
	})
	stop := runtest.Go(t, s.Run)
	failed := make(chan error, 1)
	go func() {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://mem.test/", http.NoBody)
		if err == nil {
			var res *http.Response
			if res, err = client(t, env).Do(req); err == nil {
				err = res.Body.Close()
			}
		}
		failed <- err
	}()
	<-entered
	require.ErrorIs(t, stop(), httpserver.ErrDrainTimeout)
	<-ended
	require.Error(t, <-failed)
}

func TestHijackedConnectionsAreWaitedFor(t *testing.T) {
	t.Parallel()
	env := runtest.New(t)
	s := listen(t, env, httpserver.Options{DrainTimeout: time.Minute})
	entered := make(chan struct{})
	s.Router().Get("/ws", func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		close(entered)
		<-s.Draining()
		_, _ = io.WriteString(conn, "goodbye")
		_ = conn.Close()
	})
	stop := runtest.Go(t, s.Run)
	conn, err := env.Dial(t.Context(), "mem:test")
	require.NoError(t, err)
	_, err = io.WriteString(conn, "GET /ws HTTP/1.1\r\nHost: x\r\n\r\n")
	require.NoError(t, err)
	<-entered
	said := make(chan string, 1)
	go func() {
		b, _ := io.ReadAll(conn)
		said <- string(b)
	}()
	require.NoError(t, stop())
	require.Equal(t, "goodbye", <-said)
	require.NoError(t, conn.Close())
}

func TestAConnectionThatAsksNothingDoesNotHoldUpTheDrain(t *testing.T) {
	t.Parallel()
	env := runtest.New(t)
	s := listen(t, env, httpserver.Options{Addr: "127.0.0.1:0"})
	s.Router().Get("/", func(http.ResponseWriter, *http.Request) {})
	stop := runtest.Go(t, s.Run)
	conn, err := env.Dial(t.Context(), s.Addr().String())
	require.NoError(t, err)
	do(t, client(t, env), http.MethodGet, "http://"+s.Addr().String(), http.NoBody) // so the silent connection, which came first, is accepted
	start := clock.Real{}.Now()
	require.NoError(t, stop())
	require.Less(t, clock.Real{}.Since(start), 4*time.Second, "net/http alone would wait 5 s")
	_, err = conn.Read(make([]byte, 1))
	require.Error(t, err)
	require.NoError(t, conn.Close())
}

func TestCloseWithoutRunFreesTheAddress(t *testing.T) {
	t.Parallel()
	env := runtest.New(t)
	for range 3 {
		s := listen(t, env, httpserver.Options{})
		s.Close()
		<-s.Done()
		require.NoError(t, s.Run(canceled(t)))
		require.Error(t, s.Run(t.Context()), "a second Run is a mistake")
	}
}

func canceled(t *testing.T) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

// TestStartAndStopAtRandomMoments is the stress test that every Run passes.
func TestStartAndStopAtRandomMoments(t *testing.T) {
	t.Parallel()
	env := runtest.New(t)
	r := rand.New(rand.NewPCG(7, 8))
	for i := range 500 {
		s := listen(t, env, httpserver.Options{Addr: fmt.Sprintf("mem:%d", i), DrainTimeout: time.Minute})
		s.Router().Get("/", func(http.ResponseWriter, *http.Request) {})
		s.Router().Get("/poll", func(http.ResponseWriter, *http.Request) { <-s.Draining() })
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(r.Int64N(int64(3*time.Millisecond))))
		c := client(t, env)
		var calls sync.WaitGroup
		for _, path := range []string{"/", "/", "/poll"} {
			calls.Go(func() {
				for ctx.Err() == nil {
					req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://mem.%d%s", i, path), http.NoBody)
					if err != nil {
						t.Error(err)
						return
					}
					if res, err := c.Do(req); err == nil {
						_, _ = io.Copy(io.Discard, res.Body)
						_ = res.Body.Close()
					}
				}
			})
		}
		require.NoError(t, s.Run(ctx))
		calls.Wait()
		cancel()
		c.CloseIdleConnections()
	}
}
