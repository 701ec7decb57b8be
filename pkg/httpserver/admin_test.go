package httpserver_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"postrider.dev/pkg/clock"
	"postrider.dev/pkg/config"
	"postrider.dev/pkg/httpserver"
	"postrider.dev/pkg/run/runtest"
)

func TestAdminRoutes(t *testing.T) {
	t.Parallel()
	env := runtest.New(t)
	ready := httpserver.NewReadiness()
	var database atomic.Pointer[error]
	report := func(err error) { database.Store(&err) }
	report(nil)
	ready.Add("database", func(context.Context) error { return *database.Load() })
	ready.Add("schema", func(context.Context) error { return nil })
	a, err := httpserver.NewAdmin(t.Context(), env, "test", "mem:admin", "0123456789abcdef", ready)
	require.NoError(t, err)
	a.Internal().Get("/views", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("views")) })
	stop := runtest.Go(t, a.Run)
	c := client(t, env)
	get := func(path string, header ...string) answer {
		return do(t, c, http.MethodGet, "http://mem.admin"+path, http.NoBody, header...)
	}

	require.Equal(t, http.StatusOK, get("/livez").status)
	require.Contains(t, get("/metrics").body, "postrider_test_http_seconds")
	require.Contains(t, get("/debug/pprof/").body, "goroutine")
	require.Equal(t, http.StatusOK, get("/debug/pprof/goroutine?debug=1").status)
	require.Equal(t, http.StatusOK, get("/debug/pprof/cmdline").status)

	require.Equal(t, http.StatusUnauthorized, get("/internal/views").status)
	require.Equal(t, http.StatusUnauthorized, get("/internal/views", "Authorization", "Bearer wrong").status)
	require.Equal(t, "views", get("/internal/views", "Authorization", "Bearer 0123456789abcdef").body)
	require.Equal(t, http.StatusNotFound, get("/internal/nothing", "Authorization", "Bearer 0123456789abcdef").status)

	r := get("/readyz")
	require.Equal(t, http.StatusOK, r.status)
	require.JSONEq(t, `{"status":"ready"}`, r.body)
	require.JSONEq(t, `{"status":"ready","checks":{"database":{"status":"ready"},"schema":{"status":"ready"}}}`, get("/readyz?verbose").body)

	report(&httpserver.DegradedError{Reason: "spooling"})
	r = get("/readyz")
	require.Equal(t, http.StatusOK, r.status, "a degraded node serves")
	require.JSONEq(t, `{"status":"degraded","checks":{"database":{"status":"degraded","reason":"spooling"}}}`, r.body)

	report(errors.New("no connection"))
	r = get("/readyz")
	require.Equal(t, http.StatusServiceUnavailable, r.status)
	require.JSONEq(t, `{"status":"not ready","checks":{"database":{"status":"not ready","reason":"no connection"}}}`, r.body)
	require.Equal(t, http.StatusOK, get("/livez").status, "liveness does not look at dependencies")

	report(nil)
	ready.Drain()
	require.JSONEq(t, `{"status":"not ready","checks":{"draining":{"status":"not ready","reason":"the process is ending"}}}`, get("/readyz").body)
	require.NoError(t, stop())
}

func TestALoopbackAdminListenerServesNoOtherHostName(t *testing.T) {
	t.Parallel()
	a, err := httpserver.NewAdmin(t.Context(), runtest.New(t), "test", "127.0.0.1:0", "", httpserver.NewReadiness())
	require.NoError(t, err)
	runtest.Go(t, a.Run)
	for host, want := range map[string]int{a.Addr().String(): http.StatusOK, "localhost": http.StatusOK, "evil.example": http.StatusForbidden, "evil.example:80": http.StatusForbidden} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+a.Addr().String()+"/livez", http.NoBody)
		require.NoError(t, err)
		req.Host = host
		resp, err := http.DefaultClient.Do(req)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.Equal(t, want, resp.StatusCode, host)
	}
}

func TestReasonsStayOffThePublicListener(t *testing.T) {
	t.Parallel()
	env := runtest.New(t)
	ready := httpserver.NewReadiness()
	ready.Add("database", func(context.Context) error { return errors.New("dial 10.0.0.1") })
	s := listen(t, env, httpserver.Options{})
	s.Router().Get("/readyz", ready.Handler(false))
	runtest.Go(t, s.Run)
	a := do(t, client(t, env), http.MethodGet, "http://mem.test/readyz?verbose", http.NoBody)
	require.Equal(t, http.StatusServiceUnavailable, a.status)
	require.JSONEq(t, `{"status":"not ready"}`, a.body)
}

func TestAnAdminListenerOffLoopbackIsProtected(t *testing.T) {
	t.Parallel()
	env := runtest.New(t)
	ready := httpserver.NewReadiness()
	_, err := httpserver.NewAdmin(t.Context(), env, "test", "0.0.0.0:0", "", ready)
	require.ErrorContains(t, err, "cluster secret")

	a, err := httpserver.NewAdmin(t.Context(), env, "test", "0.0.0.0:0", config.Secret("0123456789abcdef"), ready)
	require.NoError(t, err)
	runtest.Go(t, a.Run)
	c := client(t, env)
	url := "http://" + a.Addr().String()
	require.Equal(t, http.StatusUnauthorized, do(t, c, http.MethodGet, url+"/debug/pprof/", http.NoBody).status)
	require.Equal(t, http.StatusOK, do(t, c, http.MethodGet, url+"/debug/pprof/", http.NoBody, "Authorization", "Bearer 0123456789abcdef").status)
	require.Equal(t, http.StatusOK, do(t, c, http.MethodGet, url+"/readyz", http.NoBody).status)
}

func TestChecksAreBoundedSharedAndGuarded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ready := httpserver.NewReadiness()
		var runs atomic.Int32
		release := make(chan struct{})
		ready.Add("stuck", func(context.Context) error { // ignores its context
			runs.Add(1)
			<-release
			return nil
		})
		ready.Add("slow", func(ctx context.Context) error { return clock.Real{}.Sleep(ctx, time.Hour) })
		ready.Add("bug", func(context.Context) error { panic("oh no") })
		ready.Add("bug2", nil)
		ready.Add("bug2", func(context.Context) error { return nil }) // replaced
		start := clock.Real{}.Now()
		reports := make(chan httpserver.Report, 3)
		for range 3 {
			go func() { reports <- ready.Report(t.Context()) }()
		}
		for range 3 {
			r := <-reports
			require.Equal(t, httpserver.NotReady, r.Status)
			require.Equal(t, httpserver.NotReady, r.Checks["stuck"].Status)
			require.Equal(t, httpserver.NotReady, r.Checks["slow"].Status)
			require.Contains(t, r.Checks["bug"].Reason, "oh no")
			require.Equal(t, httpserver.Ready, r.Checks["bug2"].Status)
		}
		require.Equal(t, 2*time.Second, clock.Real{}.Since(start))
		require.EqualValues(t, 1, runs.Load(), "many probers, one check")
		close(release)
		body, err := json.Marshal(httpserver.Report{Status: httpserver.Ready})
		require.NoError(t, err)
		require.JSONEq(t, `{"status":"ready"}`, string(body))
	})
}
