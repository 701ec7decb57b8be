package server

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
)

// rules collects broken requests, each with the rule it breaks.
type rules struct {
	*bench

	ctx  context.Context //nolint:containedctx // the caller's, for all of them
	rows []rule
}

type rule struct {
	reason, field string
	do            func() error
}

func (r *rules) add(reason, field string, do func() error) {
	r.rows = append(r.rows, rule{reason, field, do})
}

// bad is the reason of most.
const bad = "OUT_OF_RANGE"

func tooLong() string { return strings.Repeat("x", 256) }

func broken() *durationpb.Duration { return &durationpb.Duration{Seconds: 1, Nanos: -1} }

// TestEveryFieldIsCheckedBeforeAnythingIsDone walks the rules of every field of every call. The engine and the database are never asked.
func TestEveryFieldIsCheckedBeforeAnythingIsDone(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	r := &rules{bench: b, ctx: b.as("a")}
	for _, add := range []func(){
		r.nameRules, r.optionalNameRules, r.pageRules, r.optionRules, r.groupRules, r.hotRules, r.settlementRules, r.leaseRules, r.deadLetterRules, r.purgeRules, r.seekRules, r.peekRules, r.deleteRules, r.traceRules,
	} {
		add()
	}
	require.Greater(t, len(r.rows), 150)

	for i, row := range r.rows {
		t.Log(i, row.field, row.reason)
		refused(t, row.do(), codes.InvalidArgument, row.reason, row.field)
	}
	require.Empty(t, b.notes.taken())
	require.Empty(t, b.audited())
	list, err := b.ListQueues(r.ctx, &queuev1.ListQueuesRequest{})
	require.NoError(t, err)
	require.Empty(t, list.GetQueues())
}

func badNames() map[string]string {
	return map[string]string{"": "NAME_EMPTY", tooLong(): "NAME_TOO_LONG", "a\xffb": "NAME_NOT_UTF8", "a\x00b": "NAME_HAS_NUL"}
}

// nameRules breaks the rules of names that must be there.
func (r *rules) nameRules() {
	items := []*queuev1.PushItem{{}}
	for name, reason := range badNames() {
		for _, do := range []func() error{
			func() error { _, err := r.Push(r.ctx, &queuev1.PushRequest{Queue: name, Items: items}); return err },
			func() error { _, err := r.Pop(r.ctx, &queuev1.PopRequest{Queue: name}); return err },
			func() error {
				_, err := r.Ack(r.ctx, &queuev1.AckRequest{Queue: name, Lease: "l", AckRest: true})
				return err
			},
			func() error { _, err := r.Renew(r.ctx, &queuev1.RenewRequest{Queue: name, Lease: "l"}); return err },
			func() error { _, err := r.Release(r.ctx, &queuev1.ReleaseRequest{Queue: name, Lease: "l"}); return err },
			func() error {
				_, err := r.ConfigureQueue(r.ctx, &queuev1.ConfigureQueueRequest{Queue: name})
				return err
			},
			func() error { _, err := r.GetQueue(r.ctx, &queuev1.GetQueueRequest{Queue: name}); return err },
			func() error { _, err := r.DeleteQueue(r.ctx, &queuev1.DeleteQueueRequest{Queue: name}); return err },
			func() error {
				_, err := r.ListPartitions(r.ctx, &queuev1.ListPartitionsRequest{Queue: name})
				return err
			},
			func() error {
				_, err := r.CreateGroup(r.ctx, &queuev1.CreateGroupRequest{Queue: name, Group: "g"})
				return err
			},
			func() error {
				_, err := r.DeleteGroup(r.ctx, &queuev1.DeleteGroupRequest{Queue: name, Group: "g"})
				return err
			},
			func() error {
				_, err := r.SeekGroup(r.ctx, &queuev1.SeekGroupRequest{Queue: name, Group: "g", To: "latest"})
				return err
			},
			func() error {
				_, err := r.ListDeadLetters(r.ctx, &queuev1.ListDeadLettersRequest{Queue: name})
				return err
			},
			func() error { _, err := r.GetDeadLetter(r.ctx, &queuev1.GetDeadLetterRequest{Queue: name}); return err },
			func() error {
				_, err := r.RedriveDeadLetters(r.ctx, &queuev1.RedriveDeadLettersRequest{Queue: name, Group: "g"})
				return err
			},
			func() error {
				_, err := r.PurgeDeadLetters(r.ctx, &queuev1.PurgeDeadLettersRequest{Queue: name, Group: "g"})
				return err
			},
			func() error {
				_, err := r.RotateQueueKey(r.ctx, &queuev1.RotateQueueKeyRequest{Queue: name})
				return err
			},
			func() error {
				_, err := r.LookupMessage(r.ctx, &queuev1.LookupMessageRequest{Queue: name, ClientId: "c"})
				return err
			},
			func() error {
				_, err := r.PeekMessages(r.ctx, &queuev1.PeekMessagesRequest{Queue: name})
				return err
			},
			func() error {
				_, err := r.DeleteMessage(r.ctx, &queuev1.DeleteMessageRequest{Queue: name, ClientId: "c"})
				return err
			},
		} {
			r.add(reason, "queue", do)
		}
		r.add(reason, "group", func() error {
			_, err := r.CreateGroup(r.ctx, &queuev1.CreateGroupRequest{Queue: "q", Group: name})
			return err
		})
		r.add(reason, "group", func() error {
			_, err := r.DeleteGroup(r.ctx, &queuev1.DeleteGroupRequest{Queue: "q", Group: name})
			return err
		})
		r.add(reason, "group", func() error {
			_, err := r.SeekGroup(r.ctx, &queuev1.SeekGroupRequest{Queue: "q", Group: name, To: "latest"})
			return err
		})
		r.add(reason, "client_id", func() error {
			_, err := r.LookupMessage(r.ctx, &queuev1.LookupMessageRequest{Queue: "q", ClientId: name})
			return err
		})
	}
}

// optionalNameRules breaks the rules of names that may be absent.
func (r *rules) optionalNameRules() {
	items := []*queuev1.PushItem{{}}
	for name, reason := range badNames() {
		if name == "" {
			continue // may be absent
		}
		r.add(reason, "prefix", func() error { _, err := r.ListQueues(r.ctx, &queuev1.ListQueuesRequest{Prefix: name}); return err })
		r.add(reason, "group", func() error {
			_, err := r.ListDeadLetters(r.ctx, &queuev1.ListDeadLettersRequest{Queue: "q", Group: name})
			return err
		})
		r.add(reason, "group", func() error {
			_, err := r.RedriveDeadLetters(r.ctx, &queuev1.RedriveDeadLettersRequest{Queue: "q", Group: name})
			return err
		})
		r.add(reason, "group", func() error {
			_, err := r.PurgeDeadLetters(r.ctx, &queuev1.PurgeDeadLettersRequest{Queue: "q", Group: name})
			return err
		})
		r.add(reason, "partition", func() error {
			_, err := r.LookupMessage(r.ctx, &queuev1.LookupMessageRequest{Queue: "q", Partition: name, ClientId: "c"})
			return err
		})
		r.add(reason, "idempotency_key", func() error {
			_, err := r.Push(r.ctx, &queuev1.PushRequest{Queue: "q", Items: items, IdempotencyKey: name})
			return err
		})
		for field, req := range map[string]*queuev1.PopRequest{"group": {Group: name}, "partition": {Partition: name}, "consumer": {Consumer: name}} {
			req.Queue = "q"
			r.add(reason, field, func() error { _, err := r.Pop(r.ctx, req); return err })
		}
		r.add(reason, "group", func() error {
			_, err := r.Ack(r.ctx, &queuev1.AckRequest{Queue: "q", Group: name, Lease: "l", AckRest: true})
			return err
		})
	}
}

// pageRules breaks the rules of pages and their tokens.
func (r *rules) pageRules() {
	for _, size := range []int32{-1, 1001, 1 << 30, -1 << 31} {
		r.add(bad, "page_size", func() error { _, err := r.ListQueues(r.ctx, &queuev1.ListQueuesRequest{PageSize: size}); return err })
		r.add(bad, "page_size", func() error {
			_, err := r.ListPartitions(r.ctx, &queuev1.ListPartitionsRequest{Queue: "q", PageSize: size})
			return err
		})
		r.add(bad, "page_size", func() error {
			_, err := r.ListDeadLetters(r.ctx, &queuev1.ListDeadLettersRequest{Queue: "q", PageSize: size})
			return err
		})
	}
	for _, token := range []string{"x", "AQ", strings.Repeat("A", 5000), "AQAAAAAAAAAAAA", "\xff"} {
		r.add("TOKEN_MALFORMED", "page_token", func() error { _, err := r.ListQueues(r.ctx, &queuev1.ListQueuesRequest{PageToken: token}); return err })
		r.add("TOKEN_MALFORMED", "page_token", func() error {
			_, err := r.ListPartitions(r.ctx, &queuev1.ListPartitionsRequest{Queue: "q", PageToken: token})
			return err
		})
		r.add("TOKEN_MALFORMED", "page_token", func() error {
			_, err := r.ListDeadLetters(r.ctx, &queuev1.ListDeadLettersRequest{Queue: "q", PageToken: token})
			return err
		})
	}
}

// optionRules breaks the rules of options of queues.
func (r *rules) optionRules() {
	second := durationpb.New(time.Second)
	endless := &durationpb.Duration{Seconds: 315_576_000_000}
	for _, c := range []struct {
		field string
		o     *queuev1.QueueOptions
	}{
		{"lease", &queuev1.QueueOptions{Lease: durationpb.New(time.Second - 1)}},
		{"lease", &queuev1.QueueOptions{Lease: durationpb.New(-time.Second)}},
		{"lease", &queuev1.QueueOptions{Lease: endless}},
		{"lease", &queuev1.QueueOptions{Lease: broken()}},
		{"max_attempts", &queuev1.QueueOptions{MaxAttempts: proto.Int32(0)}},
		{"max_attempts", &queuev1.QueueOptions{MaxAttempts: proto.Int32(1001)}},
		{"backoff", &queuev1.QueueOptions{Backoff: durationpb.New(time.Hour + 1)}},
		{"backoff", &queuev1.QueueOptions{Backoff: durationpb.New(-1)}},
		{"backoff_max", &queuev1.QueueOptions{BackoffMax: durationpb.New(13 * time.Hour)}},
		{"backoff_max", &queuev1.QueueOptions{Backoff: durationpb.New(time.Minute), BackoffMax: second}},
		{"max_message_bytes", &queuev1.QueueOptions{MaxMessageBytes: proto.Int32(0)}},
		{"max_message_bytes", &queuev1.QueueOptions{MaxMessageBytes: proto.Int32(16<<20 + 1)}},
		{"idempotency_window", &queuev1.QueueOptions{IdempotencyWindow: durationpb.New(-1)}},
		{"idempotency_window", &queuev1.QueueOptions{IdempotencyWindow: durationpb.New(7*24*time.Hour + 1)}},
		{"max_groups", &queuev1.QueueOptions{MaxGroups: proto.Int32(0)}},
		{"max_groups", &queuev1.QueueOptions{MaxGroups: proto.Int32(10_001)}},
		{"retention", &queuev1.QueueOptions{Retention: durationpb.New(time.Second - 1)}},
		{"retention", &queuev1.QueueOptions{Retention: durationpb.New(-time.Second)}},
		{"retention", &queuev1.QueueOptions{Retention: endless}},
		{"retention_bytes", &queuev1.QueueOptions{RetentionBytes: proto.Int64(-1)}},
		{"retention_bytes", &queuev1.QueueOptions{RetentionBytes: proto.Int64(1<<50 + 1)}},
		{"expire_after", &queuev1.QueueOptions{ExpireAfter: durationpb.New(0)}},
		{"max_queue_bytes", &queuev1.QueueOptions{MaxQueueBytes: proto.Int64(-1)}},
		{"max_queue_bytes", &queuev1.QueueOptions{MaxQueueBytes: proto.Int64(1<<50 + 1)}},
		{"max_queue_messages", &queuev1.QueueOptions{MaxQueueMessages: proto.Int64(-1)}},
		{"delay", &queuev1.QueueOptions{Delay: durationpb.New(-time.Nanosecond)}},
		{"delay", &queuev1.QueueOptions{Delay: durationpb.New(15*time.Minute + time.Nanosecond)}},
		{"shards", &queuev1.QueueOptions{Shards: proto.Int32(0)}},
		{"shards", &queuev1.QueueOptions{Shards: proto.Int32(65)}},
		{"shards", &queuev1.QueueOptions{Shards: proto.Int32(-1)}},
	} {
		r.add(bad, c.field, func() error {
			_, err := r.ConfigureQueue(r.ctx, &queuev1.ConfigureQueueRequest{Queue: "new", Options: c.o})
			return err
		})
	}
	r.add("OPTION_UNKNOWN", "colour", func() error {
		_, err := r.ConfigureQueue(r.ctx, &queuev1.ConfigureQueueRequest{Queue: "new", Reset_: []string{"colour"}})
		return err
	})
	r.add("OPTION_TYPE", "lease", func() error {
		_, err := r.ConfigureQueue(r.ctx, &queuev1.ConfigureQueueRequest{Queue: "new", Options: &queuev1.QueueOptions{Lease: second}, Reset_: []string{"lease"}})
		return err
	})
}

// groupRules breaks the rules of options of groups.
func (r *rules) groupRules() {
	for field, o := range map[string]*queuev1.GroupOptions{
		"mode": {Mode: 3}, "on_failure": {OnFailure: -1}, "start": {Start: "yesterday"},
	} {
		r.add("ENUM_UNKNOWN", field, func() error {
			_, err := r.CreateGroup(r.ctx, &queuev1.CreateGroupRequest{Queue: "q", Group: "g", Options: o})
			return err
		})
		r.add("ENUM_UNKNOWN", field, func() error { _, err := r.Pop(r.ctx, &queuev1.PopRequest{Queue: "q", GroupOptions: o}); return err })
	}
}

// hotRules breaks the rules of push and pop.
func (r *rules) hotRules() {
	for _, c := range []struct {
		field string
		r     *queuev1.PopRequest
	}{
		{"batch", &queuev1.PopRequest{Batch: -1}},
		{"batch", &queuev1.PopRequest{Batch: 1001}},
		{"max_bytes", &queuev1.PopRequest{MaxBytes: -1}},
		{"max_bytes", &queuev1.PopRequest{MaxBytes: 1 << 30}},
		{"wait", &queuev1.PopRequest{Wait: durationpb.New(-1)}},
		{"wait", &queuev1.PopRequest{Wait: durationpb.New(time.Minute + 1)}},
		{"wait", &queuev1.PopRequest{Wait: broken()}},
		{"partitions", &queuev1.PopRequest{Partitions: -1}},
		{"partitions", &queuev1.PopRequest{Partitions: 1001}},
		{"lease", &queuev1.PopRequest{Lease: durationpb.New(0)}},
		{"lease", &queuev1.PopRequest{Lease: durationpb.New(12*time.Hour + 1)}},
		{"settle.queue", &queuev1.PopRequest{Settle: &queuev1.AckRequest{Queue: "other", Lease: "l", AckRest: true}}},
		{"settle.settlements", &queuev1.PopRequest{Settle: &queuev1.AckRequest{}}},
	} {
		c.r.Queue = "q"
		r.add(bad, c.field, func() error { _, err := r.Pop(r.ctx, c.r); return err })
	}
	r.add(bad, "items", func() error { _, err := r.Push(r.ctx, &queuev1.PushRequest{Queue: "q"}); return err })
	r.add(bad, "items", func() error {
		_, err := r.Push(r.ctx, &queuev1.PushRequest{Queue: "q", Items: make([]*queuev1.PushItem, 1001)})
		return err
	})
	r.add("MESSAGE_TOO_LARGE", "items", func() error {
		big := &queuev1.PushItem{Payload: make([]byte, 17<<20)}
		_, err := r.Push(r.ctx, &queuev1.PushRequest{Queue: "q", Items: []*queuev1.PushItem{big, big}})
		return err
	})
}

// settlementRules breaks the rules of settlements.
func (r *rules) settlementRules() {
	nack := queuev1.AckAction_ACK_ACTION_NACK
	for _, c := range []struct {
		reason, field string
		s             *queuev1.Settlement
	}{
		{"NAME_EMPTY", "settlements[0].message_id", &queuev1.Settlement{}},
		{bad, "settlements[0].client_id", &queuev1.Settlement{MessageId: "1", ClientId: "c"}},
		{"ENUM_UNKNOWN", "settlements[0].action", &queuev1.Settlement{MessageId: "1", Action: 9}},
		{bad, "settlements[0].delay", &queuev1.Settlement{MessageId: "1", Action: nack, Delay: durationpb.New(-1)}},
		{bad, "settlements[0].delay", &queuev1.Settlement{MessageId: "1", Action: nack, Delay: durationpb.New(12*time.Hour + 1)}},
		{bad, "settlements[0].delay", &queuev1.Settlement{MessageId: "1", Delay: durationpb.New(time.Second)}},
		{"NAME_TOO_LONG", "settlements[0].partition", &queuev1.Settlement{ClientId: "c", Partition: tooLong()}},
		{"NAME_NOT_UTF8", "settlements[0].client_id", &queuev1.Settlement{ClientId: "a\xffb"}},
	} {
		r.add(c.reason, c.field, func() error {
			_, err := r.Ack(r.ctx, &queuev1.AckRequest{Queue: "q", Lease: "l", Settlements: []*queuev1.Settlement{c.s}})
			return err
		})
		r.add(c.reason, "settle."+c.field, func() error {
			_, err := r.Pop(r.ctx, &queuev1.PopRequest{Queue: "q", Settle: &queuev1.AckRequest{Lease: "l", Settlements: []*queuev1.Settlement{c.s}}})
			return err
		})
	}
}

// leaseRules breaks the rules of whole settlements, renewals and releases.
func (r *rules) leaseRules() {
	r.add(bad, "settlements", func() error { _, err := r.Ack(r.ctx, &queuev1.AckRequest{Queue: "q", Lease: "l"}); return err })
	r.add(bad, "settlements", func() error {
		_, err := r.Ack(r.ctx, &queuev1.AckRequest{Queue: "q", Lease: "l", Settlements: make([]*queuev1.Settlement, 1001)})
		return err
	})
	r.add(bad, "ack_rest", func() error { _, err := r.Ack(r.ctx, &queuev1.AckRequest{Queue: "q", AckRest: true}); return err })
	r.add("TOKEN_MALFORMED", "lease", func() error {
		_, err := r.Ack(r.ctx, &queuev1.AckRequest{Queue: "q", Lease: strings.Repeat("l", 1<<20), AckRest: true})
		return err
	})
	r.add("NAME_EMPTY", "lease", func() error { _, err := r.Renew(r.ctx, &queuev1.RenewRequest{Queue: "q"}); return err })
	r.add(bad, "duration", func() error {
		_, err := r.Renew(r.ctx, &queuev1.RenewRequest{Queue: "q", Lease: "l", Duration: durationpb.New(1)})
		return err
	})
	r.add("NAME_EMPTY", "lease", func() error { _, err := r.Release(r.ctx, &queuev1.ReleaseRequest{Queue: "q"}); return err })
	r.add(bad, "message_ids", func() error {
		_, err := r.Release(r.ctx, &queuev1.ReleaseRequest{Queue: "q", Lease: "l", MessageIds: make([]string, 1001)})
		return err
	})
	r.add("NAME_EMPTY", "message_ids[0]", func() error {
		_, err := r.Release(r.ctx, &queuev1.ReleaseRequest{Queue: "q", Lease: "l", MessageIds: []string{""}})
		return err
	})
}
