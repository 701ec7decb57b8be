package run

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"go.opentelemetry.io/otel"
	"go.uber.org/zap"

	"postrider.dev/pkg/config"
	"postrider.dev/pkg/obs"
)

const (
	healthcheckTimeout  = 5 * time.Second
	healthcheckMaxBytes = 64 << 10
)

// healthcheck asks the running service whether it is ready; images without a shell or curl use it as their probe.
func (p process) healthcheck(ctx context.Context, cfg config.Common) int {
	ctx, cancel := context.WithTimeout(ctx, healthcheckTimeout)
	defer cancel()
	ready, err := askReady(ctx, cfg.AdminAddr, p.stdout)
	switch {
	case err != nil:
		_, _ = fmt.Fprintf(p.stderr, "%s: healthcheck: %v\n", p.name, err)
		return ExitFailed
	case !ready:
		return ExitFailed
	}
	return ExitOK
}

func askReady(ctx context.Context, addr string, w io.Writer) (bool, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return false, err
	}
	if ip := net.ParseIP(host); host == "" || (ip != nil && ip.IsUnspecified()) {
		host = "127.0.0.1"
		if ip != nil && ip.To4() == nil {
			host = "::1"
		}
	}
	url := "http://" + net.JoinHostPort(host, port) + "/readyz?verbose"
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return false, err
	}
	transport := &http.Transport{DisableKeepAlives: true} // and no proxy: this is our own machine
	defer transport.CloseIdleConnections()
	res, err := transport.RoundTrip(req)
	if err != nil {
		return false, err
	}
	defer func() { _ = res.Body.Close() }()
	if _, err := io.Copy(w, io.LimitReader(res.Body, healthcheckMaxBytes)); err != nil {
		return false, err
	}
	return res.StatusCode == http.StatusOK, nil
}

// routeTraceErrors sends what the trace library has to say to our log. The library has one handler for the process.
func routeTraceErrors(log *zap.Logger) {
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		log.Debug("tracing", obs.Err(err))
	}))
}
