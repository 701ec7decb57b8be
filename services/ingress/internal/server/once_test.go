package server_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"postrider.dev/pkg/apierr"
	"postrider.dev/pkg/idempotency"
	adminv1 "postrider.dev/proto/gen/postrider/admin/v1"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/ingress/internal/domain"
)

// keyedRoutes are requests for every REST route that changes something outside the data plane.
func keyedRoutes(t *testing.T) map[string][3]string {
	t.Helper()
	routes := map[string][3]string{
		"PATCH /v1/queues/{queue}":                     {"PATCH", "/v1/queues/q", `{"options":{"lease":"10s"}}`},
		"DELETE /v1/queues/{queue}":                    {"DELETE", "/v1/queues/q?force=true", ""},
		"DELETE /v1/queues/{queue}/messages":           {"DELETE", "/v1/queues/q/messages?message_id=m", ""},
		"POST /v1/queues/{queue}/groups":               {"POST", "/v1/queues/q/groups", `{"group":"g"}`},
		"DELETE /v1/queues/{queue}/groups/{group}":     {"DELETE", "/v1/queues/q/groups/g", ""},
		"POST /v1/queues/{queue}/groups/{group}/seek":  {"POST", "/v1/queues/q/groups/g/seek", `{"to":"latest"}`},
		"POST /v1/queues/{queue}/dead-letters/redrive": {"POST", "/v1/queues/q/dead-letters/redrive", `{"group":"g"}`},
		"POST /v1/queues/{queue}/dead-letters/purge":   {"POST", "/v1/queues/q/dead-letters/purge", `{"all":true}`},
		"POST /v1/transactions":                        {"POST", "/v1/transactions", `{"operations":[{"push":{"queue":"q","items":[{"payload":1}]}}]}`},
		"POST /v1/queues/{queue}/rotate-key":           {"POST", "/v1/queues/q/rotate-key", `{}`},
		"POST /v1/admin/tenants":                       {"POST", "/v1/admin/tenants", `{"id":"acme"}`},
		"PUT /v1/admin/modes/{mode}":                   {"PUT", "/v1/admin/modes/pop_maintenance", `{"enabled":true}`},
		"POST /v1/admin/keys":                          {"POST", "/v1/admin/keys", `{"name":"n","role":"ROLE_READ"}`},
		"DELETE /v1/admin/keys/{id}":                   {"DELETE", "/v1/admin/keys/k1", ""},
	}
	for _, p := range domain.Policies() {
		if p.Method != "" && p.Method != http.MethodGet && p.Area != domain.AreaMeta && (p.Method != http.MethodPost || !isHot(p.Pattern)) {
			require.Contains(t, routes, p.Method+" "+p.Pattern, "every mutating route takes a key")
		}
	}
	return routes
}

func isHot(pattern string) bool {
	_, verb, _ := strings.Cut(pattern, "/{queue}/")
	switch verb {
	case "messages", "pop", "ack", "renew", "release":
		return true
	}
	return false
}

func TestEveryMutatingRouteTakesAKeyAndMarksAReplay(t *testing.T) {
	t.Parallel()
	s := start(t)
	for name, r := range keyedRoutes(t) {
		plain := s.request(r[0], r[1], r[2])
		require.Equal(t, http.StatusOK, plain.status, "%s: %s", name, plain.body)
		require.Empty(t, plain.header.Get("Idempotency-Replayed"), name)

		first := s.request(r[0], r[1], r[2], "Idempotency-Key", "first time")
		require.Equal(t, http.StatusOK, first.status, name)
		require.Empty(t, first.header.Get("Idempotency-Replayed"), name)

		s.request(r[0], r[1], r[2], "Idempotency-Key", "again") // the owner has seen it by then
		again := s.request(r[0], r[1], r[2], "Idempotency-Key", "again")
		require.Equal(t, http.StatusOK, again.status, name)
		require.Equal(t, "true", again.header.Get("Idempotency-Replayed"), name)
	}
	require.Len(t, s.exchange.keys, 9*3+4, "the dispatcher gets the keys of its own calls, and a transaction always has one")
}

func TestABadKeyIsRefusedOnEveryMutatingRoute(t *testing.T) {
	t.Parallel()
	s := start(t)
	for name, r := range keyedRoutes(t) {
		for key, code := range map[string]string{strings.Repeat("k", 256): "NAME_TOO_LONG", "é": "TOKEN_MALFORMED", "a\tb": "TOKEN_MALFORMED"} {
			got := s.request(r[0], r[1], r[2], "Idempotency-Key", key)
			require.Equal(t, http.StatusBadRequest, got.status, name)
			require.Contains(t, got.body, `"code":"`+code+`"`, name)
			require.Contains(t, got.body, `"field":"idempotency_key"`, name)
		}
	}
	require.Zero(t, s.exchange.forwarded())
}

func TestVerbsThatTakeNoKeyAndReadsIgnoreOne(t *testing.T) {
	t.Parallel()
	s := start(t)
	for _, r := range [][3]string{
		{"POST", "/v1/queues/q/pop", `{}`},
		{"POST", "/v1/queues/q/ack", `{"lease":"l","ack_rest":true}`},
		{"POST", "/v1/queues/q/renew", `{"lease":"l"}`},
		{"POST", "/v1/queues/q/release", `{"lease":"l"}`},
		{"GET", "/v1/queues/q", ""},
		{"GET", "/v1/admin/tenants", ""},
	} {
		got := s.request(r[0], r[1], r[2], "Idempotency-Key", strings.Repeat("é", 200))
		require.Less(t, got.status, 300, "%v: %s", r, got.body)
		require.Empty(t, got.header.Get("Idempotency-Replayed"))
	}
	require.Empty(t, s.exchange.keys)
}

func TestRefusalsOfKeysHaveTheirStatuses(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.exchange.control = nil
	reused := s.request("POST", "/v1/admin/tenants", `{"id":"acme"}`, "Idempotency-Key", "reused")
	require.Equal(t, http.StatusUnprocessableEntity, reused.status, reused.body)
	require.Contains(t, reused.body, `"code":"IDEMPOTENCY_KEY_REUSED"`)
	busy := s.request("POST", "/v1/admin/tenants", `{"id":"acme"}`, "Idempotency-Key", "busy")
	require.Equal(t, http.StatusConflict, busy.status, busy.body)
	require.Contains(t, busy.body, `"code":"IDEMPOTENCY_KEY_IN_USE"`)
	require.Equal(t, "1", busy.header.Get("Retry-After"))
}

func TestAReplayedKeyHasNoSecret(t *testing.T) {
	t.Parallel()
	s := start(t)
	first := s.request("POST", "/v1/admin/keys", `{"name":"n","role":"ROLE_READ"}`, "Idempotency-Key", "k")
	require.Contains(t, first.body, `"secret":"prk_`)
	again := s.request("POST", "/v1/admin/keys", `{"name":"n","role":"ROLE_READ"}`, "Idempotency-Key", "k")
	require.Equal(t, "true", again.header.Get("Idempotency-Replayed"))
	require.Contains(t, again.body, `"secret":""`)
	require.NotContains(t, again.body, "prk_")
	id := func(body string) string {
		_, rest, _ := strings.Cut(body, `"id":"`)
		id, _, _ := strings.Cut(rest, `"`)
		return id
	}
	require.Equal(t, id(first.body), id(again.body))
	s.store.kept.Range(func(_, answer any) bool {
		require.NotContains(t, string(answer.([]byte)), "prk_")
		return true
	})
}

func TestGRPCClientsSendTheKeyAsMetadata(t *testing.T) {
	t.Parallel()
	s := start(t)
	keyed := func(key string) (header metadata.MD, err error) {
		ctx := metadata.AppendToOutgoingContext(s.as(adminKey), idempotency.Metadata, key)
		_, err = queuev1.NewQueueServiceClient(s.conn).DeleteQueue(ctx, &queuev1.DeleteQueueRequest{Queue: "q"}, grpc.Header(&header))
		return header, err
	}
	header, err := keyed("first")
	require.NoError(t, err)
	require.False(t, idempotency.Replayed(header))
	header, err = keyed("again")
	require.NoError(t, err)
	require.True(t, idempotency.Replayed(header))
	require.Equal(t, []string{"first", "again"}, s.exchange.keys)
	_, err = keyed(strings.Repeat("k", 256))
	require.Equal(t, "NAME_TOO_LONG", apierr.Reason(err))

	for i := range 2 {
		ctx := metadata.AppendToOutgoingContext(s.as(adminKey), idempotency.Metadata, "k")
		var header metadata.MD
		_, err := adminv1.NewAdminServiceClient(s.conn).CreateTenant(ctx, &adminv1.CreateTenantRequest{Id: "acme"}, grpc.Header(&header))
		require.NoError(t, err)
		require.Equal(t, i == 1, idempotency.Replayed(header))
	}
}

func TestAPushOverGRPCTakesTheKeyOfItsMetadata(t *testing.T) {
	t.Parallel()
	s := start(t)
	push := func(inBody string) error {
		ctx := metadata.AppendToOutgoingContext(s.as(adminKey), idempotency.Metadata, "k")
		_, err := queuev1.NewQueueServiceClient(s.conn).Push(ctx, &queuev1.PushRequest{
			Queue: "q", IdempotencyKey: inBody, Items: []*queuev1.PushItem{{Payload: []byte("x")}},
		})
		return err
	}
	require.NoError(t, push(""))
	require.NoError(t, push("k"))
	require.Equal(t, "CONFLICTING_FIELDS", apierr.Reason(push("l")))
	require.Len(t, s.exchange.ops, 2)
	for _, op := range s.exchange.ops {
		require.Equal(t, "k", op.GetPush().GetIdempotencyKey())
	}
}
