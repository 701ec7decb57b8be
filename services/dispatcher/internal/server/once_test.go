package server

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"postrider.dev/pkg/idempotency"
	"postrider.dev/pkg/tenant"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
)

// header is the server's side of a call, as far as headers go.
type header struct{ md metadata.MD }

func (*header) Method() string                   { return "" }
func (h *header) SetHeader(md metadata.MD) error { h.md = metadata.Join(h.md, md); return nil }
func (*header) SendHeader(metadata.MD) error     { return nil }
func (*header) SetTrailer(metadata.MD) error     { return nil }

// keyed is as, with an idempotency key; the header shows whether the answer is a replay.
func (b *bench) keyed(t tenant.ID, keys ...string) (context.Context, *header) {
	h := &header{}
	ctx := metadata.NewIncomingContext(b.as(t), metadata.MD{idempotency.Metadata: keys})
	return grpc.NewContextWithServerTransportStream(ctx, h), h
}

// verb is a mutating control call. undo makes the world such that running it again would be seen.
type verb struct {
	call  func(context.Context) (proto.Message, error)
	other func(context.Context) error // the same call with another body
	undo  func()
}

func (b *bench) verbs() map[string]verb {
	q := b.configured("a", "q")
	first, second := b.deadLetter(q, "1"), b.deadLetter(q, "2")
	purged := b.configured("a", "purged")
	b.deadLetter(purged, "1")
	b.deadLetter(purged, "2")
	return map[string]verb{
		"configure": {
			call: func(ctx context.Context) (proto.Message, error) {
				return b.ConfigureQueue(ctx, &queuev1.ConfigureQueueRequest{Queue: "new"})
			},
			other: func(ctx context.Context) error {
				_, err := b.ConfigureQueue(ctx, &queuev1.ConfigureQueueRequest{Queue: "new", Reset_: []string{"lease"}})
				return err
			},
			undo: func() { b.exec("UPDATE dispatcher.queues SET deleted_at = now() WHERE name = 'new'") },
		},
		"create group": {
			call: func(ctx context.Context) (proto.Message, error) {
				return b.CreateGroup(ctx, &queuev1.CreateGroupRequest{Queue: "fresh", Group: "g"})
			},
			other: func(ctx context.Context) error {
				_, err := b.CreateGroup(ctx, &queuev1.CreateGroupRequest{Queue: "fresh", Group: "h"})
				return err
			},
			undo: func() { b.exec("UPDATE dispatcher.queues SET deleted_at = now() WHERE name = 'fresh'") },
		},
		"redrive": {
			call: func(ctx context.Context) (proto.Message, error) {
				return b.RedriveDeadLetters(ctx, &queuev1.RedriveDeadLettersRequest{Queue: "q", Group: "g", Limit: 1})
			},
			other: func(ctx context.Context) error {
				_, err := b.RedriveDeadLetters(ctx, &queuev1.RedriveDeadLettersRequest{Queue: "q", Ids: []string{first, second}})
				return err
			},
			undo: func() {},
		},
		"purge": {
			call: func(ctx context.Context) (proto.Message, error) {
				return b.PurgeDeadLetters(ctx, &queuev1.PurgeDeadLettersRequest{Queue: "purged", All: true, Limit: 1})
			},
			other: func(ctx context.Context) error {
				_, err := b.PurgeDeadLetters(ctx, &queuev1.PurgeDeadLettersRequest{Queue: "purged", All: true, Limit: 2})
				return err
			},
			undo: func() {},
		},
	}
}

func TestEveryMutatingControlCallUnderAKeyHappensOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for name, v := range b.verbs() {
		b.audited()
		ctx, h := b.keyed("a", "k")
		first, err := v.call(ctx)
		require.NoError(t, err, name)
		require.False(t, idempotency.Replayed(h.md), name)
		require.Len(t, b.audited(), 1, name)
		v.undo()
		b.notes.taken()

		ctx, h = b.keyed("a", "k")
		again, err := v.call(ctx)
		require.NoError(t, err, name)
		require.True(t, idempotency.Replayed(h.md), name)
		require.True(t, proto.Equal(first, again), "%s: %v and %v", name, first, again)
		require.Empty(t, b.audited(), name)
		require.Empty(t, b.notes.taken(), name)

		ctx, _ = b.keyed("a", "k")
		refused(t, v.other(ctx), codes.FailedPrecondition, "IDEMPOTENCY_KEY_REUSED", "idempotency_key")
	}
}

func TestADeleteUnderAKeyIsNotRepeatedOnWhatIsMadeLater(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for range 2 {
		b.configured("a", "q")
		_, err := b.CreateGroup(b.as("a"), &queuev1.CreateGroupRequest{Queue: "q", Group: "g"})
		require.NoError(t, err)
		ctx, _ := b.keyed("a", "group")
		_, err = b.DeleteGroup(ctx, &queuev1.DeleteGroupRequest{Queue: "q", Group: "g"})
		require.NoError(t, err)
		ctx, _ = b.keyed("a", "queue")
		_, err = b.DeleteQueue(ctx, &queuev1.DeleteQueueRequest{Queue: "q"})
		require.NoError(t, err)
	}

	resp, err := b.GetQueue(b.as("a"), &queuev1.GetQueueRequest{Queue: "q"})
	require.NoError(t, err, "the second queue was not deleted by the repeat")
	require.Len(t, resp.GetGroups(), 1)
}

func TestAKeyIsOfItsTenantAlone(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for _, of := range []tenant.ID{"a", "b"} {
		ctx, h := b.keyed(of, "k")
		_, err := b.ConfigureQueue(ctx, &queuev1.ConfigureQueueRequest{Queue: "q" + of.String()})
		require.NoError(t, err)
		require.False(t, idempotency.Replayed(h.md))
	}
}

func TestABadKeyIsRefusedAndNothingIsDone(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for reason, keys := range map[string][]string{"NAME_EMPTY": {""}, "CONFLICTING_FIELDS": {"a", "b"}, "NAME_TOO_LONG": {string(make([]byte, 256))}} {
		ctx, _ := b.keyed("a", keys...)
		_, err := b.ConfigureQueue(ctx, &queuev1.ConfigureQueueRequest{Queue: "q"})
		refused(t, err, codes.InvalidArgument, reason, "idempotency_key")
		_, err = b.RedriveDeadLetters(ctx, &queuev1.RedriveDeadLettersRequest{Queue: "q", Group: "g"})
		refused(t, err, codes.InvalidArgument, reason, "idempotency_key")
	}
	require.Empty(t, b.audited())
}

func TestAControlCallThatFailsMayBeCorrectedUnderItsKey(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	ctx, _ := b.keyed("a", "k")
	_, err := b.DeleteQueue(ctx, &queuev1.DeleteQueueRequest{Queue: "q"})
	refused(t, err, codes.NotFound, "QUEUE_NOT_FOUND")
	b.configured("a", "q")

	ctx, h := b.keyed("a", "k")
	_, err = b.DeleteQueue(ctx, &queuev1.DeleteQueueRequest{Queue: "q", Force: true})
	require.NoError(t, err)
	require.False(t, idempotency.Replayed(h.md))
}

// TestARedriveThatStoppedInItsMiddleGoesOnUnderItsKey makes the second of its transactions fail.
func TestARedriveThatStoppedInItsMiddleGoesOnUnderItsKey(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	q := b.configured("a", "q")
	ids := make([]string, 300) // a transaction takes 250
	for i := range ids {
		ids[i] = b.deadLetter(q, "x")
	}
	b.audited()
	req := &queuev1.RedriveDeadLettersRequest{Queue: "q", Group: "g", Limit: 300}
	b.exec("ALTER TABLE audit.outbox ADD CONSTRAINT second_ck CHECK (detail->>'redriven' NOT LIKE '%' || '" + ids[299] + "' || '%')")
	ctx, _ := b.keyed("a", "k")
	_, err := b.RedriveDeadLetters(ctx, req)
	require.Error(t, err)
	require.Len(t, b.audited(), 1, "the first transaction is done")
	late := b.deadLetter(q, "late")
	b.exec("ALTER TABLE audit.outbox DROP CONSTRAINT second_ck")

	for i := range 2 {
		ctx, h := b.keyed("a", "k")
		resp, err := b.RedriveDeadLetters(ctx, req)
		require.NoError(t, err)
		require.Equal(t, i == 1, idempotency.Replayed(h.md))
		require.True(t, proto.Equal(&queuev1.RedriveDeadLettersResponse{Redriven: 300}, resp), resp)
	}
	require.Len(t, b.audited(), 1)
	d, err := b.GetDeadLetter(b.as("a"), &queuev1.GetDeadLetterRequest{Queue: "q", Id: late})
	require.NoError(t, err)
	require.Nil(t, d.GetDeadLetter().GetRedrivenAt(), "what failed later was not asked for")
}

// TestAPurgeThatStoppedInItsMiddleGoesOnUnderItsKey makes the second of its transactions fail.
func TestAPurgeThatStoppedInItsMiddleGoesOnUnderItsKey(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	q := b.configured("a", "q")
	ids := make([]string, 602) // a transaction takes 500
	for i := range ids {
		ids[i] = b.deadLetter(q, "x")
	}
	b.audited()
	req := &queuev1.PurgeDeadLettersRequest{Queue: "q", All: true, Limit: 600}
	b.exec("ALTER TABLE audit.outbox ADD CONSTRAINT second_ck CHECK (detail->>'purged' NOT LIKE '%' || '" + ids[599] + "' || '%')")
	ctx, _ := b.keyed("a", "k")
	_, err := b.PurgeDeadLetters(ctx, req)
	require.Error(t, err)
	require.Len(t, b.audited(), 1, "the first transaction is done")
	b.exec("ALTER TABLE audit.outbox DROP CONSTRAINT second_ck")

	for i := range 2 {
		ctx, h := b.keyed("a", "k")
		resp, err := b.PurgeDeadLetters(ctx, req)
		require.NoError(t, err)
		require.Equal(t, i == 1, idempotency.Replayed(h.md))
		require.True(t, proto.Equal(&queuev1.PurgeDeadLettersResponse{Purged: 600, More: true}, resp), resp)
	}
	page, err := b.ListDeadLetters(b.as("a"), &queuev1.ListDeadLettersRequest{Queue: "q"})
	require.NoError(t, err)
	require.Len(t, page.GetDeadLetters(), 2, "only what was asked for at first")
}
