package e2e

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	adminv1 "postrider.dev/proto/gen/postrider/admin/v1"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	postrider "postrider.dev/sdk"
	"postrider.dev/tests/fleet"
)

// owned is what a tenant has that no other may see or touch. Every word of it that a stranger could read contains "giraffe".
type owned struct {
	queue, message, letter, keyID string
	lease                         *postrider.Lease
}

func own(t *testing.T, f *fleet.Fleet) owned {
	t.Helper()
	c := f.Client(t, 0)
	o := owned{queue: "zebra"}
	_, err := c.Configure(t.Context(), o.queue, &queuev1.QueueOptions{MaxGroups: new(int32(77))})
	require.NoError(t, err)
	for _, payload := range []string{"giraffe-dead", "giraffe-leased", "giraffe-waiting"} {
		results, err := c.Push(t.Context(), o.queue, postrider.Message{
			Partition: payload, Payload: []byte(payload), ClientID: "cid", Headers: map[string]string{"h": "giraffe"}, IdempotencyKey: "idem",
		})
		require.NoError(t, err)
		require.NoError(t, results[0].Err)
	}
	dead := mustPop(t, c, o.queue, postrider.PopOptions{Partition: "giraffe-dead", Lease: time.Hour, Group: "giraffe-group"})
	_, err = dead.Reject(t.Context(), dead.Deliveries[0], "giraffe-reason")
	require.NoError(t, err)
	o.lease = mustPop(t, c, o.queue, postrider.PopOptions{Partition: "giraffe-leased", Lease: time.Hour, Group: "giraffe-group"})
	o.message = o.lease.Deliveries[0].MessageID
	for d, err := range c.DeadLetters(t.Context(), o.queue, "") {
		require.NoError(t, err)
		o.letter = d.GetId()
	}
	require.NotEmpty(t, o.letter)
	o.keyID = newKey(t, f.Hosts[0], "", adminv1.Role_ROLE_WRITE).GetKey().GetId()
	return o
}

// requests is a request for every route, with the owner's names in it. The answers of those that may succeed are a stranger's own things.
func (o owned) requests() map[string][]string {
	q := "/v1/queues/" + o.queue
	lease := `"lease":"` + o.lease.Token + `"`
	return map[string][]string{ // route: path, body, codes
		"POST /v1/queues/{queue}/messages":             {q + "/messages", `{"partition":"mine","payload":1,"idempotency_key":"idem"}`, "201"},
		"POST /v1/queues/{queue}/pop":                  {q + "/pop", `{"group":"giraffe-group","partition":"giraffe-waiting"}`, "204"},
		"POST /v1/queues/{queue}/ack":                  {q + "/ack", `{` + lease + `,"ack_rest":true}`, "409 404 400"},
		"POST /v1/queues/{queue}/renew":                {q + "/renew", `{` + lease + `}`, "409 404 400"},
		"POST /v1/queues/{queue}/release":              {q + "/release", `{` + lease + `}`, "409 404 400"},
		"GET /v1/queues/{queue}/subscribe":             {q + "/subscribe?from=earliest", "", "200"},
		"GET /v1/queues/{queue}/messages/lookup":       {q + "/messages/lookup?partition=giraffe-waiting&client_id=cid", "", "404"},
		"PATCH /v1/queues/{queue}":                     {q, `{"options":{"max_groups":3}}`, "200"},
		"GET /v1/queues":                               {"/v1/queues", "", "200"},
		"GET /v1/queues/{queue}":                       {q, "", "404 200"},
		"DELETE /v1/queues/{queue}":                    {q + "?force=true", "", "404 200"},
		"DELETE /v1/queues/{queue}/messages":           {q + "/messages?message_id=" + o.message, "", "404"},
		"GET /v1/queues/{queue}/peek":                  {q + "/peek", "", "404 200"},
		"GET /v1/queues/{queue}/partitions":            {q + "/partitions", "", "404 200"},
		"POST /v1/queues/{queue}/groups":               {q + "/groups", `{"group":"giraffe-group"}`, "200"},
		"DELETE /v1/queues/{queue}/groups/{group}":     {q + "/groups/giraffe-group", "", "404 200"},
		"POST /v1/queues/{queue}/groups/{group}/seek":  {q + "/groups/giraffe-group/seek", `{"to":"latest"}`, "404 200"},
		"GET /v1/queues/{queue}/dead-letters":          {q + "/dead-letters", "", "404 200"},
		"GET /v1/queues/{queue}/dead-letters/{id}":     {q + "/dead-letters/" + o.letter, "", "404"},
		"POST /v1/queues/{queue}/dead-letters/redrive": {q + "/dead-letters/redrive", `{"ids":["` + o.letter + `"]}`, "404 200"},
		"POST /v1/queues/{queue}/dead-letters/purge":   {q + "/dead-letters/purge", `{"ids":["` + o.letter + `"]}`, "404 200"},
		"POST /v1/queues/{queue}/rotate-key":           {q + "/rotate-key", "{}", "404 400"},
		"POST /v1/transactions": {
			"/v1/transactions", `{"operations":[{"ack":{"queue":"` + o.queue + `",` + lease + `,"settlements":[{"message_id":"` + o.message + `"}]}}]}`, "404 409 400",
		},
		"POST /v1/admin/tenants":     {"/v1/admin/tenants", `{"id":"third"}`, "403"},
		"GET /v1/admin/tenants":      {"/v1/admin/tenants", "", "403"},
		"POST /v1/admin/keys":        {"/v1/admin/keys", `{"tenant":"default","name":"x","role":"ROLE_ADMIN"}`, "403"},
		"GET /v1/admin/keys":         {"/v1/admin/keys", "", "200"},
		"DELETE /v1/admin/keys/{id}": {"/v1/admin/keys/" + o.keyID, "", "404"},
		"GET /v1/admin/modes":        {"/v1/admin/modes", "", "403"},
		"PUT /v1/admin/modes/{mode}": {"/v1/admin/modes/pop_maintenance", `{"enabled":true}`, "403"},
		"GET /v1/admin/nodes":        {"/v1/admin/nodes", "", "403"},
		"GET /v1/admin/mesh":         {"/v1/admin/mesh", "", "403"},
		"GET /v1/admin/spool":        {"/v1/admin/spool", "", "403"},

		"GET /api/v1/system/shared-state": {"/api/v1/system/shared-state", "", "403"},
	}
}

func TestNoTenantSeesAnothersAnythingOnAnyRoute(t *testing.T) {
	t.Parallel()
	f := twoHosts(t)
	o := own(t, f)
	_, err := surface(f.Hosts[0], fleet.AdminKey).CreateTenant(t.Context(), &adminv1.CreateTenantRequest{Id: "other"})
	require.NoError(t, err)
	stranger := newKey(t, f.Hosts[0], "other", adminv1.Role_ROLE_ADMIN).GetSecret()
	owner := f.Client(t, 0)
	before, err := owner.Queue(t.Context(), o.queue)
	require.NoError(t, err)

	for n, h := range f.Hosts {
		requests := o.requests()
		for _, route := range openapi(t, h).routes() {
			r, known := requests[route]
			require.True(t, known, "this test has no request for %s: give it one", route)
			got := send(t, h, stranger, strings.Fields(route)[0], r[0], r[1])
			require.Contains(t, strings.Fields(r[2]), strconv.Itoa(got.Status), "%s on host %d: %s", route, n+1, got.Body)
			for _, secret := range []string{"giraffe-dead", "giraffe-leased", "giraffe-reason", o.message, o.keyID, before.GetQueue().GetId()} {
				if !strings.Contains(r[0]+r[1], secret) {
					require.NotContains(t, got.Body, secret, "%s on host %d", route, n+1)
				}
			}
		}
	}

	after, err := owner.Queue(t.Context(), o.queue)
	require.NoError(t, err)
	require.Equal(t, before.GetQueue().GetId(), after.GetQueue().GetId())
	require.Equal(t, before.GetQueue().GetConfigVersion(), after.GetQueue().GetConfigVersion())
	require.Equal(t, before.GetShards()[0].GetHead(), after.GetShards()[0].GetHead())
	require.EqualValues(t, 1, after.GetQueue().GetDeadLetters())
	require.Len(t, after.GetGroups(), 1)
	settled, err := o.lease.Ack(t.Context(), o.lease.Deliveries...)
	require.NoError(t, err)
	require.Equal(t, queuev1.AckStatus_ACK_STATUS_SETTLED, settled[0].Status, "the owner's lease is still his")
	rest := mustPop(t, owner, o.queue, postrider.PopOptions{Group: "giraffe-group", Batch: 10})
	require.Equal(t, []string{"giraffe-waiting"}, payloads(rest))
}

func TestARoleDoesWhatItsNameSaysOnEveryRouteOfEveryHost(t *testing.T) {
	t.Parallel()
	f := twoHosts(t)
	o := own(t, f)
	keys := map[string]string{
		"read": newKey(t, f.Hosts[0], "", adminv1.Role_ROLE_READ).GetSecret(), "write": newKey(t, f.Hosts[0], "", adminv1.Role_ROLE_WRITE).GetSecret(),
	}
	rank := map[string]int{"read": 1, "write": 2, "admin": 3}
	requests := o.requests()
	for _, h := range f.Hosts {
		doc := openapi(t, h)
		for _, route := range doc.routes() {
			method, path, _ := strings.Cut(route, " ")
			needs := doc.Paths[path][strings.ToLower(method)].Role
			require.Contains(t, rank, needs, route)
			for role, key := range keys {
				got := send(t, h, key, method, requests[route][0], requests[route][1])
				if rank[role] < rank[needs] {
					require.Equal(t, http.StatusForbidden, got.Status, "%s with %s: %s", route, role, got.Body)
					require.Equal(t, "ROLE_TOO_LOW", got.code(), route)
				} else {
					require.NotContains(t, []int{http.StatusUnauthorized, http.StatusForbidden}, got.Status, "%s with %s: %s", route, role, got.Body)
				}
			}
			require.Equal(t, http.StatusUnauthorized, send(t, h, "prk_none_0123456789012345678901234567", method, requests[route][0], requests[route][1]).Status, route)
		}
	}
}

func TestARevokedKeyIsRefusedOnEveryHostWithinSeconds(t *testing.T) {
	t.Parallel()
	f := twoHosts(t)
	made := newKey(t, f.Hosts[0], "", adminv1.Role_ROLE_READ)
	for _, h := range f.Hosts {
		require.Equal(t, http.StatusOK, send(t, h, made.GetSecret(), http.MethodGet, "/v1/queues", "").Status)
	}

	_, err := surface(f.Hosts[0], fleet.AdminKey).RevokeAPIKey(t.Context(), &adminv1.RevokeAPIKeyRequest{Id: made.GetKey().GetId()})
	require.NoError(t, err)
	revoked := time.Now()

	for n, h := range f.Hosts {
		eventually(t, func() error {
			if got := send(t, h, made.GetSecret(), http.MethodGet, "/v1/queues", ""); got.code() != "INVALID_KEY" {
				return fmt.Errorf("host %d: %d %s", n+1, got.Status, got.Body)
			}
			return nil
		})
	}
	require.Less(t, time.Since(revoked), 15*time.Second, "5 s, and what a busy machine adds")
}
