package server_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/go-chi/chi/v5"
	"github.com/stretchr/testify/require"

	"postrider.dev/pkg/tenant"
	"postrider.dev/services/ingress/internal/domain"
)

func routesOf(t *testing.T, r chi.Routes) []string {
	t.Helper()
	var out []string
	require.NoError(t, chi.Walk(r, func(method, route string, _ http.Handler, _ ...func(http.Handler) http.Handler) error {
		out = append(out, method+" "+route)
		return nil
	}))
	return out
}

func TestEveryRouteAndEveryMethodIsInThePolicyTable(t *testing.T) {
	t.Parallel()
	s := start(t)
	var routes, methods []string
	for _, p := range domain.Policies() {
		if p.Method != "" {
			routes = append(routes, p.Method+" "+p.Pattern)
		}
		if p.RPC != "" && !strings.HasPrefix(p.RPC, "/grpc.health.") {
			methods = append(methods, p.RPC)
		}
	}
	require.ElementsMatch(t, routes, s.routes())
	require.ElementsMatch(t, methods, s.methods())
}

func TestEveryRuleStandsInThePolicyTableOnce(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, p := range domain.Policies() {
		for _, key := range []string{p.Method + " " + p.Pattern, p.RPC} {
			require.False(t, strings.TrimSpace(key) != "" && seen[key], key)
			seen[key] = true
		}
		require.NotEmpty(t, p.Area)
		if p.Area != domain.AreaMeta {
			require.NotEqual(t, tenant.NoRole, p.Role, "%s %s is open to everybody", p.Method, p.RPC)
		}
	}
}

func TestNoRouteIsServedToTheWrongCaller(t *testing.T) {
	t.Parallel()
	s := start(t)
	for _, p := range domain.Policies() {
		if p.Method == "" || p.Role == tenant.NoRole {
			continue
		}
		path := strings.NewReplacer("{queue}", "q", "{group}", "g", "{id}", "x").Replace(p.Pattern)
		refused := map[string]int{"": 401, "prk_none_0123456789ABCDEFGHIJKLMNOP": 401, "nonsense": 401, awayKey: 503}
		if p.Role > tenant.Read {
			refused[readKey] = 403
		}
		if p.Role > tenant.Write {
			refused[writeKey] = 403
		}
		if p.DefaultTenant {
			refused[strangerKey] = 403
		}
		for key, status := range refused {
			authorization := ""
			if key != "" {
				authorization = "Bearer " + key
			}
			before := s.exchange.forwarded()
			got := s.request(p.Method, path, "", "Authorization", authorization)
			require.Equal(t, status, got.status, "%s %s with %q: %s", p.Method, path, key, got.body)
			require.Equal(t, "application/problem+json", got.header.Get("Content-Type"))
			require.Equal(t, before, s.exchange.forwarded(), "%s %s with %q was forwarded", p.Method, path, key)
		}
	}
}

func TestWhatIsForwardedSpeaksForTheCallersTenantOnly(t *testing.T) {
	t.Parallel()
	s := start(t)
	for _, p := range domain.Policies() {
		if p.Area != domain.AreaQueue || p.Method == "" || strings.HasSuffix(p.RPC, "/Subscribe") { // see TestASubscription...
			continue
		}
		path := strings.NewReplacer("{queue}", "q", "{group}", "g", "{id}", "x").Replace(p.Pattern)
		body := map[string]string{
			"Push": `{"payload":1}`, "Ack": `{"lease":"l","ack_rest":true}`, "Renew": `{"lease":"l"}`, "Release": `{"lease":"l"}`,
			"CreateGroup": `{"group":"g"}`, "RedriveDeadLetters": `{"group":"g"}`, "Pop": `{}`, "ConfigureQueue": `{}`,
			"SeekGroup": `{"to":"latest"}`, "PurgeDeadLetters": `{"all":true}`,
			"Transact": `{"operations":[{"ack":{"queue":"q","lease":"l","settlements":[{"message_id":"m"}]}}]}`,
		}[p.RPC[strings.LastIndexByte(p.RPC, '/')+1:]]
		if strings.HasSuffix(path, "lookup") || strings.HasSuffix(p.RPC, "/DeleteMessage") {
			path += "?client_id=c"
		}

		got := s.request(p.Method, path, body, "Authorization", "Bearer "+strangerKey, "Postrider-Tenant", "default", "Grpc-Metadata-Postrider-Tenant", "default")

		require.Less(t, got.status, 300, "%s %s: %s", p.Method, path, got.body)
	}
	require.NotEmpty(t, s.exchange.ops)
	for _, op := range s.exchange.ops {
		require.Equal(t, "other", op.GetTenant())
		require.Equal(t, "key:stranger", op.GetActor())
	}
	require.Len(t, s.exchange.callers, 17)
	require.False(t, slices.ContainsFunc(s.exchange.callers, func(c tenant.Caller) bool { return c.Tenant != "other" || c.Actor != "key:stranger" }))
}
