package httpserver_test

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace/noop"
	"go.uber.org/zap"

	"postrider.dev/pkg/apierr"
	"postrider.dev/pkg/clock"
	"postrider.dev/pkg/httpserver"
	"postrider.dev/pkg/memnet"
	"postrider.dev/pkg/run"
)

// A service has a front door and an admin listener that outlives it; the readiness turns when the front door begins to drain.
func Example() {
	env := run.Env{
		Log: zap.NewNop(), Metrics: prometheus.NewRegistry(), Traces: noop.NewTracerProvider(), Clock: clock.Real{},
		Listen: memnet.ListenTCP, Dial: memnet.DialTCP,
	}
	ctx, cancel := context.WithCancel(context.Background())
	ready := httpserver.NewReadiness()
	admin, err := httpserver.NewAdmin(ctx, env, "echo", "127.0.0.1:0", "", ready)
	if err != nil {
		panic(err)
	}
	web, err := httpserver.New(ctx, env, httpserver.Options{
		Service: "echo", Listener: "public", Addr: "127.0.0.1:0", DrainTimeout: 25 * time.Second, OnDrain: ready.Drain,
	})
	if err != nil {
		panic(err)
	}
	web.Router().Post("/v1/echo", func(w http.ResponseWriter, r *http.Request) {
		body, err := httpserver.ReadBody(w, r, 1<<20)
		if err != nil {
			apierr.WriteHTTP(w, r, err)
			return
		}
		_, _ = w.Write(body)
	})

	cancel() // a process ends by SIGTERM
	err = run.Layers(ctx, []run.Part{{Name: "admin", Run: admin.Run}}, []run.Part{{Name: "web", Run: web.Run}})
	fmt.Println(err, ready.Report(context.Background()).Status)
	// Output: <nil> not ready
}
