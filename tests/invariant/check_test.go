package invariant_test

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"postrider.dev/tests/invariant"
)

// Shorthands for histories: instants in milliseconds.

func push(id, partition string, offset int64, sent, answered int) invariant.Push {
	return invariant.Push{
		Queue: "q", Partition: partition, Content: "c-" + id, ID: id, Offset: offset, Publisher: "p", Seq: offset, Sent: ms(sent), Answered: ms(answered),
	}
}

func delivery(id, partition string, offset int64, lease string, attempt int32, sent, answered int) invariant.Delivery {
	return invariant.Delivery{
		Queue: "q", Group: "g", Partition: partition, ID: id, Content: "c-" + id, Offset: offset, Attempt: attempt, Lease: lease,
		Sent: ms(sent), Answered: ms(answered),
	}
}

func ack(id, lease string, sent, answered int) invariant.Ack {
	return invariant.Ack{Queue: "q", Group: "g", ID: id, Lease: lease, Sent: ms(sent), Answered: ms(answered)}
}

func buffered(content string) invariant.Push {
	return invariant.Push{Queue: "q", Partition: "p1", Content: content, ID: "p_1", Buffered: true, Publisher: "p", Sent: ms(9), Answered: ms(10)}
}

// of is a push by a tenant's publisher "w", to one of its tenant's pops.
func of(tenant string, seq int) invariant.Push {
	return invariant.Push{Tenant: tenant, Queue: tenant + "/q", Content: fmt.Sprintf("w/%d", seq), Publisher: "w", ID: strconv.Itoa(seq)}
}

func to(tenant string, seq int) invariant.Delivery {
	return invariant.Delivery{Tenant: tenant, Queue: tenant + "/q", Group: "g", Content: fmt.Sprintf("w/%d", seq), ID: strconv.Itoa(seq)}
}

func ms(n int) time.Duration { return time.Duration(n) * time.Millisecond }

func good() []invariant.Event {
	return []invariant.Event{
		push("a", "p1", 0, 0, 1), push("b", "p1", 1, 2, 3), push("x", "p2", 2, 2, 3),
		delivery("a", "p1", 0, "L1", 1, 3, 5), delivery("x", "p2", 2, "L1", 1, 3, 5), ack("a", "L1", 6, 7), ack("x", "L1", 6, 7),
		delivery("b", "p1", 1, "L2", 1, 8, 9), // its consumer dies
		delivery("b", "p1", 1, "L3", 2, 40, 41), ack("b", "L3", 42, 43),
	}
}

func TestAGoodHistoryHasNoViolation(t *testing.T) {
	t.Parallel()
	drained := ack("c", "L4", 52, 53)
	drained.Content = "c-c"
	late := append(good(), buffered("c-c"), delivery("c", "p1", 3, "L4", 1, 50, 51), drained)

	require.Empty(t, invariant.All(good(), invariant.Drained()...))
	require.Empty(t, invariant.All(late, invariant.Drained()...))
}

func TestEachCheckFlagsBadHistories(t *testing.T) {
	t.Parallel()
	moved := delivery("a", "p1", 0, "L1", 1, 3, 5)
	moved.Partition = "p9"
	changed := delivery("a", "p1", 0, "L1", 1, 3, 5)
	changed.Content = "c-other"
	shifted := delivery("a", "p1", 7, "L1", 1, 3, 5)
	damaged := delivery("a", "p1", 0, "L1", 1, 3, 5)
	damaged.Digest = 99
	doubled := delivery("b", "p1", 1, "L2", 1, 6, 7)
	doubled.Content = "c-a"
	repushed := push("b", "p1", 1, 4, 5)
	repushed.Content = "c-a"
	twin := push("a", "p1", 0, 4, 5)
	twin.Content = "c-twin"
	elsewhere := push("x", "p2", 2, 9, 10)
	elsewhere.Content = "c-elsewhere"
	otherGroup := delivery("a", "p1", 0, "L9", 1, 3, 5)
	otherGroup.Group = "h"
	late := push("z", "p1", 0, 4, 5)
	late.Seq = 5
	early := push("y", "p1", 3, 0, 1)
	early.Seq = 1
	for name, c := range map[string]struct {
		check  invariant.Check
		events []invariant.Event
	}{
		"tenants: handed to another":                           {invariant.TenantsApart, []invariant.Event{of("acme", 1), to("zebra", 1)}},
		"tenants: another message of the publisher":            {invariant.TenantsApart, []invariant.Event{of("acme", 1), to("acme", 1), to("zebra", 2)}},
		"tenants: handed to nobody's":                          {invariant.TenantsApart, []invariant.Event{to("", 1), of("acme", 1)}},
		"lost: buffered, never acked":                          {invariant.NothingLost, append(good(), buffered("c-late"))},
		"lost: delivered, never acked":                         {invariant.NothingLost, []invariant.Event{push("a", "p1", 0, 0, 1), delivery("a", "p1", 0, "L1", 1, 3, 5)}},
		"lost: never delivered":                                {invariant.NothingLost, append(good(), push("c", "p1", 3, 0, 1))},
		"lost: acked in one group of two":                      {invariant.NothingLost, append(good(), otherGroup)},
		"returns: popped after the ack":                        {invariant.NothingAckedReturns, append(good(), delivery("a", "p1", 0, "L7", 2, 50, 51))},
		"returns: next attempt, overlapping":                   {invariant.NothingAckedReturns, append(good(), delivery("a", "p1", 0, "L7", 2, 4, 8))},
		"returns: after a second ack":                          {invariant.NothingAckedReturns, append(good(), ack("b", "L3", 44, 45), delivery("b", "p1", 1, "L8", 3, 44, 46))},
		"place: two contents under an id":                      {invariant.OnePlaceEach, []invariant.Event{push("a", "p1", 0, 0, 1), twin}},
		"place: twin pushed first":                             {invariant.OnePlaceEach, []invariant.Event{twin, push("a", "p1", 0, 0, 1)}},
		"place: another partition's message":                   {invariant.OnePlaceEach, append(good(), elsewhere)},
		"place: two offsets under an id":                       {invariant.OnePlaceEach, []invariant.Event{push("a", "p1", 0, 0, 1), push("a", "p1", 4, 2, 3)}},
		"message: a push stored twice":                         {invariant.OneMessageEach, []invariant.Event{push("a", "p1", 0, 0, 1), doubled}},
		"message: a repeated push got another id":              {invariant.OneMessageEach, []invariant.Event{push("a", "p1", 0, 0, 1), repushed}},
		"message: delivered under two ids, never acknowledged": {invariant.OneMessageEach, []invariant.Event{delivery("a", "p1", 0, "L1", 1, 3, 5), doubled}},
		"content: other payload":                               {invariant.ContentIntact, []invariant.Event{push("a", "p1", 0, 0, 1), damaged}},
		"content: other partition":                             {invariant.ContentIntact, []invariant.Event{push("a", "p1", 0, 0, 1), moved}},
		"content: other bytes":                                 {invariant.ContentIntact, []invariant.Event{push("a", "p1", 0, 0, 1), changed}},
		"content: other offset":                                {invariant.ContentIntact, []invariant.Event{push("a", "p1", 0, 0, 1), shifted}},
		"order: second first":                                  {invariant.OrderPerPartition, []invariant.Event{push("a", "p1", 0, 0, 1), push("b", "p1", 1, 0, 1), delivery("b", "p1", 1, "L1", 1, 3, 5)}},
		"order: ack sent only after the overtake":              {invariant.OrderPerPartition, append(good()[:4:4], delivery("b", "p1", 1, "L2", 1, 3, 5), ack("a", "L1", 6, 7))},
		"order: first is retried, second goes on":              {invariant.OrderPerPartition, append(good()[:4:4], delivery("b", "p1", 1, "L2", 1, 50, 51), delivery("a", "p1", 0, "L5", 2, 52, 53))},
		"publisher: later message lower":                       {invariant.OrderPerPublisher, []invariant.Event{early, late}},
		"publisher: same offset twice":                         {invariant.OrderPerPublisher, append(good(), func() invariant.Event { p := push("w", "p1", 1, 9, 10); p.Seq = 9; return p }())},
		"publisher: far apart":                                 {invariant.OrderPerPublisher, append(good(), func() invariant.Event { p := push("w", "p1", 0, 90, 91); p.Seq = 90; return p }())},
		"holder: other message of the partition":               {invariant.OneHolder, []invariant.Event{delivery("a", "p1", 0, "L1", 1, 0, 1), delivery("b", "p1", 1, "L2", 1, 2, 3), ack("a", "L1", 9, 10)}},
		"holder: same message, old lease acks":                 {invariant.OneHolder, []invariant.Event{delivery("a", "p1", 0, "L1", 1, 0, 1), delivery("a", "p1", 0, "L2", 2, 2, 3), ack("a", "L1", 9, 10)}},
		"holder: between two acks of one lease":                {invariant.OneHolder, []invariant.Event{delivery("a", "p1", 0, "L1", 1, 0, 1), delivery("b", "p1", 1, "L1", 1, 0, 1), ack("a", "L1", 2, 3), delivery("b", "p1", 1, "L2", 2, 4, 5), ack("b", "L1", 9, 10)}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.NotEmpty(t, c.check(c.events))
		})
	}
}
