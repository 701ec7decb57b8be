package server

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
)

// TestEveryFieldIsCheckedBeforeAnythingIsDone walks the rules of every field of every call. The engine and the database are never asked.
func TestEveryFieldIsCheckedBeforeAnythingIsDone(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	ctx := b.as("a")
	long, badUTF8, nul := strings.Repeat("x", 256), "a\xffb", "a\x00b"
	const invalid, bad = codes.InvalidArgument, "OUT_OF_RANGE"

	type row struct {
		do            func() error
		reason, field string
		code          codes.Code
	}
	var rows []row
	add := func(reason, field string, do func() error) { rows = append(rows, row{do, reason, field, invalid}) }

	// names: every call that names a queue
	names := map[string]string{"": "NAME_EMPTY", long: "NAME_TOO_LONG", badUTF8: "NAME_NOT_UTF8", nul: "NAME_HAS_NUL"}
	for name, reason := range names {
		items := []*queuev1.PushItem{{}}
		for _, do := range []func() error{
			func() error { _, err := b.Push(ctx, &queuev1.PushRequest{Queue: name, Items: items}); return err },
			func() error { _, err := b.Pop(ctx, &queuev1.PopRequest{Queue: name}); return err },
			func() error {
				_, err := b.Ack(ctx, &queuev1.AckRequest{Queue: name, Lease: "l", AckRest: true})
				return err
			},
			func() error { _, err := b.Renew(ctx, &queuev1.RenewRequest{Queue: name, Lease: "l"}); return err },
			func() error { _, err := b.Release(ctx, &queuev1.ReleaseRequest{Queue: name, Lease: "l"}); return err },
			func() error { _, err := b.ConfigureQueue(ctx, &queuev1.ConfigureQueueRequest{Queue: name}); return err },
			func() error { _, err := b.GetQueue(ctx, &queuev1.GetQueueRequest{Queue: name}); return err },
			func() error { _, err := b.DeleteQueue(ctx, &queuev1.DeleteQueueRequest{Queue: name}); return err },
			func() error { _, err := b.ListPartitions(ctx, &queuev1.ListPartitionsRequest{Queue: name}); return err },
			func() error {
				_, err := b.CreateGroup(ctx, &queuev1.CreateGroupRequest{Queue: name, Group: "g"})
				return err
			},
			func() error {
				_, err := b.DeleteGroup(ctx, &queuev1.DeleteGroupRequest{Queue: name, Group: "g"})
				return err
			},
			func() error {
				_, err := b.ListDeadLetters(ctx, &queuev1.ListDeadLettersRequest{Queue: name})
				return err
			},
			func() error { _, err := b.GetDeadLetter(ctx, &queuev1.GetDeadLetterRequest{Queue: name}); return err },
			func() error {
				_, err := b.RedriveDeadLetters(ctx, &queuev1.RedriveDeadLettersRequest{Queue: name, Group: "g"})
				return err
			},
			func() error {
				_, err := b.LookupMessage(ctx, &queuev1.LookupMessageRequest{Queue: name, ClientId: "c"})
				return err
			},
		} {
			add(reason, "queue", do)
		}
		add(reason, "group", func() error {
			_, err := b.CreateGroup(ctx, &queuev1.CreateGroupRequest{Queue: "q", Group: name})
			return err
		})
		add(reason, "group", func() error {
			_, err := b.DeleteGroup(ctx, &queuev1.DeleteGroupRequest{Queue: "q", Group: name})
			return err
		})
		add(reason, "client_id", func() error {
			_, err := b.LookupMessage(ctx, &queuev1.LookupMessageRequest{Queue: "q", ClientId: name})
			return err
		})
		if name == "" {
			continue // may be absent where it follows
		}
		add(reason, "prefix", func() error { _, err := b.ListQueues(ctx, &queuev1.ListQueuesRequest{Prefix: name}); return err })
		add(reason, "group", func() error {
			_, err := b.ListDeadLetters(ctx, &queuev1.ListDeadLettersRequest{Queue: "q", Group: name})
			return err
		})
		add(reason, "group", func() error {
			_, err := b.RedriveDeadLetters(ctx, &queuev1.RedriveDeadLettersRequest{Queue: "q", Group: name})
			return err
		})
		add(reason, "partition", func() error {
			_, err := b.LookupMessage(ctx, &queuev1.LookupMessageRequest{Queue: "q", Partition: name, ClientId: "c"})
			return err
		})
		add(reason, "idempotency_key", func() error {
			_, err := b.Push(ctx, &queuev1.PushRequest{Queue: "q", Items: items, IdempotencyKey: name})
			return err
		})
		for field, r := range map[string]*queuev1.PopRequest{"group": {Group: name}, "partition": {Partition: name}, "consumer": {Consumer: name}} {
			r.Queue = "q"
			add(reason, field, func() error { _, err := b.Pop(ctx, r); return err })
		}
		add(reason, "group", func() error {
			_, err := b.Ack(ctx, &queuev1.AckRequest{Queue: "q", Group: name, Lease: "l", AckRest: true})
			return err
		})
	}

	// pages
	for _, size := range []int32{-1, 1001, 1 << 30, -1 << 31} {
		add(bad, "page_size", func() error { _, err := b.ListQueues(ctx, &queuev1.ListQueuesRequest{PageSize: size}); return err })
		add(bad, "page_size", func() error {
			_, err := b.ListPartitions(ctx, &queuev1.ListPartitionsRequest{Queue: "q", PageSize: size})
			return err
		})
		add(bad, "page_size", func() error {
			_, err := b.ListDeadLetters(ctx, &queuev1.ListDeadLettersRequest{Queue: "q", PageSize: size})
			return err
		})
	}
	for _, token := range []string{"x", "AQ", strings.Repeat("A", 5000), "AQAAAAAAAAAAAA", "\xff"} {
		add("TOKEN_MALFORMED", "page_token", func() error { _, err := b.ListQueues(ctx, &queuev1.ListQueuesRequest{PageToken: token}); return err })
		add("TOKEN_MALFORMED", "page_token", func() error {
			_, err := b.ListPartitions(ctx, &queuev1.ListPartitionsRequest{Queue: "q", PageToken: token})
			return err
		})
		add("TOKEN_MALFORMED", "page_token", func() error {
			_, err := b.ListDeadLetters(ctx, &queuev1.ListDeadLettersRequest{Queue: "q", PageToken: token})
			return err
		})
	}

	// options
	second := durationpb.New(time.Second)
	broken := &durationpb.Duration{Seconds: 1, Nanos: -1}
	endless := &durationpb.Duration{Seconds: 315_576_000_000}
	for _, c := range []struct {
		field string
		o     *queuev1.QueueOptions
	}{
		{"lease", &queuev1.QueueOptions{Lease: durationpb.New(time.Second - 1)}},
		{"lease", &queuev1.QueueOptions{Lease: durationpb.New(-time.Second)}},
		{"lease", &queuev1.QueueOptions{Lease: endless}},
		{"lease", &queuev1.QueueOptions{Lease: broken}},
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
		{"shards", &queuev1.QueueOptions{Shards: proto.Int32(0)}},
		{"shards", &queuev1.QueueOptions{Shards: proto.Int32(65)}},
		{"shards", &queuev1.QueueOptions{Shards: proto.Int32(-1)}},
	} {
		add(bad, c.field, func() error {
			_, err := b.ConfigureQueue(ctx, &queuev1.ConfigureQueueRequest{Queue: "new", Options: c.o})
			return err
		})
	}
	add("OPTION_UNKNOWN", "colour", func() error {
		_, err := b.ConfigureQueue(ctx, &queuev1.ConfigureQueueRequest{Queue: "new", Reset_: []string{"colour"}})
		return err
	})
	add("OPTION_TYPE", "lease", func() error {
		_, err := b.ConfigureQueue(ctx, &queuev1.ConfigureQueueRequest{Queue: "new", Options: &queuev1.QueueOptions{Lease: second}, Reset_: []string{"lease"}})
		return err
	})

	// groups
	for field, o := range map[string]*queuev1.GroupOptions{
		"mode": {Mode: 3}, "on_failure": {OnFailure: -1}, "start": {Start: "yesterday"},
	} {
		add("ENUM_UNKNOWN", field, func() error {
			_, err := b.CreateGroup(ctx, &queuev1.CreateGroupRequest{Queue: "q", Group: "g", Options: o})
			return err
		})
		add("ENUM_UNKNOWN", field, func() error { _, err := b.Pop(ctx, &queuev1.PopRequest{Queue: "q", GroupOptions: o}); return err })
	}

	// hot verbs
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
		{"wait", &queuev1.PopRequest{Wait: broken}},
		{"partitions", &queuev1.PopRequest{Partitions: -1}},
		{"partitions", &queuev1.PopRequest{Partitions: 1001}},
		{"lease", &queuev1.PopRequest{Lease: durationpb.New(0)}},
		{"lease", &queuev1.PopRequest{Lease: durationpb.New(12*time.Hour + 1)}},
		{"settle.queue", &queuev1.PopRequest{Settle: &queuev1.AckRequest{Queue: "other", Lease: "l", AckRest: true}}},
		{"settle.settlements", &queuev1.PopRequest{Settle: &queuev1.AckRequest{}}},
	} {
		c.r.Queue = "q"
		add(bad, c.field, func() error { _, err := b.Pop(ctx, c.r); return err })
	}
	add(bad, "items", func() error { _, err := b.Push(ctx, &queuev1.PushRequest{Queue: "q"}); return err })
	add(bad, "items", func() error {
		_, err := b.Push(ctx, &queuev1.PushRequest{Queue: "q", Items: make([]*queuev1.PushItem, 1001)})
		return err
	})
	add("MESSAGE_TOO_LARGE", "items", func() error {
		big := &queuev1.PushItem{Payload: make([]byte, 17<<20)}
		_, err := b.Push(ctx, &queuev1.PushRequest{Queue: "q", Items: []*queuev1.PushItem{big, big}})
		return err
	})
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
		{bad, "settlements[0].delay", &queuev1.Settlement{MessageId: "1", Delay: second}},
		{"NAME_TOO_LONG", "settlements[0].partition", &queuev1.Settlement{ClientId: "c", Partition: long}},
		{"NAME_NOT_UTF8", "settlements[0].client_id", &queuev1.Settlement{ClientId: badUTF8}},
	} {
		add(c.reason, c.field, func() error {
			_, err := b.Ack(ctx, &queuev1.AckRequest{Queue: "q", Lease: "l", Settlements: []*queuev1.Settlement{c.s}})
			return err
		})
		add(c.reason, "settle."+c.field, func() error {
			_, err := b.Pop(ctx, &queuev1.PopRequest{Queue: "q", Settle: &queuev1.AckRequest{Lease: "l", Settlements: []*queuev1.Settlement{c.s}}})
			return err
		})
	}
	add(bad, "settlements", func() error { _, err := b.Ack(ctx, &queuev1.AckRequest{Queue: "q", Lease: "l"}); return err })
	add(bad, "settlements", func() error {
		_, err := b.Ack(ctx, &queuev1.AckRequest{Queue: "q", Lease: "l", Settlements: make([]*queuev1.Settlement, 1001)})
		return err
	})
	add(bad, "ack_rest", func() error { _, err := b.Ack(ctx, &queuev1.AckRequest{Queue: "q", AckRest: true}); return err })
	add("TOKEN_MALFORMED", "lease", func() error {
		_, err := b.Ack(ctx, &queuev1.AckRequest{Queue: "q", Lease: strings.Repeat("l", 1<<20), AckRest: true})
		return err
	})
	add("NAME_EMPTY", "lease", func() error { _, err := b.Renew(ctx, &queuev1.RenewRequest{Queue: "q"}); return err })
	add(bad, "duration", func() error {
		_, err := b.Renew(ctx, &queuev1.RenewRequest{Queue: "q", Lease: "l", Duration: durationpb.New(1)})
		return err
	})
	add("NAME_EMPTY", "lease", func() error { _, err := b.Release(ctx, &queuev1.ReleaseRequest{Queue: "q"}); return err })
	add(bad, "message_ids", func() error {
		_, err := b.Release(ctx, &queuev1.ReleaseRequest{Queue: "q", Lease: "l", MessageIds: make([]string, 1001)})
		return err
	})
	add("NAME_EMPTY", "message_ids[0]", func() error {
		_, err := b.Release(ctx, &queuev1.ReleaseRequest{Queue: "q", Lease: "l", MessageIds: []string{""}})
		return err
	})

	// dead letters
	for _, id := range []string{"", "x", "00000000-0000-0000-0000-00000000000", "{00000000-0000-7000-8000-000000000000}", "00000000000070008000000000000000", "0000000A-0000-7000-8000-000000000000"} {
		add("ID_MALFORMED", "id", func() error {
			_, err := b.GetDeadLetter(ctx, &queuev1.GetDeadLetterRequest{Queue: "q", Id: id})
			return err
		})
		add("ID_MALFORMED", "ids[0]", func() error {
			_, err := b.RedriveDeadLetters(ctx, &queuev1.RedriveDeadLettersRequest{Queue: "q", Ids: []string{id}})
			return err
		})
	}
	for field, r := range map[string]*queuev1.RedriveDeadLettersRequest{
		"group": {Group: "g", Ids: []string{"00000000-0000-7000-8000-000000000000"}},
		"limit": {Group: "g", Limit: 1001},
	} {
		r.Queue = "q"
		add(bad, field, func() error { _, err := b.RedriveDeadLetters(ctx, r); return err })
	}
	add(bad, "limit", func() error {
		_, err := b.RedriveDeadLetters(ctx, &queuev1.RedriveDeadLettersRequest{Queue: "q", Group: "g", Limit: -1})
		return err
	})
	add(bad, "limit", func() error {
		_, err := b.RedriveDeadLetters(ctx, &queuev1.RedriveDeadLettersRequest{Queue: "q", Ids: []string{"00000000-0000-7000-8000-000000000000"}, Limit: 1})
		return err
	})
	add(bad, "ids", func() error {
		_, err := b.RedriveDeadLetters(ctx, &queuev1.RedriveDeadLettersRequest{Queue: "q", Ids: make([]string, 1001)})
		return err
	})
	add("NAME_EMPTY", "ids", func() error {
		_, err := b.RedriveDeadLetters(ctx, &queuev1.RedriveDeadLettersRequest{Queue: "q"})
		return err
	})

	for i, r := range rows {
		t.Log(i, r.field, r.reason)
		refused(t, r.do(), r.code, r.reason, r.field)
	}
	if len(b.engine.tenants) > 0 || len(b.notes.taken()) > 0 || len(b.audited()) > 0 {
		t.Error("something was done")
	}
	if list, err := b.ListQueues(ctx, &queuev1.ListQueuesRequest{}); err != nil || len(list.GetQueues()) > 0 {
		t.Error("a queue was made", list, err)
	}
}
