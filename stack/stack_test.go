package stack_test

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"postrider.dev/pkg/pg"
	"postrider.dev/pkg/pgtest"
	"postrider.dev/stack"
	"postrider.dev/stack/internal/hosttest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// ask gets a URL and returns status and body.
func ask(t *testing.T, url string, header ...string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	require.NoError(t, err)
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	client := &http.Client{}
	defer client.CloseIdleConnections()
	resp, err := client.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close() //nolint:errcheck // read to its end
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, string(body)
}

func TestTheOneAdminListenerAnswersForAllServices(t *testing.T) {
	t.Parallel()
	h := hosttest.Start(t, zap.NewNop())
	admin := "http://" + h.Admin

	status, _ := ask(t, admin+"/livez")
	require.Equal(t, http.StatusOK, status)

	status, body := ask(t, admin+"/readyz?verbose")
	require.Equal(t, http.StatusOK, status, body)
	var report struct {
		Checks map[string]any `json:"checks"`
	}
	require.NoError(t, json.Unmarshal([]byte(body), &report))
	for _, service := range []string{"ingress", "dispatcher", "scheduler", "audit", "meshhint"} {
		require.Contains(t, report.Checks, service)
	}

	status, body = ask(t, admin+"/metrics")
	require.Equal(t, http.StatusOK, status)
	for _, name := range []string{"postrider_dispatcher_", "postrider_ingress_", "postrider_meshhint_", "postrider_audit_", "postrider_scheduler_"} {
		require.Contains(t, body, "\n"+name, "the registry is shared by all services")
	}
}

func TestInternalRoutesOfEachServiceAreReachedWithTheSecretOnly(t *testing.T) {
	t.Parallel()
	h := hosttest.Start(t, zap.NewNop())
	route := "http://" + h.Admin + "/internal/meshhint/nodes"

	status, _ := ask(t, route)
	require.Equal(t, http.StatusUnauthorized, status)
	status, _ = ask(t, route, "Authorization", "Bearer wrong")
	require.Equal(t, http.StatusUnauthorized, status)
	status, body := ask(t, route, "Authorization", "Bearer "+hosttest.ClusterSecret)
	require.Equal(t, http.StatusOK, status, body)
	require.Contains(t, body, "host-1")
	status, body = ask(t, "http://"+h.Admin+"/internal/scheduler/leader", "Authorization", "Bearer "+hosttest.ClusterSecret)
	require.Equal(t, http.StatusOK, status, body)
	status, body = ask(t, "http://"+h.Admin+"/internal/nobody/nodes", "Authorization", "Bearer "+hosttest.ClusterSecret)
	require.Equal(t, http.StatusNotFound, status)
	require.Contains(t, body, "meshhint")
}

func TestTheNodeDirectoryShowsEveryServiceOfTheHost(t *testing.T) {
	t.Parallel()
	h := hosttest.Start(t, zap.NewNop())
	db := h.DB.Open(pg.Options{MaxConns: 1})

	require.EventuallyWithT(t, func(c *assert.CollectT) {
		var online []string
		err := db.QueryRow(t.Context(), "SELECT array_agg(service ORDER BY service) FROM mesh.directory() WHERE state = 'online' AND host_id = 'host-1'").Scan(&online)
		require.NoError(c, err)
		require.Equal(c, []string{"audit", "dispatcher", "ingress", "meshhint", "scheduler"}, online)
	}, 30*time.Second, 50*time.Millisecond)
}

func TestACleanStopLogsNothingThatFrightens(t *testing.T) {
	t.Parallel()
	core, logs := observer.New(zapcore.WarnLevel)
	h := hosttest.Start(t, zap.New(core))

	require.NoError(t, h.Stop())

	for _, entry := range logs.All() {
		t.Errorf("%s %s: %s %v", entry.Level, entry.LoggerName, entry.Message, entry.ContextMap())
	}
}

func TestEveryProblemOfEveryServiceIsReportedAtOnce(t *testing.T) {
	t.Parallel()
	cfg, err := stack.Load(nil)
	require.NoError(t, err)
	cfg.AdminAddr = "0.0.0.0:7402"
	cfg.Ingress.HTTPAddr = "nonsense"

	err = cfg.Validate()

	for _, problem := range []string{"ingress", "HTTP_ADDR", "dispatcher", "DATABASE_URL", "ADMIN_ADDR", "CLUSTER_SECRET"} {
		require.ErrorContains(t, err, problem)
	}
	require.Greater(t, strings.Count(err.Error(), "\n"), 3)
}
