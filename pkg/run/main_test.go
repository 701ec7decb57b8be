package run

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"postrider.dev/pkg/config"
)

type testConfig struct {
	config.Common

	Size int `env:"SIZE" doc:"a size"`
}

func (c testConfig) Validate() error {
	return errors.Join(c.Common.Validate(), config.Positive("SIZE", c.Size))
}

func testDefaults() testConfig { return testConfig{Common: config.Defaults(), Size: 1} }

// result is what a process left behind.
type result struct {
	code           int
	stdout, stderr string
}

// start runs mainWith; signals may be sent while fn runs.
func start(args, environ []string, signals <-chan os.Signal, fn func(context.Context, testConfig, Env) error) result {
	var stdout, stderr bytes.Buffer
	p := process{name: "testing", args: args, environ: environ, signals: signals, stdout: &stdout, stderr: &stderr}
	code := mainWith(p, testDefaults(), fn)
	return result{code, stdout.String(), stderr.String()}
}

func never(context.Context, testConfig, Env) error { return errors.New("must not run") }

func TestMainLendsAnEnvAndTheConfiguration(t *testing.T) {
	t.Parallel()
	var got testConfig
	res := start(nil, []string{"POSTRIDER_TESTING_SIZE=7", "POSTRIDER_HOST_ID=h1"}, nil, func(ctx context.Context, cfg testConfig, env Env) error {
		got = cfg
		l, err := env.Listen(ctx, "127.0.0.1:0")
		if err != nil {
			return err
		}
		c, err := env.Dial(ctx, l.Addr().String())
		if err != nil {
			return err
		}
		env.Log.Info("hello")
		_, span := env.Traces.Tracer("t").Start(ctx, "x")
		span.End()
		if _, err := env.Metrics.Gather(); err != nil {
			return err
		}
		_ = env.Clock.Now()
		return errors.Join(c.Close(), l.Close())
	})
	require.Equal(t, ExitOK, res.code, res.stderr)
	require.Equal(t, 7, got.Size)
	require.Contains(t, res.stderr, `"service":"testing","host_id":"h1"`)
	for line := range strings.SplitSeq(strings.TrimSpace(res.stderr), "\n") {
		require.True(t, json.Valid([]byte(line)), line)
	}
}

func TestExitCodes(t *testing.T) {
	t.Parallel()
	fail := func(context.Context, testConfig, Env) error { return errors.New("no database") }
	res := start(nil, nil, nil, fail)
	require.Equal(t, ExitFailed, res.code)
	require.Contains(t, res.stderr, "no database")

	res = start(nil, nil, nil, func(context.Context, testConfig, Env) error { panic("bug") })
	require.Equal(t, ExitFailed, res.code)
	require.Contains(t, res.stderr, "main_test.go", "the stack is logged")

	res = start(nil, []string{"POSTRIDER_SIZE=0", "POSTRIDER_LOG_LEVEL=loud", "POSTRIDER_TESTING_SIZ=1"}, nil, never)
	require.Equal(t, ExitUsage, res.code)
	for _, problem := range []string{"SIZE: 0 must be positive", "LOG_LEVEL", "did you mean POSTRIDER_TESTING_SIZE?"} {
		require.Contains(t, res.stderr, problem)
	}

	res = start(nil, []string{"OTEL_EXPORTER_OTLP_ENDPOINT=x", "OTEL_EXPORTER_OTLP_ENDPOINT=collector"}, nil, never)
	require.Equal(t, ExitFailed, res.code)
	require.Contains(t, res.stderr, `trace endpoint: "collector"`)

	for _, args := range [][]string{{"-nonsense"}, {"serve"}, {"healthcheck", "now"}} {
		res = start(args, nil, nil, never)
		require.Equal(t, ExitUsage, res.code)
		require.Contains(t, res.stderr, "usage:")
	}
	require.Equal(t, ExitOK, start([]string{"-h"}, nil, nil, never).code)
}

func TestHelpAndVersion(t *testing.T) {
	t.Parallel()
	res := start([]string{"-help-config"}, []string{"POSTRIDER_SIZE=broken"}, nil, never)
	require.Equal(t, ExitOK, res.code, "help works with a broken environment")
	require.Contains(t, res.stdout, "SIZE")
	require.Contains(t, res.stdout, "DRAIN_TIMEOUT")

	res = start([]string{"-help-config", "-json"}, nil, nil, never)
	var vars []config.Var
	require.NoError(t, json.Unmarshal([]byte(res.stdout), &vars))
	require.Equal(t, "POSTRIDER_TESTING_SIZE", vars[len(vars)-1].Name)

	res = start([]string{"-version"}, nil, nil, never)
	require.Equal(t, ExitOK, res.code)
	require.Contains(t, res.stdout, "testing dev")
	res = start([]string{"-version", "-json"}, nil, nil, never)
	require.True(t, json.Valid([]byte(res.stdout)))
}

func TestTheFirstSignalDrains(t *testing.T) {
	t.Parallel()
	signals := make(chan os.Signal, 1)
	drained := false
	res := start(nil, nil, signals, func(ctx context.Context, _ testConfig, _ Env) error {
		signals <- syscall.SIGTERM
		<-ctx.Done()
		drained = true
		return ctx.Err()
	})
	require.Equal(t, ExitOK, res.code, "ending as told is a clean end")
	require.True(t, drained)
	require.Contains(t, res.stderr, `"signal":"terminated"`)

	res = start(nil, nil, signals, func(ctx context.Context, _ testConfig, _ Env) error {
		signals <- syscall.SIGTERM
		<-ctx.Done()
		return errors.Join(ctx.Err(), errors.New("could not release the lease"))
	})
	require.Equal(t, ExitFailed, res.code, "a failed drain is a failure")
}

func TestTheSecondSignalEndsAtOnce(t *testing.T) {
	t.Parallel()
	signals := make(chan os.Signal, 2)
	stuck := make(chan struct{})
	gone := make(chan struct{})
	res := start(nil, nil, signals, func(ctx context.Context, _ testConfig, _ Env) error {
		defer close(gone)
		signals <- syscall.SIGINT
		<-ctx.Done()
		signals <- syscall.SIGINT
		<-stuck
		return nil
	})
	require.Equal(t, ExitInterrupted, res.code)
	close(stuck)
	<-gone
}

func TestHealthcheckAsksTheAdminListener(t *testing.T) {
	t.Parallel()
	var status atomic.Int32
	status.Store(http.StatusOK)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/readyz" {
			w.WriteHeader(int(status.Load()))
			_, _ = w.Write([]byte("report"))
		}
	}))
	_, port, err := net.SplitHostPort(srv.Listener.Addr().String())
	require.NoError(t, err)

	for _, addr := range []string{"127.0.0.1:" + port, "0.0.0.0:" + port, ":" + port} {
		environ := []string{"POSTRIDER_TESTING_ADMIN_ADDR=" + addr, "POSTRIDER_CLUSTER_SECRET=0123456789abcdef"}
		res := start([]string{"healthcheck"}, environ, nil, never)
		require.Equal(t, ExitOK, res.code, res.stderr)
		require.Equal(t, "report", res.stdout)
	}

	environ := []string{"POSTRIDER_TESTING_ADMIN_ADDR=127.0.0.1:" + port}
	status.Store(http.StatusServiceUnavailable)
	require.Equal(t, ExitFailed, start([]string{"healthcheck"}, environ, nil, never).code)
	srv.Close()
	res := start([]string{"healthcheck"}, environ, nil, never)
	require.Equal(t, ExitFailed, res.code)
	require.Contains(t, res.stderr, "healthcheck:")
}

func TestNewEnvRefusesWhatItCannotMake(t *testing.T) {
	t.Parallel()
	cfg := config.Defaults()
	cfg.LogFormat = "xml"
	_, _, err := NewEnv(t.Context(), &bytes.Buffer{}, "x", cfg, "")
	require.ErrorContains(t, err, "log format")
	cfg = config.Defaults()
	cfg.LogLevel = "loud"
	_, _, err = NewEnv(t.Context(), &bytes.Buffer{}, "x", cfg, "")
	require.ErrorContains(t, err, "log level")
}
