package mesh_test

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/trace/noop"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"postrider.dev/pkg/clock"
	"postrider.dev/pkg/memnet"
	"postrider.dev/pkg/run"
	meshv1 "postrider.dev/proto/gen/postrider/private/mesh/v1"
	"postrider.dev/services/meshhint/internal/mesh"
	"postrider.dev/services/meshhint/internal/mesh/handshake"
	"postrider.dev/services/meshhint/internal/mesh/peer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	secret   = "a secret of the tests only"
	patience = 30 * time.Second
)

// node is a mesh that runs, and what it received.
type node struct {
	*mesh.Mesh

	reg        *prometheus.Registry
	hints      chan *meshv1.Hint
	everything atomic.Int64
	stop       func()
}

func (n *node) FromCarrier(hints []*meshv1.Hint) {
	for _, h := range hints {
		n.hints <- h
	}
}

func (n *node) EverythingChanged() { n.everything.Add(1) }

// settings of a node on loopback; change edits them.
func settings(id string) mesh.Config {
	return mesh.Config{
		Self: handshake.Identity{ServerID: id, Host: "host-of-" + id}, Secret: handshake.Secret(secret), Listen: "127.0.0.1:0", Port: 7403,
		HeartbeatEvery: 20 * time.Millisecond, DeadAfter: 10 * time.Second,
	}
}

func environment() run.Env {
	return run.Env{
		Log: zap.NewNop(), Metrics: prometheus.NewRegistry(), Traces: noop.NewTracerProvider(), Clock: clock.Real{},
		Listen: memnet.ListenTCP, Dial: memnet.DialTCP,
	}
}

// start runs a mesh until the test ends or stop is called.
func start(t *testing.T, cfg mesh.Config, change ...func(*run.Env)) *node {
	t.Helper()
	env := environment()
	n := &node{reg: prometheus.NewRegistry(), hints: make(chan *meshv1.Hint, 100_000)}
	env.Metrics = n.reg
	for _, c := range change {
		c(&env)
	}
	var err error
	n.Mesh, err = mesh.Open(t.Context(), env, cfg)
	require.NoError(t, err)
	n.Receive(n)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx) }()
	stopped := false
	n.stop = func() {
		if !stopped {
			stopped = true
			cancel()
			require.NoError(t, <-done)
		}
	}
	t.Cleanup(n.stop)
	return n
}

// address is where the node listens.
func (n *node) address(t *testing.T) peer.Address {
	t.Helper()
	a, ok := peer.ParseAddress(n.Addr().String(), 0)
	require.True(t, ok)
	return a
}

// dialling are settings that name the nodes as peers.
func dialling(t *testing.T, id string, peers ...*node) mesh.Config {
	t.Helper()
	cfg := settings(id)
	for _, p := range peers {
		cfg.Peers = append(cfg.Peers, p.address(t))
	}
	return cfg
}

func (n *node) connected() (c int) {
	for _, p := range n.Stats().Peers {
		if p.Connected {
			c++
		}
	}
	return c
}

func eventually(t *testing.T, what string, fact func() bool) {
	t.Helper()
	require.Eventually(t, fact, patience, 5*time.Millisecond, what)
}

func (n *node) awaitConnected(t *testing.T, want int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d peers are connected", want), func() bool { return n.connected() == want })
}

// next is the next hint.
func (n *node) next(t *testing.T) *meshv1.Hint {
	t.Helper()
	select {
	case h := <-n.hints:
		return h
	case <-time.After(patience):
		t.Fatal("no hint arrived")
		return nil
	}
}

// metric is the sum of the samples whose name and labels begin so.
func (n *node) metric(t *testing.T, name string, labels ...string) (sum float64) {
	t.Helper()
	families, err := n.reg.Gather()
	require.NoError(t, err)
	for _, f := range families {
		if f.GetName() != "postrider_meshhint_mesh_"+name {
			continue
		}
		for _, m := range f.GetMetric() {
			var have []string
			for _, l := range m.GetLabel() {
				have = append(have, l.GetName()+"="+l.GetValue())
			}
			all := strings.Join(have, ",")
			fits := true
			for _, want := range labels {
				fits = fits && strings.Contains(all, want)
			}
			if fits {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return sum
}

func wake(queue string) []*meshv1.Hint {
	return []*meshv1.Hint{{Kind: &meshv1.Hint_MessageAvailable{MessageAvailable: &meshv1.MessageAvailable{Tenant: new("acme"), Queue: queue}}}}
}

func flip() []*meshv1.Hint {
	return []*meshv1.Hint{{Kind: &meshv1.Hint_ModesChanged{ModesChanged: &meshv1.ModesChanged{Mode: "maintenance"}}}}
}

// reaches says that what from publishes comes to to, and that nothing else does.
func reaches(t *testing.T, from, to *node, queue string) {
	t.Helper()
	from.Publish(wake(queue))
	require.Equal(t, queue, to.next(t).GetMessageAvailable().GetQueue())
}

// knock opens a bare connection to a node.
func knock(t *testing.T, n *node) net.Conn {
	t.Helper()
	conn, err := memnet.DialTCP(t.Context(), n.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// closed says that the other side ends the connection.
func closed(t *testing.T, conn net.Conn) {
	t.Helper()
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(patience)))
	buf := make([]byte, 1024)
	for {
		if _, err := conn.Read(buf); err != nil {
			require.NotErrorIs(t, err, context.DeadlineExceeded)
			var network net.Error
			if ok := asNet(err, &network); ok {
				require.False(t, network.Timeout(), "the connection is still open")
			}
			return
		}
	}
}
