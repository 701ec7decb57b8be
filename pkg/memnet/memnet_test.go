package memnet_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"postrider.dev/pkg/memnet"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// echo answers every connection of l with what it receives until l closes.
func echo(l net.Listener) {
	var conns sync.WaitGroup
	for {
		c, err := l.Accept()
		if err != nil {
			break
		}
		conns.Go(func() {
			_, _ = io.Copy(c, c)
			_ = c.Close()
		})
	}
	conns.Wait()
}

func say(t *testing.T, c net.Conn, text string) {
	t.Helper()
	_, err := io.WriteString(c, text)
	require.NoError(t, err)
	buf := make([]byte, len(text))
	_, err = io.ReadFull(c, buf)
	require.NoError(t, err)
	require.Equal(t, text, string(buf))
	require.NoError(t, c.Close())
}

func TestNamesAndTCPConnect(t *testing.T) {
	t.Parallel()
	for _, addr := range []string{"mem:x", "127.0.0.1:0"} {
		n := memnet.New()
		l, err := n.Listen(t.Context(), addr)
		require.NoError(t, err)
		var server sync.WaitGroup
		server.Go(func() { echo(l) })
		c, err := n.Dial(t.Context(), l.Addr().String())
		require.NoError(t, err)
		say(t, c, "hello")
		require.NoError(t, l.Close())
		server.Wait()
	}
}

func TestDialWaitsForTheListener(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := memnet.New()
		done := make(chan error, 1)
		go func() {
			c, err := n.Dial(t.Context(), "mem:late")
			if err == nil {
				err = c.Close()
			}
			done <- err
		}()
		synctest.Wait()
		other, err := n.Listen(t.Context(), "mem:other") // wakes the dialer for nothing
		require.NoError(t, err)
		synctest.Wait()
		require.Empty(t, done)

		l, err := n.Listen(t.Context(), "mem:late")
		require.NoError(t, err)
		c, err := l.Accept()
		require.NoError(t, err)
		require.NoError(t, <-done)
		require.NoError(t, errors.Join(c.Close(), l.Close(), other.Close()))
	})
}

func TestDialGivesUpWithItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := memnet.New()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err := n.Dial(ctx, "mem:never")
		require.ErrorIs(t, err, context.DeadlineExceeded)

		l, err := n.Listen(t.Context(), "mem:deaf") // listens and never accepts
		require.NoError(t, err)
		ctx, cancel = context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err = n.Dial(ctx, "mem:deaf")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NoError(t, l.Close())
	})
}

func TestACloseFreesTheNameForASuccessor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := memnet.New()
		first, err := n.Listen(t.Context(), "mem:x")
		require.NoError(t, err)
		_, err = n.Listen(t.Context(), "mem:x")
		require.ErrorIs(t, err, memnet.ErrInUse)

		dialed := make(chan error, 1)
		go func() { // waits on the first listener, which never accepts, and moves over to the second
			c, err := n.Dial(t.Context(), "mem:x")
			if err == nil {
				err = c.Close()
			}
			dialed <- err
		}()
		synctest.Wait()
		require.NoError(t, first.Close())
		_, err = first.Accept()
		require.ErrorIs(t, err, net.ErrClosed)
		synctest.Wait()
		require.Empty(t, dialed)

		second, err := n.Listen(t.Context(), "mem:x")
		require.NoError(t, err)
		require.NoError(t, first.Close(), "a second close does not take the successor's name")
		c, err := second.Accept()
		require.NoError(t, err)
		require.NoError(t, <-dialed)
		require.NoError(t, errors.Join(c.Close(), second.Close()))
	})
}

func TestProcessesWithoutMemorySayso(t *testing.T) {
	t.Parallel()
	_, err := memnet.ListenTCP(t.Context(), "mem:x")
	require.ErrorContains(t, err, "no network in memory")
	_, err = memnet.DialTCP(t.Context(), "mem:x")
	require.ErrorContains(t, err, "no network in memory")
	_, err = memnet.New().Listen(t.Context(), "mem:")
	require.Error(t, err)
}

func Example() {
	network := memnet.New()
	ctx := context.Background()
	l, err := network.Listen(ctx, "mem:dispatcher")
	if err != nil {
		panic(err)
	}
	var server sync.WaitGroup
	server.Go(func() { echo(l) })

	conn, err := network.Dial(ctx, "mem:dispatcher")
	if err != nil {
		panic(err)
	}
	_, _ = io.WriteString(conn, "hi")
	buf := make([]byte, 2)
	_, _ = io.ReadFull(conn, buf)
	fmt.Println(l.Addr(), string(buf))

	_ = conn.Close()
	_ = l.Close()
	server.Wait()
	// Output: mem:dispatcher hi
}
