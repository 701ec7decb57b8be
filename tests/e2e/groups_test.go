package e2e

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"postrider.dev/pkg/pg"
	adminv1 "postrider.dev/proto/gen/postrider/admin/v1"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	postrider "postrider.dev/sdk"
	"postrider.dev/tests/fleet"
)

func TestALeaseOverSeveralPartitionsIsRenewedAndReleasedAsOne(t *testing.T) {
	t.Parallel()
	f := twoHosts(t)
	a, b := f.Client(t, 0), f.Client(t, 1)
	_, err := a.Configure(t.Context(), "orders", &queuev1.QueueOptions{MaxAttempts: new(int32(1))})
	require.NoError(t, err)
	for i := range 5 {
		mustPush(t, a, "orders", fmt.Sprint("p", i), strconv.Itoa(i))
	}
	lease := mustPop(t, a, "orders", postrider.PopOptions{Batch: 10, Lease: shortLease})
	require.Len(t, lease.Deliveries, 5)

	_, err = b.Queues().Renew(t.Context(), &queuev1.RenewRequest{Queue: "orders", Lease: lease.Token, Duration: durationpb.New(time.Minute)})
	require.NoError(t, err)
	none, err := b.Pop(t.Context(), "orders", postrider.PopOptions{Batch: 10, Wait: 2 * shortLease}) // beyond the first lease
	require.NoError(t, err)
	require.Nil(t, none, "all five are held by the renewed lease")

	for range 3 { // more often than there are attempts: a release charges nothing
		require.NoError(t, lease.Release(t.Context()))
		lease = mustPop(t, b, "orders", postrider.PopOptions{Batch: 10, Lease: time.Minute})
		got := payloads(lease)
		slices.Sort(got)
		require.Equal(t, []string{"0", "1", "2", "3", "4"}, got)
	}
}

func TestADeletedQueueComesBackAsAnotherAndKeepsItsDeadLetters(t *testing.T) {
	t.Parallel()
	f := twoHosts(t)
	a, b := f.Client(t, 0), f.Client(t, 1)
	mustPush(t, a, "orders", "p", "bad")
	mustPush(t, a, "orders", "p", "held")
	bad := mustPop(t, a, "orders", postrider.PopOptions{})
	_, err := bad.Reject(t.Context(), bad.Deliveries[0], "no")
	require.NoError(t, err)
	before, err := a.Queue(t.Context(), "orders")
	require.NoError(t, err)
	held := mustPop(t, b, "orders", postrider.PopOptions{Lease: time.Hour})

	require.Equal(t, "QUEUE_LEASED", postrider.Code(a.DeleteQueue(t.Context(), "orders", false)), "refused while leased")
	require.NoError(t, a.DeleteQueue(t.Context(), "orders", true))

	_, err = held.Ack(t.Context(), held.Deliveries...)
	require.Error(t, err, "its leases are worth nothing")
	eventually(t, func() error { // what another host remembers of it is gone after its hint, or its next look
		results, err := b.Push(t.Context(), "orders", postrider.Message{Partition: "p", Payload: []byte("new")})
		if err != nil {
			return err
		}
		return results[0].Err
	})
	after, err := a.Queue(t.Context(), "orders")
	require.NoError(t, err)
	require.NotEqual(t, before.GetQueue().GetId(), after.GetQueue().GetId())
	require.Equal(t, []string{"new"}, payloads(mustPop(t, a, "orders", postrider.PopOptions{Batch: 10})), "nothing of the old log")
	letters := 0
	for d, err := range b.DeadLetters(t.Context(), "orders", "") {
		require.NoError(t, err)
		require.Equal(t, "no", d.GetReason())
		letters++
	}
	require.Equal(t, 1, letters)
}

func TestAGroupMadeBeforeThePushesBeginsThere(t *testing.T) {
	t.Parallel()
	f := twoHosts(t)
	a, b := f.Client(t, 0), f.Client(t, 1)
	mustPush(t, a, "news", "p", "old")
	_, err := b.CreateGroup(t.Context(), "news", "late", &queuev1.GroupOptions{Start: "latest"})
	require.NoError(t, err)

	mustPush(t, a, "news", "p", "new")

	require.Equal(t, []string{"new"}, payloads(mustPop(t, b, "news", postrider.PopOptions{Group: "late", Batch: 10})))
	require.Equal(t, []string{"old", "new"}, payloads(mustPop(t, a, "news", postrider.PopOptions{Group: "early", Batch: 10})))
	_, err = a.CreateGroup(t.Context(), "news", "odd", &queuev1.GroupOptions{Start: "yesterday"})
	require.Equal(t, http.StatusBadRequest, statusOf(err), "a bad start is an error, never the beginning: %v", err)
}

// statusOf is the HTTP status that goes with an SDK error of a bad argument.
func statusOf(err error) int {
	if e, ok := errors.AsType[*postrider.Error](err); ok && e.Status.String() == "InvalidArgument" {
		return http.StatusBadRequest
	}
	return 0
}

func TestAMessageIsFoundAndSettledByItsClientIDFromTheOtherHost(t *testing.T) {
	t.Parallel()
	f := twoHosts(t)
	a, b := f.Client(t, 0), f.Client(t, 1)
	for _, id := range []string{"order/1", "order/2"} {
		results, err := a.Push(t.Context(), "orders", postrider.Message{Partition: "p", Payload: []byte(id), ClientID: id})
		require.NoError(t, err)
		require.NoError(t, results[0].Err)
	}

	found, err := b.Lookup(t.Context(), "orders", "p", "order/2")
	require.NoError(t, err)
	require.Equal(t, "order/2", string(found.GetPayload()))
	_, err = b.Lookup(t.Context(), "orders", "q", "order/2")
	require.Equal(t, "MESSAGE_NOT_FOUND", postrider.Code(err))
	lease := mustPop(t, a, "orders", postrider.PopOptions{Batch: 2, Lease: time.Minute})
	settled, err := b.Settle(t.Context(), &queuev1.AckRequest{Queue: "orders", Lease: lease.Token, Settlements: []*queuev1.Settlement{
		{ClientId: "order/1", Partition: "p"}, {ClientId: "nobody", Partition: "p"},
	}})
	require.NoError(t, err)
	require.Equal(t, queuev1.AckStatus_ACK_STATUS_SETTLED, settled.GetResults()[0].GetStatus())
	require.NotNil(t, settled.GetResults()[1].GetError())
	require.NoError(t, lease.Release(t.Context()))
	require.Equal(t, []string{"order/2"}, payloads(mustPop(t, b, "orders", postrider.PopOptions{Batch: 10})))
}

func TestTheLimitsOfAQueueHoldOnEveryHost(t *testing.T) {
	t.Parallel()
	f := twoHosts(t)
	a, b := f.Client(t, 0), f.Client(t, 1)
	_, err := a.Configure(t.Context(), "small", &queuev1.QueueOptions{MaxGroups: new(int32(2)), MaxMessageBytes: new(int32(100))})
	require.NoError(t, err)

	for _, c := range []*postrider.Client{a, b} {
		results, err := c.Push(t.Context(), "small", postrider.Message{Payload: make([]byte, 101)}, postrider.Message{Payload: make([]byte, 50)})
		require.NoError(t, err)
		require.Equal(t, "MESSAGE_TOO_LARGE", postrider.Code(results[0].Err))
		require.NoError(t, results[1].Err)
	}
	mustPop(t, a, "small", postrider.PopOptions{Group: "g1"})
	mustPop(t, b, "small", postrider.PopOptions{Group: "g2"})
	for _, c := range []*postrider.Client{a, b} {
		_, err := c.Pop(t.Context(), "small", postrider.PopOptions{Group: "g3"})
		require.Equal(t, "TOO_MANY_GROUPS", postrider.Code(err), "%v", err)
	}
	require.NoError(t, b.DeleteGroup(t.Context(), "small", "g2"))
	mustPop(t, a, "small", postrider.PopOptions{Group: "g3"})
}

func TestEveryControlActionLeavesAnAuditEntryWithItsActor(t *testing.T) {
	t.Parallel()
	f := twoHosts(t)
	h := f.Hosts[1]
	_, err := surface(h, fleet.AdminKey).CreateTenant(t.Context(), &adminv1.CreateTenantRequest{Id: "acme"})
	require.NoError(t, err)
	admin := newKey(t, h, "acme", adminv1.Role_ROLE_ADMIN)
	victim := newKey(t, h, "acme", adminv1.Role_ROLE_READ).GetKey().GetId()
	c := fleet.Dial(t, admin.GetSecret(), h.GRPC)
	_, err = c.Configure(t.Context(), "orders", &queuev1.QueueOptions{MaxAttempts: new(int32(3))})
	require.NoError(t, err)
	_, err = c.CreateGroup(t.Context(), "orders", "g", nil)
	require.NoError(t, err)
	mustPush(t, c, "orders", "p", "x")
	lease := mustPop(t, c, "orders", postrider.PopOptions{Group: "g"})
	_, err = lease.Reject(t.Context(), lease.Deliveries[0], "no")
	require.NoError(t, err)
	for d, err := range c.DeadLetters(t.Context(), "orders", "g") {
		require.NoError(t, err)
		_, err = c.Redrive(t.Context(), "orders", d.GetId())
		require.NoError(t, err)
	}
	_, err = c.Seek(t.Context(), "orders", "g", postrider.Place{At: "latest"})
	require.NoError(t, err)
	require.NoError(t, c.DeleteGroup(t.Context(), "orders", "g"))
	require.NoError(t, c.DeleteQueue(t.Context(), "orders", true))
	_, err = surface(h, admin.GetSecret()).RevokeAPIKey(t.Context(), &adminv1.RevokeAPIKeyRequest{Id: victim})
	require.NoError(t, err)

	rows, err := f.DB.Open(pg.Options{}).Query(t.Context(), "SELECT actor, action, resource FROM audit.outbox WHERE tenant_id = 'acme' ORDER BY id")
	require.NoError(t, err)
	defer rows.Close()
	by := map[string]string{}
	for rows.Next() {
		var actor, action, resource string
		require.NoError(t, rows.Scan(&actor, &action, &resource))
		by[action] = actor
		require.NotContains(t, actor+resource, admin.GetSecret())
	}
	require.NoError(t, rows.Err())
	for _, action := range []string{"queue.configure", "group.create", "dead_letter.redrive", "group.seek", "group.delete", "queue.delete", "key.revoke"} {
		require.Contains(t, by[action], admin.GetKey().GetId(), action)
	}
	for _, action := range []string{"tenant.create", "key.create"} {
		require.Contains(t, by, action)
		require.Contains(t, by[action], "admin", "%s by %s", action, by[action])
	}
}
