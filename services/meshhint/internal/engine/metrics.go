package engine

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Metrics count what the sidecar does.
type Metrics struct {
	attached   prometheus.Gauge
	hints      *prometheus.CounterVec
	dropped    *prometheus.CounterVec
	heartbeats *prometheus.CounterVec
	carrierUp  prometheus.Gauge
}

// NewMetrics registers the metrics with reg.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	f := promauto.With(reg)
	name := func(n string) string { return prometheus.BuildFQName("postrider", "meshhint", n) }
	return &Metrics{
		attached: f.NewGauge(prometheus.GaugeOpts{Name: name("services_attached"), Help: "Services of this host with a live stream."}),
		hints: f.NewCounterVec(prometheus.CounterOpts{
			Name: name("hints_total"), Help: "Hints taken, by where they came from: service or carrier.",
		}, []string{"source"}),
		dropped: f.NewCounterVec(prometheus.CounterOpts{
			Name: name("hints_dropped_total"), Help: "Hints dropped because a bounded queue was full or the carrier was away: service or carrier.",
		}, []string{"target"}),
		heartbeats: f.NewCounterVec(prometheus.CounterOpts{
			Name: name("heartbeats_total"), Help: "Writes of the host's nodes into the directory, by outcome: ok or error.",
		}, []string{"outcome"}),
		carrierUp: f.NewGauge(prometheus.GaugeOpts{Name: name("carrier_up"), Help: "1 while the subscription of the Redis carrier is confirmed."}),
	}
}

// Heartbeat counts a write of the directory.
func (m *Metrics) Heartbeat(err error) {
	outcome := "ok"
	if err != nil {
		outcome = "error"
	}
	m.heartbeats.WithLabelValues(outcome).Inc()
}

// CarrierDropped counts hints that the carrier did not take.
func (m *Metrics) CarrierDropped(n int) { m.dropped.WithLabelValues("carrier").Add(float64(n)) }

// CarrierUp tells whether the carrier's subscription is confirmed.
func (m *Metrics) CarrierUp(up bool) {
	v := 0.0
	if up {
		v = 1
	}
	m.carrierUp.Set(v)
}
