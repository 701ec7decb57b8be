package tail

import (
	"errors"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"postrider.dev/pkg/obs"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
)

type metrics struct {
	open   prometheus.Gauge
	events prometheus.Counter
	pages  prometheus.Counter
	closed *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	m := &metrics{}
	var errs [4]error
	m.open, errs[0] = obs.Register[prometheus.Gauge](reg, prometheus.NewGauge(prometheus.GaugeOpts{
		Namespace: obs.Namespace, Subsystem: "ingress", Name: "subscriptions_open", Help: "Subscriptions of clients of this node.",
	}))
	m.events, errs[1] = obs.Register[prometheus.Counter](reg, prometheus.NewCounter(prometheus.CounterOpts{
		Namespace: obs.Namespace, Subsystem: "ingress", Name: "subscription_events_total", Help: "Events handed to subscriptions, each counted once a subscription.",
	}))
	m.pages, errs[2] = obs.Register[prometheus.Counter](reg, prometheus.NewCounter(prometheus.CounterOpts{
		Namespace: obs.Namespace, Subsystem: "ingress", Name: "subscription_pages_total", Help: "Pages of the log read for one subscription that was behind its buffer.",
	}))
	m.closed, errs[3] = obs.Register[*prometheus.CounterVec](reg, prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: obs.Namespace, Subsystem: "ingress", Name: "subscriptions_closed_total", Help: "Subscriptions that this node ended, by reason.",
	}, []string{"reason"}))
	if err := errors.Join(errs[:]...); err != nil {
		return nil, err
	}
	for r := range queuev1.ClosedReason_name {
		if r != 0 {
			m.closed.WithLabelValues(reasonLabel(queuev1.ClosedReason(r))) // there from the start, at 0
		}
	}
	return m, nil
}

// reasonLabel is how a metric has a reason: draining, slow.
func reasonLabel(r queuev1.ClosedReason) string {
	return strings.ToLower(strings.TrimPrefix(r.String(), "CLOSED_REASON_"))
}
