package httpserver

import (
	"errors"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"postrider.dev/pkg/obs"
)

type metrics struct {
	seconds  prometheus.ObserverVec // method, route, status
	inFlight prometheus.Gauge
}

func newMetrics(reg prometheus.Registerer, opts Options) (metrics, error) {
	seconds, err1 := obs.Register(reg, prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Namespace: obs.Namespace, Subsystem: opts.Service, Name: "http_seconds",
		Help:    "Time from the start of an HTTP request to its end, by route pattern; streams last as long as they are open.",
		Buckets: obs.LatencyBuckets(),
	}, []string{"listener", "method", "route", "status"}))
	inFlight, err2 := obs.Register(reg, prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Namespace: obs.Namespace, Subsystem: opts.Service, Name: "http_in_flight",
		Help: "HTTP requests that have begun and not ended.",
	}, []string{"listener"}))
	if err := errors.Join(err1, err2); err != nil {
		return metrics{}, err
	}
	label := prometheus.Labels{"listener": opts.Listener}
	return metrics{seconds: seconds.MustCurryWith(label), inFlight: inFlight.With(label)}, nil
}

func (m metrics) observe(method, route string, status int, took time.Duration) {
	m.seconds.WithLabelValues(knownMethod(method), route, strconv.Itoa(status)).Observe(took.Seconds())
}

// knownMethod bounds the label's values: a client may send any word as its method.
func knownMethod(method string) string {
	if slices.Contains(knownMethods(), method) {
		return method
	}
	return "other"
}

func knownMethods() []string {
	return []string{
		http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions,
	}
}
