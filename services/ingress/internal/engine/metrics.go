package engine

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"postrider.dev/pkg/obs"
	"postrider.dev/services/ingress/internal/domain"
)

type metrics struct {
	up        prometheus.Gauge
	inFlight  prometheus.Gauge
	batch     prometheus.Histogram
	givenBack prometheus.Counter
	moved     prometheus.Counter
	routed    map[domain.Dispatch]prometheus.Counter // by where they went; looked up once, for each operation counts
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	m := &metrics{}
	var errs [6]error
	m.up, errs[0] = obs.Register[prometheus.Gauge](reg, prometheus.NewGauge(prometheus.GaugeOpts{
		Namespace: obs.Namespace, Subsystem: "ingress", Name: "dispatchers_up", Help: "Dispatchers that can be sent to.",
	}))
	m.inFlight, errs[1] = obs.Register[prometheus.Gauge](reg, prometheus.NewGauge(prometheus.GaugeOpts{
		Namespace: obs.Namespace, Subsystem: "ingress", Name: "operations_in_flight", Help: "Operations sent or waiting to be, parked pops among them.",
	}))
	m.batch, errs[2] = obs.Register[prometheus.Histogram](reg, prometheus.NewHistogram(prometheus.HistogramOpts{
		Namespace: obs.Namespace, Subsystem: "ingress", Name: "exchange_batch_operations", Help: "Operations in one frame to a dispatcher.",
		Buckets: prometheus.ExponentialBuckets(1, 2, 13),
	}))
	m.givenBack, errs[3] = obs.Register[prometheus.Counter](reg, prometheus.NewCounter(prometheus.CounterOpts{
		Namespace: obs.Namespace, Subsystem: "ingress", Name: "leases_given_back_total", Help: "Leases released because their messages could not be handed to the client.",
	}))
	m.moved, errs[4] = obs.Register[prometheus.Counter](reg, prometheus.NewCounter(prometheus.CounterOpts{
		Namespace: obs.Namespace, Subsystem: "ingress", Name: "operations_moved_total", Help: "Operations sent again to another dispatcher, because the first was lost or drains.",
	}))
	var routed *prometheus.CounterVec
	routed, errs[5] = obs.Register[*prometheus.CounterVec](reg, prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: obs.Namespace, Subsystem: "ingress", Name: "operations_routed_total",
		Help: "Pops, acks and lease verbs by where the queue's route sent them: local, remote, or unknown, which the own host serves.",
	}, []string{"route"}))
	if err := errors.Join(errs[:]...); err != nil {
		return nil, err
	}
	m.routed = make(map[domain.Dispatch]prometheus.Counter)
	for _, d := range []domain.Dispatch{domain.Unknown, domain.Local, domain.Remote} {
		m.routed[d] = routed.WithLabelValues(d.String())
	}
	return m, nil
}
