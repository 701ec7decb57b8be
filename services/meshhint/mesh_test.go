package meshhint_test

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"postrider.dev/pkg/config"
	"postrider.dev/pkg/pg"
	"postrider.dev/pkg/pgtest"
	"postrider.dev/pkg/redistest"
	meshv1 "postrider.dev/proto/gen/postrider/private/mesh/v1"
	"postrider.dev/services/meshhint"
)

const meshSecret = "a secret of the tests only"

// listened are the addresses that the sidecar listens on and that begin so.
func (s *sidecar) listened(prefixes ...string) (out []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, addr := range s.addrs {
		if slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(addr, p) }) {
			out = append(out, addr)
		}
	}
	return out
}

func (s *sidecar) listen(ctx context.Context, addr string) (net.Listener, error) {
	lis, err := s.env.Listen(ctx, addr)
	if err == nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.addrs = append(s.addrs, lis.Addr().String())
	}
	return lis, err
}

func (s *sidecar) dialAdmin(ctx context.Context, _, _ string) (net.Conn, error) {
	return s.env.Dial(ctx, "mem:admin")
}

// overTCP makes a sidecar listen for others, which the directory finds.
func overTCP(c *meshhint.Config) {
	c.HintCarriers = "tcp"
	c.MeshListen = "127.0.0.1:0"
	c.MeshSecret = meshSecret
	c.MeshHeartbeat = 50 * time.Millisecond
}

type meshStats struct {
	Enabled   bool   `json:"enabled"`
	Reason    string `json:"reason"`
	ServerID  string `json:"server_id"`
	Transport string `json:"transport"`
	Port      int    `json:"port"`
	Peers     []struct {
		Host       string  `json:"host"`
		Port       int     `json:"port"`
		Connected  bool    `json:"connected"`
		ResolvedIP *string `json:"resolved_ip"`
	} `json:"peers"`
	Alive              int    `json:"peers_alive"`
	Dead               int    `json:"peers_dead"`
	Sent               uint64 `json:"messages_sent"`
	Received           uint64 `json:"messages_received"`
	Dropped            uint64 `json:"messages_dropped"`
	HandshakeFailures  uint64 `json:"handshake_failures"`
	MaintenanceMode    *bool  `json:"maintenance_mode"`
	PopMaintenanceMode *bool  `json:"pop_maintenance_mode"`
}

// stats are the statistics of a sidecar, which both routes must agree on.
func (s *sidecar) stats(t *testing.T) (out meshStats) {
	t.Helper()
	body := s.get(t, "/internal/api/shared-state/stats")
	require.NoError(t, json.Unmarshal(body, &out))
	var other meshStats
	require.NoError(t, json.Unmarshal(s.get(t, "/internal/api/inter-instance/stats"), &other))
	require.Equal(t, []any{out.Enabled, out.ServerID, out.Port}, []any{other.Enabled, other.ServerID, other.Port})
	return out
}

func (s *sidecar) get(t *testing.T, path string) []byte {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: s.dialAdmin}}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://admin"+path, nil)
	require.NoError(t, err)
	resp, err := client.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close() //nolint:errcheck // read to its end
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, resp.StatusCode, "%s", body)
	return body
}

func (s *sidecar) connected(t *testing.T, n int) {
	t.Helper()
	require.Eventually(t, func() bool {
		connected := 0
		for _, p := range s.stats(t).Peers {
			if p.Connected {
				connected++
			}
		}
		return connected == n
	}, 30*time.Second, 20*time.Millisecond)
}

func TestSidecarsFindOneAnotherInTheDirectoryAndCarryHintsWithoutRedis(t *testing.T) {
	t.Parallel()
	db := pgtest.NewDatabase(t, pgtest.Roles{}, meshhint.Migrations())
	a, b, c := start(t, db, "host-a", overTCP), start(t, db, "host-b", overTCP), start(t, db, "host-c", overTCP)
	pusher, near, far := a.attach(t, "a-1"), b.attach(t, "b-1"), c.attach(t, "c-1")
	for _, s := range []*sidecar{a, b, c} {
		s.connected(t, 2)
	}

	pusher.tell(t, "orders")
	near.await(t, "on the second host", available("orders"))
	far.await(t, "on the third host", available("orders"))
	near.tell(t, "end")

	far.await(t, "that ends", func(h *meshv1.Hint) bool {
		require.NotEqual(t, "orders", h.GetMessageAvailable().GetQueue(), "the second host sent it on")
		return available("end")(h)
	})
	s := b.stats(t)
	require.Equal(t, []any{true, "tcp-mesh", 2, 0}, []any{s.Enabled, s.Transport, s.Alive, s.Dead})
	require.NotEmpty(t, s.ServerID)
	require.Equal(t, "127.0.0.1", *s.Peers[0].ResolvedIP)
	require.Positive(t, s.Sent)
	require.Positive(t, s.Received)
	require.Zero(t, s.HandshakeFailures)
	require.False(t, *s.MaintenanceMode)
}

func TestAHintThatComesByBothCarriersIsHarmless(t *testing.T) {
	t.Parallel()
	db := pgtest.NewDatabase(t, pgtest.Roles{}, meshhint.Migrations())
	redis := redistest.Start(t)
	both := func(c *meshhint.Config) {
		overTCP(c)
		c.HintCarriers = "tcp, redis"
		c.RedisURL = config.Secret(redis.URL())
	}
	a, b := start(t, db, "host-a", both), start(t, db, "host-b", both)
	pusher, far := a.attach(t, "a-1"), b.attach(t, "b-1")
	a.connected(t, 1)
	far.awaitWhile(t, func() { pusher.tell(t, "both") }, available("both"))

	redis.Stop()
	pusher.tell(t, "without redis")

	far.await(t, "by the mesh alone", available("without redis"))
}

func TestTheStatisticsShowTheModes(t *testing.T) {
	t.Parallel()
	db := pgtest.NewDatabase(t, pgtest.Roles{}, meshhint.Migrations())
	a := start(t, db, "host-a", overTCP)
	conn := db.Open(pg.Options{})
	setMode(t, conn, "maintenance", true, "x", "ann")

	on := a.stats(t)
	setMode(t, conn, "maintenance", false, "x", "ann")
	off := a.stats(t)

	require.Equal(t, []bool{true, false}, []bool{*on.MaintenanceMode, *on.PopMaintenanceMode})
	require.False(t, *off.MaintenanceMode)
}

func TestWithoutPeersNothingIsBoundAndNothingSent(t *testing.T) {
	t.Parallel()
	db := pgtest.NewDatabase(t, pgtest.Roles{}, meshhint.Migrations())
	a := start(t, db, "host-a", func(*meshhint.Config) {})

	s := a.stats(t)

	require.False(t, s.Enabled)
	require.Equal(t, "no_peers", s.Reason)
	require.NotNil(t, s.MaintenanceMode)
	require.Empty(t, a.listened("127.0.0.1:", ":7403"))
	off := start(t, db, "host-b", func(c *meshhint.Config) { overTCP(c); c.HintCarriers = "none" })
	require.Equal(t, "carrier_off", off.stats(t).Reason)
}

func TestAPeerThatTheSettingsNameIsSentTo(t *testing.T) {
	t.Parallel()
	b := start(t, pgtest.NewDatabase(t, pgtest.Roles{}, meshhint.Migrations()), "host-b", overTCP)
	far := b.attach(t, "b-1")
	elsewhere := pgtest.NewDatabase(t, pgtest.Roles{}, meshhint.Migrations()) // a directory in which the other is not
	a := start(t, elsewhere, "host-a", func(c *meshhint.Config) {
		overTCP(c)
		c.MeshPeers = []string{" http://127.0.0.1:" + portOf(t, b) + "/ "}
	})
	pusher := a.attach(t, "a-1")
	a.connected(t, 1)

	pusher.tell(t, "named")

	far.await(t, "by name", available("named"))
}

func portOf(t *testing.T, s *sidecar) string {
	t.Helper()
	require.Len(t, s.listened("127.0.0.1:"), 1)
	_, port, err := net.SplitHostPort(s.listened("127.0.0.1:")[0])
	require.NoError(t, err)
	return port
}

func TestSettingsOfAMeshThatCannotBeAreRefused(t *testing.T) {
	t.Parallel()
	good := func() meshhint.Config {
		c := meshhint.Defaults()
		c.DatabaseURL = "postgres://x"
		c.MeshListen = "127.0.0.1:7403"
		return c
	}
	for want, change := range map[string]func(*meshhint.Config){
		"": func(*meshhint.Config) {},
		"MESH_LISTEN: \":7403\" can be reached from other machines": func(c *meshhint.Config) { c.MeshListen = ":7403" },
		"MESH_LISTEN: \":7403\" can be":                             func(c *meshhint.Config) { c.MeshListen, c.MeshPeers = "", []string{"b"} },
		"MESH_LISTEN: \"here\" is not":                              func(c *meshhint.Config) { c.MeshListen, c.MeshAllowOpen = "here", true },
		"MESH_SECRET: has 5 bytes":                                  func(c *meshhint.Config) { c.MeshSecret = "short" },
		"MESH_HEARTBEAT_EVERY: 1ms":                                 func(c *meshhint.Config) { c.MeshHeartbeat = time.Millisecond },
		"MESH_HEARTBEAT_EVERY (three":                               func(c *meshhint.Config) { c.MeshDeadAfter = 2 * time.Second },
		"MESH_DEAD_AFTER: 2h0m0s":                                   func(c *meshhint.Config) { c.MeshDeadAfter = 2 * time.Hour },
		"all three or none":                                         func(c *meshhint.Config) { c.MeshTLSCert = "cert.pem" },
		"HINT_CARRIERS: \"udp\"":                                    func(c *meshhint.Config) { c.HintCarriers = "udp" },
	} {
		c := good()
		change(&c)
		err := c.Validate()
		if want == "" {
			require.NoError(t, err)
			continue
		}
		require.ErrorContains(t, err, want)
	}
	for _, protected := range []func(*meshhint.Config){
		func(c *meshhint.Config) { c.MeshSecret = meshSecret },
		func(c *meshhint.Config) { c.ClusterSecret = meshSecret },
		func(c *meshhint.Config) { c.MeshAllowOpen = true },
		func(c *meshhint.Config) { c.MeshTLSCert, c.MeshTLSKey, c.MeshTLSCA = "a", "b", "c" },
	} {
		c := good()
		c.MeshListen = ":7403"
		protected(&c)
		require.NoError(t, c.Validate())
	}
}
