package e2e

import (
	"encoding/json"
	"io"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"postrider.dev/pkg/config"
	"postrider.dev/stack"
	"postrider.dev/tests/fleet"
)

func TestTheStatisticsOfTheMeshNeedTheClusterSecretAndShowPeersAndModes(t *testing.T) {
	t.Parallel()
	f := meshed(t, 2, func(_ int, cfg *stack.Config) { cfg.Meshhint.MeshPeers = []string{" https://127.0.0.1:not-a-port "} })
	for _, path := range []string{"/internal/api/shared-state/stats", "/internal/api/inter-instance/stats", "/internal/meshhint/api/shared-state/stats"} {
		status, _ := ask(t, f.Hosts[0], path, "")
		require.Equal(t, http.StatusUnauthorized, status, path)
		status, body := ask(t, f.Hosts[0], path, fleet.ClusterSecret)
		require.Equal(t, http.StatusOK, status, path)
		var stats map[string]any
		require.NoError(t, json.Unmarshal(body, &stats), path)
		require.Equal(t, "tcp-mesh", stats["transport"], path)
		require.Equal(t, []any{false, false}, []any{stats["maintenance_mode"], stats["pop_maintenance_mode"]}, path)
		if hintsOff() {
			require.Equal(t, []any{false, "carrier_off"}, []any{stats["enabled"], stats["reason"]}, path)
			continue
		}
		require.Equal(t, []any{true, true, 1.0}, []any{stats["enabled"], stats["secured"], stats["peers_alive"]}, path)
		require.Len(t, stats["peers"], 2, path)
	}
}

// ask asks the admin listener of a host.
func ask(t *testing.T, h *fleet.Host, path string, secret config.Secret) (status int, body []byte) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+h.Admin+path, nil)
	require.NoError(t, err)
	if secret.IsSet() {
		req.Header.Set("Authorization", "Bearer "+secret.Reveal())
	}
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close() //nolint:errcheck // read to its end
	body, err = io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, body
}
