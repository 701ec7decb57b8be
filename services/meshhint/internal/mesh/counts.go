package mesh

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"postrider.dev/services/meshhint/internal/mesh/frame"
	"postrider.dev/services/meshhint/internal/mesh/peer"
)

// counts are told by the connections and shown by metrics and Stats.
type counts struct {
	sent, received, dropped, handshakeFailures atomic.Uint64

	forged   prometheus.Counter
	failures *prometheus.CounterVec
	ignored  *prometheus.CounterVec
}

var _ peer.Counts = (*counts)(nil)

func newCounts(reg prometheus.Registerer) *counts {
	f := promauto.With(reg)
	c := &counts{
		forged: f.NewCounter(prometheus.CounterOpts{
			Name: name("frames_refused_total"), Help: "Frames that were not what their sender sealed next: forged, altered, repeated, moved or too long. Each ended its connection.",
		}),
		failures: f.NewCounterVec(prometheus.CounterOpts{
			Name: name("handshake_failures_total"),
			Help: "Handshakes that failed, by side (dialled or accepted) and reason. Accepted with the reason secret: something without the secret dials this sidecar.",
		}, []string{"side", "reason"}),
		ignored: f.NewCounterVec(prometheus.CounterOpts{
			Name: name("frames_ignored_total"), Help: "What was ignored in frames: an unknown tag or field, a payload or name that cannot be.",
		}, []string{"what"}),
	}
	c.failures.WithLabelValues("accepted", "secret") // those to watch are there before they happen
	c.ignored.WithLabelValues(string(frame.UnknownTag))
	for n, of := range map[string]struct {
		help  string
		value *atomic.Uint64
	}{
		"frames_sent_total":     {"Frames written to peers, heartbeats among them.", &c.sent},
		"frames_received_total": {"Frames taken from peers, heartbeats among them.", &c.received},
		"frames_dropped_total":  {"Frames not sent, since the peer's queue was full or its connection broke.", &c.dropped},
	} {
		f.NewCounterFunc(prometheus.CounterOpts{Name: name(n), Help: of.help}, func() float64 { return float64(of.value.Load()) })
	}
	return c
}

func name(n string) string { return prometheus.BuildFQName("postrider", "meshhint", "mesh_"+n) }

// watch shows how many peers there are.
func (m *Mesh) watch(reg prometheus.Registerer) {
	f := promauto.With(reg)
	peers := func(n, help string, value func(Stats) int) {
		f.NewGaugeFunc(prometheus.GaugeOpts{Name: name(n), Help: help}, func() float64 { return float64(value(m.Stats())) })
	}
	peers("peers_connected", "Peers that this sidecar dialled and is connected to.", func(s Stats) (n int) {
		for _, p := range s.Peers {
			if p.Connected {
				n++
			}
		}
		return n
	})
	peers("peers_alive", "Peers from which a frame came within MESH_DEAD_AFTER.", func(s Stats) int { return s.Alive })
	peers("peers_dead", "Peers of the last hour from which none did.", func(s Stats) int { return s.Dead })
}

func (c *counts) Sent(n int)     { c.sent.Add(uint64(n)) }
func (c *counts) Received(n int) { c.received.Add(uint64(n)) }
func (c *counts) Dropped(n int)  { c.dropped.Add(uint64(n)) }
func (c *counts) Forged()        { c.forged.Inc() }

func (c *counts) Ignored(what string) { c.ignored.WithLabelValues(what).Inc() }

func (c *counts) HandshakeFailed(side, reason string) {
	c.handshakeFailures.Add(1)
	c.failures.WithLabelValues(side, reason).Inc()
}
