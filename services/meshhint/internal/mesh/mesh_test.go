package mesh_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"postrider.dev/pkg/memnet"
	"postrider.dev/pkg/run"
	meshv1 "postrider.dev/proto/gen/postrider/private/mesh/v1"
	"postrider.dev/services/meshhint/internal/mesh"
	"postrider.dev/services/meshhint/internal/mesh/handshake"
	"postrider.dev/services/meshhint/internal/mesh/peer"
)

func parse(t *testing.T, entries ...string) []peer.Address {
	t.Helper()
	return peer.ParseList(entries, 7403)
}

// fleet starts nodes that have the same list of peers, themselves among them.
func fleet(t *testing.T, n int, change func(*mesh.Config)) []*node {
	t.Helper()
	listeners := map[string]net.Listener{}
	var addrs []string
	for range n {
		lis, err := memnet.ListenTCP(t.Context(), "127.0.0.1:0")
		require.NoError(t, err)
		listeners[lis.Addr().String()] = lis
		addrs = append(addrs, lis.Addr().String())
	}
	nodes := make([]*node, n)
	for i, addr := range addrs {
		cfg := settings(fmt.Sprintf("n%d", i))
		cfg.Listen, cfg.Peers = addr, parse(t, addrs...)
		change(&cfg)
		nodes[i] = start(t, cfg, func(env *run.Env) {
			env.Listen = func(_ context.Context, addr string) (net.Listener, error) { return listeners[addr], nil }
		})
	}
	for _, node := range nodes {
		node.awaitConnected(t, n-1)
	}
	return nodes
}

func TestAHintReachesEveryPeerOnceAndIsNotSentOn(t *testing.T) {
	t.Parallel()
	nodes := fleet(t, 3, func(*mesh.Config) {})

	nodes[0].Publish(wake("first"))
	require.Equal(t, "first", nodes[1].next(t).GetMessageAvailable().GetQueue())
	require.Equal(t, "first", nodes[2].next(t).GetMessageAvailable().GetQueue())
	nodes[1].Publish(wake("second")) // on the connection on which it would have sent the first on

	require.Equal(t, "second", nodes[2].next(t).GetMessageAvailable().GetQueue())
	require.Equal(t, "second", nodes[0].next(t).GetMessageAvailable().GetQueue())
}

func TestAListOfPeersMayNameTheNodeItself(t *testing.T) {
	t.Parallel()
	nodes := fleet(t, 2, func(*mesh.Config) {})

	for _, n := range nodes {
		s := n.Stats()
		require.Len(t, s.Peers, 2)
		require.Equal(t, 1, s.Alive)
		require.Zero(t, s.HandshakeFailures)
		require.EqualValues(t, 1, n.everything.Load(), "it took itself for a peer")
	}
}

func TestAPeerKnownByTwoNamesIsConnectedOnce(t *testing.T) {
	t.Parallel()
	to := start(t, settings("to"))
	cfg := dialling(t, "from", to)
	cfg.Peers = append(cfg.Peers, peer.Address{Host: "localhost", Port: to.address(t).Port})
	var dialled atomic.Int64
	from := start(t, cfg, func(env *run.Env) {
		env.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
			dialled.Add(1)
			return memnet.DialTCP(ctx, addr)
		}
	})
	eventually(t, "both names were tried", func() bool { return dialled.Load() == 2 && from.connected() == 1 })

	reaches(t, from, to, "once")
	reaches(t, from, to, "again")

	require.Equal(t, 1, from.connected())
	require.Zero(t, to.Stats().HandshakeFailures)
}

func TestAPeerThatIsAwayCostsAThousandFramesOfMemoryAndNoTime(t *testing.T) {
	t.Parallel()
	cfg := settings("from")
	cfg.Peers = []peer.Address{{Host: "away", Port: 1}}
	n := start(t, cfg, func(env *run.Env) {
		env.Dial = func(ctx context.Context, _ string) (net.Conn, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}
	})
	eventually(t, "the peer is known", func() bool { return len(n.Stats().Peers) == 1 })

	for i := range 3000 {
		n.Publish(wake(strconv.Itoa(i)))
	}

	require.EqualValues(t, 3000-1024, n.Stats().Dropped)
}

func TestAPeerThatReadsNothingHoldsNobodyUpAndIsDialledAgain(t *testing.T) {
	t.Parallel()
	lis, err := memnet.ListenTCP(t.Context(), "127.0.0.1:0")
	require.NoError(t, err)
	met := make(chan net.Conn, 100)
	accepting := make(chan struct{})
	go func() { // a peer that stops right after its handshake
		defer close(accepting)
		for {
			conn, err := lis.Accept()
			if err != nil {
				return
			}
			_, _, err = handshake.Accept(conn, handshake.Identity{ServerID: "stuck", Host: "h"}, handshake.Secret(secret), nil)
			if err == nil {
				met <- conn
			}
		}
	}()
	t.Cleanup(func() { _ = lis.Close(); <-accepting })
	healthy := start(t, settings("healthy"))
	cfg := dialling(t, "from", healthy)
	cfg.Peers = append(cfg.Peers, parse(t, lis.Addr().String())...)
	cfg.DeadAfter = 200 * time.Millisecond
	from := start(t, cfg)
	from.awaitConnected(t, 2)
	first := <-met
	defer first.Close() //nolint:errcheck // the test ends

	many := make([]*meshv1.Hint, 0, 2000)
	for i := range 2000 {
		many = append(many, wake(fmt.Sprintf("%0200d", i))...)
	}
	for again := false; !again || from.Stats().Dropped == 0; {
		from.Publish(many)
		select {
		case conn := <-met:
			again = true
			defer conn.Close() //nolint:errcheck,gocritic // the test ends
		default:
		}
	}

	require.Positive(t, from.Stats().Dropped)
	eventually(t, "the healthy one got something", func() bool { return len(healthy.hints) > 0 })
}

func TestAPeerThatComesBackElsewhereIsFoundByItsNameAndToldThatHintsWereMissed(t *testing.T) {
	t.Parallel()
	before := start(t, settings("before"))
	var where atomic.Pointer[string]
	where.Store(new(before.Addr().String()))
	cfg := settings("from")
	cfg.Peers = []peer.Address{{Host: "peer", Port: 7403}}
	from := start(t, cfg, func(env *run.Env) {
		env.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
			if addr != "peer:7403" {
				return nil, fmt.Errorf("%s was dialled", addr)
			}
			return memnet.DialTCP(ctx, *where.Load())
		}
	})
	from.awaitConnected(t, 1)
	reaches(t, from, before, "before")
	require.Equal(t, "127.0.0.1", from.Stats().Peers[0].ResolvedIP)

	before.stop()
	after := start(t, settings("after"))
	where.Store(new(after.Addr().String()))

	eventually(t, "the name is looked up again", func() bool {
		s := from.Stats().Peers[0]
		return s.Connected && s.ServerID == "after"
	})
	require.EqualValues(t, 1, after.everything.Load())
	reaches(t, from, after, "after")
}

func TestAPeerThatIsBackIsDialledAtOnce(t *testing.T) {
	t.Parallel()
	var where atomic.Pointer[string]
	var dialled atomic.Int64
	cfg := settings("waiting")
	cfg.Peers = []peer.Address{{Host: "peer", Port: 7403}}
	waiting := start(t, cfg, func(env *run.Env) {
		env.Dial = func(ctx context.Context, _ string) (net.Conn, error) {
			if where.Load() == nil {
				return nil, errors.New("not yet")
			}
			defer dialled.Add(1)
			return memnet.DialTCP(ctx, *where.Load())
		}
	})
	where.Store(new(waiting.Addr().String())) // it reaches itself, after which it rests for 15 s and more
	eventually(t, "it has dialled", func() bool { return dialled.Load() > 0 })
	back := settings("back")
	back.Peers = []peer.Address{{Host: "127.0.0.1", Port: waiting.address(t).Port}}
	where.Store(nil)
	peerBack := start(t, back)
	where.Store(new(peerBack.Addr().String()))

	require.Eventually(t, func() bool { return waiting.connected() == 1 }, 5*time.Second, 5*time.Millisecond)
}

func TestAPeerIsDeadOnceItWasSilentAndItsConnectionEnds(t *testing.T) {
	t.Parallel()
	cfg := settings("listening")
	cfg.DeadAfter = 300 * time.Millisecond
	n := start(t, cfg)
	lively := start(t, dialling(t, "lively", n))
	lively.awaitConnected(t, 1)
	conn := knock(t, n)
	_, _, err := handshake.Dial(conn, handshake.Identity{ServerID: "silent", Host: "h"}, handshake.Secret(secret), nil,
		func(handshake.Identity) error { return nil })
	require.NoError(t, err)
	eventually(t, "both are alive", func() bool { return n.Stats().Alive == 2 })

	closed(t, conn)

	eventually(t, "one is dead", func() bool { s := n.Stats(); return s.Alive == 1 && s.Dead == 1 })
	again := knock(t, n)
	_, _, err = handshake.Dial(again, handshake.Identity{ServerID: "silent's next life", Host: "h"}, handshake.Secret(secret), nil,
		func(handshake.Identity) error { return nil })
	require.NoError(t, err)
	eventually(t, "its next life took its place", func() bool { s := n.Stats(); return s.Alive == 2 && s.Dead == 0 })
}

func TestAnOpenMeshTellsTheIDsAndRefusesWhoHasASecret(t *testing.T) {
	t.Parallel()
	nodes := fleet(t, 2, func(c *mesh.Config) { c.Secret = nil })
	reaches(t, nodes[0], nodes[1], "open")

	require.False(t, nodes[0].Stats().Secured)
	require.Contains(t, []string{nodes[0].Stats().Peers[0].ServerID, nodes[0].Stats().Peers[1].ServerID}, "n1")
	secured := start(t, dialling(t, "secured", nodes[0]))
	eventually(t, "it is refused", func() bool {
		return nodes[0].metric(t, "handshake_failures_total", "side=accepted", "reason=secret") > 0
	})
	require.Zero(t, secured.connected())
}

func TestPeersComeAndGoWithTheDirectory(t *testing.T) {
	t.Parallel()
	a, b := start(t, settings("a")), start(t, settings("b"))
	var listed atomic.Pointer[[]string]
	listed.Store(&[]string{a.Addr().String(), b.Addr().String()})
	var broken atomic.Bool
	cfg := settings("from")
	cfg.Directory = func(context.Context) ([]string, error) {
		if broken.Load() {
			return nil, errors.New("the database is away")
		}
		return *listed.Load(), nil
	}
	from := start(t, cfg)
	from.awaitConnected(t, 2)

	broken.Store(true)
	looks := start(t, dialling(t, "visitor 1", from)) // whoever comes makes it look
	looks.awaitConnected(t, 1)
	reaches(t, from, a, "the directory cannot be read")
	require.Equal(t, "the directory cannot be read", b.next(t).GetMessageAvailable().GetQueue())
	listed.Store(&[]string{b.Addr().String()})
	broken.Store(false)
	start(t, dialling(t, "visitor 2", from)).awaitConnected(t, 1)

	from.awaitConnected(t, 1)
	reaches(t, from, b, "one left")
	require.Len(t, from.Stats().Peers, 1)
}

func TestAMeshEndsCleanlyAtAnyMoment(t *testing.T) {
	t.Parallel()
	other := start(t, settings("other"))
	for i := range 500 {
		cfg := dialling(t, fmt.Sprintf("brief-%d", i), other)
		m, err := mesh.Open(t.Context(), environment(), cfg)
		require.NoError(t, err)
		m.Receive(&node{hints: make(chan *meshv1.Hint, 100)})
		ctx, cancel := context.WithTimeout(t.Context(), rand.N(5*time.Millisecond))
		m.Publish(wake("x"))

		require.NoError(t, m.Run(ctx))

		cancel()
		m.Publish(wake("after the end"))
	}
	last := start(t, dialling(t, "last", other))
	last.awaitConnected(t, 1)
	for last.Publish(wake("last")); other.next(t).GetMessageAvailable().GetQueue() != "last"; { // the brief ones may have got something through
	}
}
