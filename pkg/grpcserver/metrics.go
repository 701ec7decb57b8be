package grpcserver

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"

	"postrider.dev/pkg/apierr"
	"postrider.dev/pkg/obs"
)

type metrics struct {
	seconds  prometheus.ObserverVec // method, code
	inFlight prometheus.Gauge
}

func newMetrics(reg prometheus.Registerer, opts Options) (metrics, error) {
	seconds, err1 := obs.Register(reg, prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Namespace: obs.Namespace, Subsystem: opts.Service, Name: "grpc_seconds",
		Help:    "Time from the start of a gRPC call to its end, by method and code; streams last as long as they are open.",
		Buckets: obs.LatencyBuckets(),
	}, []string{"listener", "method", "code"}))
	inFlight, err2 := obs.Register(reg, prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Namespace: obs.Namespace, Subsystem: opts.Service, Name: "grpc_in_flight",
		Help: "gRPC calls and streams that have begun and not ended.",
	}, []string{"listener"}))
	if err := errors.Join(err1, err2); err != nil {
		return metrics{}, err
	}
	label := prometheus.Labels{"listener": opts.Listener}
	return metrics{seconds: seconds.MustCurryWith(label), inFlight: inFlight.With(label)}, nil
}

func (m metrics) observe(method string, e *apierr.Error, took time.Duration) {
	code := codes.OK
	if e != nil {
		code = e.Code
	}
	m.seconds.WithLabelValues(method, code.String()).Observe(took.Seconds())
}
