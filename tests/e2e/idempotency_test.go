package e2e

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"postrider.dev/pkg/pg"
	"postrider.dev/tests/fleet"
)

// keyedAnswer is what a host answered a request with an idempotency key.
type keyedAnswer struct {
	status   int
	body     string
	replayed bool
	retry    string
}

func (a keyedAnswer) code(t *testing.T) string {
	t.Helper()
	var problem struct{ Code string }
	require.NoError(t, json.Unmarshal([]byte(a.body), &problem), a.body)
	return problem.Code
}

func askKeyed(t *testing.T, h *fleet.Host, method, path, body string) (keyedAnswer, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, h.HTTP+path, strings.NewReader(body))
	if err != nil {
		return keyedAnswer{}, err
	}
	req.Header.Set("Authorization", "Bearer "+fleet.AdminKey)
	req.Header.Set("Idempotency-Key", "k")
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return keyedAnswer{}, err
	}
	text, err := io.ReadAll(resp.Body)
	return keyedAnswer{resp.StatusCode, string(text), resp.Header.Get("Idempotency-Replayed") == "true", resp.Header.Get("Retry-After")},
		errors.Join(err, resp.Body.Close())
}

func mustAsk(t *testing.T, h *fleet.Host, method, path, body string) keyedAnswer {
	t.Helper()
	a, err := askKeyed(t, h, method, path, body)
	require.NoError(t, err)
	return a
}

// entries counts what the audit knows of a resource.
func entries(t *testing.T, db *pg.DB, action, resource string) int {
	t.Helper()
	var n int
	require.NoError(t, db.QueryRow(t.Context(), "SELECT count(*) FROM audit.outbox WHERE action = $1 AND resource LIKE $2", action, resource).Scan(&n))
	return n
}

func TestARequestUnderAKeyHappensOnceOnWhateverHostsItIsRepeated(t *testing.T) {
	t.Parallel()
	f := twoHosts(t)
	db := f.DB.Open(pg.Options{})
	a, b := f.Hosts[0], f.Hosts[1]
	for _, r := range []struct{ method, path, body, other, action, resource string }{
		{"PATCH", "/v1/queues/jobs", `{"options":{"lease":"10s"}}`, `{"options":{"lease":"11s"}}`, "queue.configure", "queue/jobs"},
		{"POST", "/v1/queues/jobs/groups", `{"group":"g"}`, `{"group":"h"}`, "group.create", "queue/jobs/group/g"},
		{"DELETE", "/v1/queues/jobs/groups/g", "", "", "group.delete", "queue/jobs/group/g"},
		{"POST", "/v1/queues/jobs/dead-letters/redrive", `{"group":"g"}`, `{"group":"h"}`, "dead_letter.redrive", "queue/jobs"},
		{"DELETE", "/v1/queues/jobs", "", "", "queue.delete", "queue/jobs"},
		{"POST", "/v1/admin/tenants", `{"id":"acme"}`, `{"id":"other"}`, "tenant.create", "tenant/acme"},
	} {
		first := mustAsk(t, a, r.method, r.path, r.body)
		require.Equal(t, http.StatusOK, first.status, "%s %s: %s", r.method, r.path, first.body)
		require.False(t, first.replayed)

		again := mustAsk(t, b, r.method, r.path, r.body)
		require.Equal(t, http.StatusOK, again.status, "%s %s: %s", r.method, r.path, again.body)
		require.True(t, again.replayed, "%s %s", r.method, r.path)
		require.Equal(t, first.body, again.body)
		require.Equal(t, 1, entries(t, db, r.action, r.resource), r.action)

		if r.other != "" {
			other := mustAsk(t, b, r.method, r.path, r.other)
			require.Equal(t, http.StatusUnprocessableEntity, other.status, other.body)
			require.Equal(t, "IDEMPOTENCY_KEY_REUSED", other.code(t))
		}
	}
}

func TestAnAPIKeyIsMadeOnceAndItsSecretIsToldOnce(t *testing.T) {
	t.Parallel()
	f := twoHosts(t)
	db := f.DB.Open(pg.Options{})
	type made struct {
		Key    struct{ ID string }
		Secret string
	}
	var first, again made
	body := `{"name":"robot","role":"ROLE_WRITE"}`
	require.NoError(t, json.Unmarshal([]byte(mustAsk(t, f.Hosts[0], "POST", "/v1/admin/keys", body).body), &first))
	repeat := mustAsk(t, f.Hosts[1], "POST", "/v1/admin/keys", body)
	require.NoError(t, json.Unmarshal([]byte(repeat.body), &again))

	require.True(t, repeat.replayed)
	require.Equal(t, first.Key.ID, again.Key.ID)
	require.NotEmpty(t, first.Secret)
	require.Empty(t, again.Secret)
	require.Equal(t, 1, entries(t, db, "key.create", "key/"+first.Key.ID))
	var kept int
	require.NoError(t, db.QueryRow(t.Context(), "SELECT count(*) FROM ingress.request_keys WHERE position(convert_to($1, 'UTF8') IN answer) > 0",
		first.Secret[strings.LastIndex(first.Secret, "_")+1:]).Scan(&kept))
	require.Zero(t, kept, "the secret is in no database")

	for i := range 2 {
		gone := mustAsk(t, f.Hosts[i], "DELETE", "/v1/admin/keys/"+first.Key.ID, "")
		require.Equal(t, http.StatusOK, gone.status, gone.body)
		require.Equal(t, i == 1, gone.replayed)
	}
}

func TestOfRacingRequestsUnderAKeyOneRunsAndTheOthersAreRefusedOrReplayed(t *testing.T) {
	t.Parallel()
	f := twoHosts(t)
	answers, errs := make([]keyedAnswer, 16), make([]error, 16)
	var all sync.WaitGroup
	for i := range answers {
		all.Go(func() {
			answers[i], errs[i] = askKeyed(t, f.Hosts[i%2], "POST", "/v1/queues/jobs/groups", `{"group":"g"}`)
		})
	}
	all.Wait()

	fresh := 0
	for i, a := range answers {
		require.NoError(t, errs[i])
		switch {
		case a.status == http.StatusConflict:
			require.Equal(t, "IDEMPOTENCY_KEY_IN_USE", a.code(t))
			require.NotEmpty(t, a.retry)
		case !a.replayed:
			fresh++
			fallthrough
		default:
			require.Equal(t, http.StatusOK, a.status, a.body)
		}
	}
	require.Equal(t, 1, fresh)
	require.Equal(t, 1, entries(t, f.DB.Open(pg.Options{}), "group.create", "queue/jobs/group/g"))
}
