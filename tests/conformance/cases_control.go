package conformance

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	adminv1 "postrider.dev/proto/gen/postrider/admin/v1"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
)

func configureMerges(t *testing.T, k kit) {
	q := k.name("configure")
	first, err := k.ConfigureQueue(t.Context(), &queuev1.ConfigureQueueRequest{
		Queue: q, Options: &queuev1.QueueOptions{Lease: durationpb.New(10 * time.Second), MaxAttempts: proto.Int32(3)},
	})
	require.NoError(t, err)
	require.True(t, first.GetCreated())

	second, err := k.ConfigureQueue(t.Context(), &queuev1.ConfigureQueueRequest{
		Queue: q, Options: &queuev1.QueueOptions{Backoff: durationpb.New(2 * time.Second)}, Reset_: []string{"max_attempts"},
	})

	require.NoError(t, err)
	require.False(t, second.GetCreated())
	options := second.GetQueue().GetOptions()
	require.Equal(t, 10*time.Second, options.GetLease().AsDuration())
	require.Equal(t, 2*time.Second, options.GetBackoff().AsDuration())
	require.EqualValues(t, 5, options.GetMaxAttempts())
	require.Greater(t, second.GetQueue().GetConfigVersion(), first.GetQueue().GetConfigVersion())
	_, err = k.ConfigureQueue(t.Context(), &queuev1.ConfigureQueueRequest{Queue: q, Reset_: []string{"nonsense"}})
	require.Equal(t, "UNKNOWN_OPTION", Code(err), "%v", err)
}

func listShowDelete(t *testing.T, k kit) {
	q := k.name("listed")
	push(t, k, q, item("p", `1`))
	listed, err := k.ListQueues(t.Context(), &queuev1.ListQueuesRequest{Prefix: q})
	require.NoError(t, err)
	require.Len(t, listed.GetQueues(), 1)
	require.Equal(t, q, listed.GetQueues()[0].GetName())
	got := pop(t, k, q, 1)

	shown, err := k.GetQueue(t.Context(), &queuev1.GetQueueRequest{Queue: q})
	require.NoError(t, err)
	require.EqualValues(t, 1, shown.GetShards()[0].GetHead())
	require.Equal(t, "default", shown.GetGroups()[0].GetName())
	_, err = k.DeleteQueue(t.Context(), &queuev1.DeleteQueueRequest{Queue: q})
	require.Equal(t, "QUEUE_LEASED", Code(err), "%v", err)
	ackAll(t, k, q, got)
	_, err = k.DeleteQueue(t.Context(), &queuev1.DeleteQueueRequest{Queue: q, Force: true})
	require.NoError(t, err)

	_, err = k.GetQueue(t.Context(), &queuev1.GetQueueRequest{Queue: q})
	require.Equal(t, "QUEUE_NOT_FOUND", Code(err), "%v", err)
}

func listPartitions(t *testing.T, k kit) {
	q := k.name("partitions")
	push(t, k, q, item("a", `1`), item("b", `2`), item("a", `3`))
	require.Eventually(t, func() bool { // the listing may be a second behind
		listed, err := k.ListPartitions(t.Context(), &queuev1.ListPartitionsRequest{Queue: q, PageSize: 10})
		return err == nil && len(listed.GetPartitions()) == 2 && listed.GetPartitions()[0].GetName() == "a"
	}, 10*time.Second, 20*time.Millisecond)
}

func groups(t *testing.T, k kit) {
	q := k.name("groups")
	push(t, k, q, item("p", `1`))
	for _, want := range []bool{true, false} {
		made, err := k.CreateGroup(t.Context(), &queuev1.CreateGroupRequest{Queue: q, Group: "g/1"})
		require.NoError(t, err)
		require.Equal(t, want, made.GetCreated())
	}

	_, err := k.DeleteGroup(t.Context(), &queuev1.DeleteGroupRequest{Queue: q, Group: "g/1"})
	require.NoError(t, err)

	_, err = k.DeleteGroup(t.Context(), &queuev1.DeleteGroupRequest{Queue: q, Group: "g/1"})
	require.Equal(t, "GROUP_NOT_FOUND", Code(err), "%v", err)
}

func lookup(t *testing.T, k kit) {
	q := k.name("lookup")
	it := item("p", `{ "x" : 1 }`)
	it.ClientId = "order 7/8"
	pushed := push(t, k, q, it)

	found, err := k.LookupMessage(t.Context(), &queuev1.LookupMessageRequest{Queue: q, Partition: "p", ClientId: "order 7/8"})

	require.NoError(t, err)
	require.Equal(t, pushed.GetResults()[0].GetMessageId(), found.GetMessageId())
	require.Equal(t, `{ "x" : 1 }`, string(found.GetPayload()))
	_, err = k.LookupMessage(t.Context(), &queuev1.LookupMessageRequest{Queue: q, Partition: "p", ClientId: "other"})
	require.Equal(t, "MESSAGE_NOT_FOUND", Code(err), "%v", err)
}

func oddNames(t *testing.T, k kit) {
	for _, odd := range []string{"a/b", "100%", "a%2Fb", "x:y", "na me", "日本語", "a?b#c", "..%2e", "~", "a+b", "messages"} {
		q := k.name(odd) + odd
		push(t, k, q, item(odd, `1`))
		got := pop(t, k, q, 1)
		require.Equal(t, odd, got.GetDeliveries()[0].GetPartition())
		ackAll(t, k, q, got)
		shown, err := k.GetQueue(t.Context(), &queuev1.GetQueueRequest{Queue: q})
		require.NoError(t, err)
		require.Equal(t, q, shown.GetQueue().GetName())
	}
}

func newKey(t *testing.T, k kit, tenant string, role adminv1.Role) *adminv1.CreateAPIKeyResponse {
	t.Helper()
	made, err := k.CreateAPIKey(t.Context(), &adminv1.CreateAPIKeyRequest{Tenant: tenant, Name: "case", Role: role})
	require.NoError(t, err)
	require.NotEmpty(t, made.GetSecret())
	return made
}

func roles(t *testing.T, k kit) {
	q := k.name("roles")
	push(t, k, q, item("p", `1`))
	reader := k.with(newKey(t, k, "", adminv1.Role_ROLE_READ).GetSecret())
	writer := k.with(newKey(t, k, "", adminv1.Role_ROLE_WRITE).GetSecret())

	_, err := reader.GetQueue(t.Context(), &queuev1.GetQueueRequest{Queue: q})
	require.NoError(t, err)
	_, err = reader.Pop(t.Context(), &queuev1.PopRequest{Queue: q})
	require.Equal(t, "ROLE_TOO_LOW", Code(err), "%v", err)
	_, err = writer.Pop(t.Context(), &queuev1.PopRequest{Queue: q})
	require.NoError(t, err)
	_, err = writer.ConfigureQueue(t.Context(), &queuev1.ConfigureQueueRequest{Queue: q})
	require.Equal(t, "ROLE_TOO_LOW", Code(err), "%v", err)
	_, err = writer.ListAPIKeys(t.Context(), &adminv1.ListAPIKeysRequest{})
	require.Equal(t, "ROLE_TOO_LOW", Code(err), "%v", err)
	_, err = k.with("").GetQueue(t.Context(), &queuev1.GetQueueRequest{Queue: q})
	require.Equal(t, "MISSING_KEY", Code(err), "%v", err)
	_, err = k.with("prk_none_0123456789012345678901234567").GetQueue(t.Context(), &queuev1.GetQueueRequest{Queue: q})
	require.Equal(t, "INVALID_KEY", Code(err), "%v", err)
}

func tenants(t *testing.T, k kit) {
	q, other := k.name("private"), k.name("tenant")
	push(t, k, q, item("p", `1`))
	_, err := k.CreateTenant(t.Context(), &adminv1.CreateTenantRequest{Id: other})
	require.NoError(t, err)
	_, err = k.CreateTenant(t.Context(), &adminv1.CreateTenantRequest{Id: other})
	require.Equal(t, "TENANT_EXISTS", Code(err), "%v", err)
	mine := newKey(t, k, "", adminv1.Role_ROLE_WRITE)
	stranger := k.with(newKey(t, k, other, adminv1.Role_ROLE_ADMIN).GetSecret())

	_, err = stranger.GetQueue(t.Context(), &queuev1.GetQueueRequest{Queue: q})
	require.Equal(t, "QUEUE_NOT_FOUND", Code(err), "%v", err)
	listed, err := stranger.ListQueues(t.Context(), &queuev1.ListQueuesRequest{})
	require.NoError(t, err)
	require.Empty(t, listed.GetQueues())
	popped, err := stranger.Pop(t.Context(), &queuev1.PopRequest{Queue: q})
	require.NoError(t, err)
	require.Empty(t, popped.GetDeliveries())
	_, err = stranger.ListTenants(t.Context(), &adminv1.ListTenantsRequest{})
	require.Equal(t, "DEFAULT_TENANT_ONLY", Code(err), "%v", err)
	_, err = stranger.ListNodes(t.Context(), &adminv1.ListNodesRequest{})
	require.Equal(t, "DEFAULT_TENANT_ONLY", Code(err), "%v", err)
	_, err = stranger.GetSpool(t.Context(), &adminv1.GetSpoolRequest{})
	require.Equal(t, "DEFAULT_TENANT_ONLY", Code(err), "%v", err)
	_, err = stranger.GetMesh(t.Context(), &adminv1.GetMeshRequest{})
	require.Equal(t, "DEFAULT_TENANT_ONLY", Code(err), "%v", err)
	_, err = stranger.GetModes(t.Context(), &adminv1.GetModesRequest{})
	require.Equal(t, "DEFAULT_TENANT_ONLY", Code(err), "%v", err)
	_, err = stranger.SetMode(t.Context(), &adminv1.SetModeRequest{Mode: "pop_maintenance", Enabled: new(true)})
	require.Equal(t, "DEFAULT_TENANT_ONLY", Code(err), "%v", err)
	_, err = stranger.ListAPIKeys(t.Context(), &adminv1.ListAPIKeysRequest{Tenant: "default"})
	require.Equal(t, "DEFAULT_TENANT_ONLY", Code(err), "%v", err)
	_, err = stranger.RevokeAPIKey(t.Context(), &adminv1.RevokeAPIKeyRequest{Id: mine.GetKey().GetId()})
	require.Equal(t, "KEY_NOT_FOUND", Code(err), "%v", err)
	keys, err := stranger.ListAPIKeys(t.Context(), &adminv1.ListAPIKeysRequest{})
	require.NoError(t, err)
	require.Len(t, keys.GetKeys(), 1)
}

func revocation(t *testing.T, k kit) {
	made := newKey(t, k, "", adminv1.Role_ROLE_READ)
	reader := k.with(made.GetSecret())
	_, err := reader.ListQueues(t.Context(), &queuev1.ListQueuesRequest{PageSize: 1})
	require.NoError(t, err)

	_, err = k.RevokeAPIKey(t.Context(), &adminv1.RevokeAPIKeyRequest{Id: made.GetKey().GetId()})
	require.NoError(t, err)

	require.Eventually(t, func() bool {
		_, err := reader.ListQueues(t.Context(), &queuev1.ListQueuesRequest{PageSize: 1})
		return Code(err) == "INVALID_KEY"
	}, 10*time.Second, 50*time.Millisecond)
}
