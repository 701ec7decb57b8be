package server

import (
	"context"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"postrider.dev/pkg/tenant"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/dispatcher/internal/domain/message"
)

// controlCalls is every control call of the contract on queue q, by name, as somebody who wants what is in it.
func controlCalls(b *bench, id string) map[string]func(context.Context) error {
	return map[string]func(context.Context) error{
		"GetQueue": func(ctx context.Context) error {
			_, err := b.GetQueue(ctx, &queuev1.GetQueueRequest{Queue: "q"})
			return err
		},
		"DeleteQueue": func(ctx context.Context) error {
			_, err := b.DeleteQueue(ctx, &queuev1.DeleteQueueRequest{Queue: "q", Force: true})
			return err
		},
		"ListPartitions": func(ctx context.Context) error {
			_, err := b.ListPartitions(ctx, &queuev1.ListPartitionsRequest{Queue: "q"})
			return err
		},
		"DeleteGroup": func(ctx context.Context) error {
			_, err := b.DeleteGroup(ctx, &queuev1.DeleteGroupRequest{Queue: "q", Group: "g"})
			return err
		},
		"SeekGroup": func(ctx context.Context) error {
			_, err := b.SeekGroup(ctx, &queuev1.SeekGroupRequest{Queue: "q", Group: "g", To: "latest"})
			return err
		},
		"ListDeadLetters": func(ctx context.Context) error {
			_, err := b.ListDeadLetters(ctx, &queuev1.ListDeadLettersRequest{Queue: "q"})
			return err
		},
		"GetDeadLetter": func(ctx context.Context) error {
			_, err := b.GetDeadLetter(ctx, &queuev1.GetDeadLetterRequest{Queue: "q", Id: id})
			return err
		},
		"RedriveDeadLetters": func(ctx context.Context) error {
			_, err := b.RedriveDeadLetters(ctx, &queuev1.RedriveDeadLettersRequest{Queue: "q", Ids: []string{id}})
			return err
		},
		"RotateQueueKey": func(ctx context.Context) error {
			_, err := b.RotateQueueKey(ctx, &queuev1.RotateQueueKeyRequest{Queue: "q"})
			return err
		},
		"PurgeDeadLetters": func(ctx context.Context) error {
			_, err := b.PurgeDeadLetters(ctx, &queuev1.PurgeDeadLettersRequest{Queue: "q", Ids: []string{id}})
			return err
		},
		"LookupMessage": func(ctx context.Context) error {
			_, err := b.LookupMessage(ctx, &queuev1.LookupMessageRequest{Queue: "q", ClientId: "c"})
			return err
		},
		"DeleteMessage": func(ctx context.Context) error {
			_, err := b.DeleteMessage(ctx, &queuev1.DeleteMessageRequest{Queue: "q", ClientId: "c"})
			return err
		},
		"PeekMessages": func(ctx context.Context) error {
			_, err := b.PeekMessages(ctx, &queuev1.PeekMessagesRequest{Queue: "q"})
			return err
		},
		"ConfigureQueue": func(ctx context.Context) error {
			_, err := b.ConfigureQueue(ctx, &queuev1.ConfigureQueueRequest{Queue: "q"})
			return err
		},
		"ListQueues": func(ctx context.Context) error { _, err := b.ListQueues(ctx, &queuev1.ListQueuesRequest{}); return err },
		"CreateGroup": func(ctx context.Context) error {
			_, err := b.CreateGroup(ctx, &queuev1.CreateGroupRequest{Queue: "q", Group: "h"})
			return err
		},
	}
}

// hotCalls are the engine's: they come through Exchange, but for Transact.
func hotCalls() []string { return []string{"Push", "Pop", "Ack", "Renew", "Release", "Transact"} }

func TestEveryCallOfTheContractIsInTheTables(t *testing.T) {
	t.Parallel()
	calls := controlCalls(&bench{}, "")
	for _, m := range queuev1.QueueService_ServiceDesc.Methods {
		if !slices.Contains(hotCalls(), m.MethodName) {
			require.Contains(t, calls, m.MethodName)
		}
	}
	require.Len(t, calls, len(queuev1.QueueService_ServiceDesc.Methods)-len(hotCalls()))
}

func TestNoTenantSeesOrTouchesAnothers(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	q := b.configured("a", "q")
	_, err := b.CreateGroup(b.as("a"), &queuev1.CreateGroupRequest{Queue: "q", Group: "g"})
	require.NoError(t, err)
	b.push(q, message.Message{Partition: "default", ClientID: "c", Payload: []byte("secret")})
	id := b.deadLetter(q, "secret")
	calls := controlCalls(b, id)
	b.audited()
	creates := map[string]bool{"ConfigureQueue": true, "ListQueues": true, "CreateGroup": true}

	for name, call := range calls {
		if !creates[name] {
			t.Log(name)
			refused(t, call(b.as("b")), codes.NotFound, "QUEUE_NOT_FOUND")
		}
	}
	list, err := b.ListQueues(b.as("b"), &queuev1.ListQueuesRequest{})
	require.NoError(t, err)
	require.Empty(t, list.GetQueues())
	require.Empty(t, b.audited())

	for name := range creates { // the other tenant makes its own of the same name
		require.NoError(t, calls[name](b.as("b")), name)
	}
	own, err := b.control.FindQueue(t.Context(), "b", "q")
	require.NoError(t, err)
	require.NotEqual(t, q.ID, own.ID)
	refused(t, calls["GetDeadLetter"](b.as("b")), codes.NotFound, "DEAD_LETTER_NOT_FOUND")
	refused(t, calls["LookupMessage"](b.as("b")), codes.NotFound, "MESSAGE_NOT_FOUND")
	refused(t, calls["DeleteGroup"](b.as("b")), codes.NotFound, "GROUP_NOT_FOUND")
	require.NoError(t, calls["RedriveDeadLetters"](b.as("b")))
	require.NoError(t, calls["PurgeDeadLetters"](b.as("b")))
	require.NoError(t, calls["DeleteQueue"](b.as("b")))

	after, err := b.control.FindQueue(t.Context(), "a", "q")
	require.NoError(t, err)
	require.Equal(t, q, after)
	got, err := b.GetQueue(b.as("a"), &queuev1.GetQueueRequest{Queue: "q"})
	require.NoError(t, err)
	require.Equal(t, int64(1), got.GetQueue().GetMessages())
	require.Equal(t, int64(1), got.GetQueue().GetDeadLetters(), "not redriven or purged by the other")
	require.Len(t, got.GetGroups(), 1)
}

func TestNothingIsDoneForACallerWithoutTenant(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for name, call := range controlCalls(b, "x") {
		t.Log(name)
		refused(t, call(t.Context()), codes.Unauthenticated, "UNAUTHENTICATED")
		refused(t, call(b.as("No Tenant!")), codes.Unauthenticated, "UNAUTHENTICATED")
		nobody := tenant.NewContext(t.Context(), tenant.Caller{Tenant: "a", Role: tenant.Admin})
		refused(t, call(nobody), codes.Unauthenticated, "UNAUTHENTICATED")
	}
}
