package store_test

import (
	"errors"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"postrider.dev/pkg/pg"
	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/queue"
	"postrider.dev/services/dispatcher/internal/domain/retention"
	"postrider.dev/services/dispatcher/internal/store"
)

// delete deletes a message of a queue of tenant a by its offset.
func (c *cold) delete(q store.Queue, offset message.Offset) error {
	_, err := c.control.DeleteMessage(c.t.Context(), by("a"), q.Name, store.MessageName{ID: &message.ID{Shard: q.Shards[0], Offset: offset}})
	return err
}

// depth is what a group has not settled.
func (c *cold) depth(q store.Queue, group string) int64 {
	c.t.Helper()
	detail, err := c.control.QueueDetail(c.t.Context(), q)
	require.NoError(c.t, err)
	for _, g := range detail.Groups {
		if g.Name == group {
			return detail.States[g.ID].Depth
		}
	}
	c.t.Fatalf("no group %q", group)
	return 0
}

// patiently does something again while a lock is not given in time: the machine may be busy.
func patiently(control *store.Control, do func(*store.Control) error) error {
	err := do(control)
	for tries := 0; pg.IsLockTimeout(err) && tries < 20; tries++ {
		err = do(control)
	}
	return err
}

func TestADeletedMessageIsSettledInEveryGroupWhereverItIsMovedAndWheneverItIsMade(t *testing.T) {
	t.Parallel()
	c := newCold(t)
	q := c.queue("a", "q")
	c.group(q, "g", store.GroupOptions{})
	c.group(q, "h", store.GroupOptions{Mode: queue.Shared})
	c.push(q, msg("p", "0"), msg("p", "1"), msg("r", "2"))

	require.NoError(t, c.delete(q, 1))

	require.EqualValues(t, 2, c.depth(q, "g"))
	require.EqualValues(t, 2, c.depth(q, "h"))
	back := kind(queue.Earliest)
	c.sought(kind(queue.Latest))
	c.sought(back)
	require.EqualValues(t, 2, c.depth(q, "g"), "a seek back")
	back.Partition = "p"
	c.sought(kind(queue.Latest))
	c.sought(back)
	require.EqualValues(t, 1, c.depth(q, "g"), "a seek back of its partition")
	c.group(q, "new", store.GroupOptions{Start: queue.Start{Kind: queue.Earliest}})
	require.EqualValues(t, 2, c.depth(q, "new"))
	c.group(q, "later", store.GroupOptions{Start: queue.Start{Kind: queue.Latest}})
	require.Zero(t, c.depth(q, "later"))
	require.Equal(t, 2, scan[int](c.bench, "SELECT version FROM dispatcher.group_shards ORDER BY id OFFSET 1 LIMIT 1"), "a delete is one change")
}

func TestADeletedMessageIsShownToNobody(t *testing.T) {
	t.Parallel()
	c := newCold(t)
	q := c.queue("a", "q")
	named := msg("p", "1")
	named.ClientID = "order"
	older := msg("p", "0")
	older.ClientID = "order"
	c.push(q, older)
	c.push(q, named, msg("p", "2"))

	require.NoError(t, c.delete(q, 1))

	_, err := c.control.FindByID(t.Context(), q, message.ID{Shard: q.Shards[0], Offset: 1})
	require.ErrorIs(t, err, store.ErrMessageNotFound)
	_, err = c.control.Trace(t.Context(), q, message.ID{Shard: q.Shards[0], Offset: 1}, store.TracePage{})
	require.ErrorIs(t, err, store.ErrMessageNotFound)
	found, ok, err := c.control.FindByClientID(t.Context(), q, "p", "order")
	require.NoError(t, err)
	require.True(t, ok)
	require.True(t, found.Deleted, "the name is its newest message's, not an older one's")
	shown, from, next := c.peeked(q, store.Peek{Limit: 10, MaxBytes: 1 << 20})
	require.Equal(t, []string{"0", "2"}, shown)
	require.Equal(t, []message.Offset{0, 3}, []message.Offset{from, next})
	shown, _, next = c.peeked(q, store.Peek{Limit: 1, MaxBytes: 1 << 20, From: queue.From{Offset: 1}})
	require.Equal(t, []string{"2"}, shown)
	require.EqualValues(t, 3, next)
	marks, err := c.store.Tombstones(t.Context(), q.Shards[0], 0, 3)
	require.NoError(t, err)
	require.True(t, marks.Has(1))
	require.False(t, marks.Has(0) || marks.Has(2))
	stats, err := c.control.QueueStats(t.Context(), []int64{q.ID})
	require.NoError(t, err)
	require.EqualValues(t, 2, stats[q.ID].Depth, "no group has it to do")
	depths, err := c.control.Depths(t.Context(), []int64{q.ID})
	require.NoError(t, err)
	require.EqualValues(t, 2, depths[q.ID].Pending, "it does not count against max_queue_messages")
}

func TestADeleteSaidTwiceIsDoneAndAuditedOnce(t *testing.T) {
	t.Parallel()
	c := newCold(t)
	q := c.queue("a", "q")
	c.group(q, "g", store.GroupOptions{})
	m := msg("p", "1")
	m.ClientID = "order"
	older := msg("p", "0")
	older.ClientID = "order"
	c.push(q, older)
	c.push(q, m)
	name := store.MessageName{Client: store.ClientName{Partition: "p", ClientID: "order"}}

	first, err := c.control.DeleteMessage(t.Context(), by("a"), "q", name)
	require.NoError(t, err)
	before := c.everything()
	again, err := c.control.DeleteMessage(t.Context(), by("a"), "q", name)
	require.NoError(t, err)
	require.NoError(t, c.delete(q, 1))

	require.Equal(t, store.Deleted{ID: message.ID{Shard: q.Shards[0], Offset: 1}}, first)
	require.Equal(t, first, again, "an older message of the name is not taken for it")
	require.Equal(t, before, c.everything())
	require.Equal(t, []string{"a ann message.delete queue/q"}, c.audited())
}

func TestADeleteIsOfWhatTheQueueHasAndOfNobodyElses(t *testing.T) {
	t.Parallel()
	c := newCold(t)
	q, other := c.queue("a", "q"), c.queue("b", "q")
	c.group(q, "g", store.GroupOptions{})
	c.push(q, msg("p", "0"), msg("p", "1"))
	c.push(other, msg("p", "0"))
	c.exec("UPDATE dispatcher.shards SET tail = 1 WHERE id = $1", q.Shards[0])
	id := delay(t, c.store, q.Shards[0], time.Now().Add(time.Hour), "later")[0]
	before := c.everything()

	for name, which := range map[string]store.MessageName{
		"trimmed":        {ID: &message.ID{Shard: q.Shards[0]}},
		"above the head": {ID: &message.ID{Shard: q.Shards[0], Offset: 2}},
		"another's":      {ID: &message.ID{Shard: other.Shards[0]}},
		"no shard":       {ID: &message.ID{Shard: 99}},
		"no such name":   {Client: store.ClientName{Partition: "p", ClientID: "nobody"}},
		"never accepted": {Pending: &message.PendingID{1}},
	} {
		_, err := c.control.DeleteMessage(t.Context(), by("a"), "q", which)
		require.ErrorIs(t, err, store.ErrMessageNotFound, name)
	}
	_, err := c.control.DeleteMessage(t.Context(), by("b"), "q", store.MessageName{Pending: &id})
	require.ErrorIs(t, err, store.ErrMessageNotFound, "waits in another tenant's queue")
	_, err = c.control.DeleteMessage(t.Context(), by("c"), "q", store.MessageName{Pending: &id})
	require.ErrorIs(t, err, store.ErrQueueNotFound)
	require.Equal(t, before, c.everything())
	require.Equal(t, 1, scan[int](c.bench, "SELECT count(*) FROM dispatcher.delayed"))
	require.Empty(t, c.audited())
}

func TestACancelledMessageNeverComesAndOneThatCameIsDeletedInTheLog(t *testing.T) {
	t.Parallel()
	c := newCold(t)
	q := c.queue("a", "q")
	c.group(q, "g", store.GroupOptions{})
	ids := delay(t, c.store, q.Shards[0], time.Now().Add(-time.Second), "cancelled", "came", "stays")
	cancel := func(id message.PendingID) store.Deleted {
		done, err := c.control.DeleteMessage(t.Context(), by("a"), "q", store.MessageName{Pending: &id})
		require.NoError(t, err)
		return done
	}

	first, second := cancel(ids[0]), cancel(ids[0])
	flushDue(t, c.control)
	came, again := cancel(ids[1]), cancel(ids[1])
	third := cancel(ids[0])
	_, gone := c.control.FindPending(t.Context(), q, ids[0])
	_, deleted := c.control.FindPending(t.Context(), q, ids[1])

	require.Equal(t, store.Deleted{Pending: ids[0], Cancelled: true}, first)
	require.Equal(t, []store.Deleted{first, first}, []store.Deleted{second, third})
	require.Equal(t, store.Deleted{ID: message.ID{Shard: q.Shards[0]}}, came)
	require.Equal(t, came, again)
	require.Equal(t, []string{"came", "stays"}, payloads(c.log(q)), "what was cancelled has no place in the log")
	require.EqualValues(t, 1, c.depth(q, "g"))
	require.ErrorIs(t, gone, store.ErrMessageNotFound)
	require.ErrorIs(t, deleted, store.ErrMessageNotFound)
	require.Equal(t, []string{"a ann message.cancel queue/q", "a ann message.delete queue/q"}, c.audited())
}

func TestRacingDeletesSeeksAndNewGroupsLeaveNoGroupWithADeletedMessage(t *testing.T) {
	t.Parallel()
	c := newCold(t)
	q := c.queue("a", "q")
	c.group(q, "g", store.GroupOptions{})
	for range 8 {
		c.push(q, msg("p", "x"), msg("r", "x"))
	}
	earliest := store.GroupOptions{Start: queue.Start{Kind: queue.Earliest}}

	noErrors(t, race(16, func(i int) error {
		return patiently(c.another(), func(control *store.Control) error {
			switch i % 4 {
			case 0:
				_, _, err := control.EnsureGroup(t.Context(), q, fmt.Sprint("h", i), earliest)
				return err
			case 1:
				s := kind(queue.Earliest)
				if i > 8 {
					s.Partition = "p"
				}
				_, err := control.Seek(t.Context(), by("a"), "q", "g", s)
				return err
			default: // half of them twice
				_, err := control.DeleteMessage(t.Context(), by("a"), "q", store.MessageName{ID: &message.ID{Shard: q.Shards[0], Offset: message.Offset(i % 8)}})
				return err
			}
		})
	}))

	detail, err := c.control.QueueDetail(t.Context(), q)
	require.NoError(t, err)
	require.Len(t, detail.Groups, 5)
	for _, g := range detail.Groups {
		require.EqualValues(t, 12, detail.States[g.ID].Depth, "2, 3, 6 and 7 are gone from %s", g.Name)
	}
	require.Equal(t, 4, scan[int](c.bench, "SELECT count(*) FROM audit.outbox WHERE action = 'message.delete'"))
}

func TestRacingCancelsAndTheirTimeEndInOneOfBoth(t *testing.T) {
	t.Parallel()
	c := newCold(t)
	q := c.queue("a", "q")
	c.group(q, "g", store.GroupOptions{})
	var names []string
	for i := range 12 {
		names = append(names, strconv.Itoa(i))
	}
	ids := delay(t, c.store, q.Shards[0], time.Now().Add(-time.Second), names...)

	noErrors(t, race(len(ids)+3, func(i int) error {
		return patiently(c.another(), func(control *store.Control) error {
			if i >= len(ids) {
				_, err := control.FlushDue(t.Context(), time.Time{}, nil)
				return err
			}
			_, err := control.DeleteMessage(t.Context(), by("a"), "q", store.MessageName{Pending: &ids[i]})
			return err
		})
	}))
	flushDue(t, c.control)

	require.Zero(t, c.depth(q, "g"), "each never came, or was deleted where it came")
	require.Equal(t, len(ids), scan[int](c.bench, "SELECT count(*) FROM audit.outbox"))
}

func TestTombstonesGoWithTheMessagesThatTheyAreAbout(t *testing.T) {
	t.Parallel()
	c := newCold(t)
	q := c.queue("a", "q")
	for range 3 {
		c.push(q, msg("p", "x"))
	}
	require.NoError(t, c.delete(q, 0))
	require.NoError(t, c.delete(q, 2))
	shards, err := c.control.ShardsToTrim(t.Context(), map[message.ShardID]message.Offset{q.Shards[0]: 0})
	require.NoError(t, err)

	_, err = c.control.Trim(t.Context(), q.Shards[0], shards[q.Shards[0]], retention.Cut{Settled: 2}, 100)

	require.NoError(t, err)
	require.Equal(t, []int64{2}, scan[[]int64](c.bench, `SELECT array_agg("offset") FROM dispatcher.tombstones`))
	require.ErrorIs(t, c.delete(q, 0), store.ErrMessageNotFound)
}

// TestADeleteCutOffAtItsEndIsDoneOnce breaks the connection at the last statements and at the COMMIT of a delete, in each way, and asks again as a client would.
func TestADeleteCutOffAtItsEndIsDoneOnce(t *testing.T) {
	t.Parallel()
	c := newCold(t)
	s, p := c.behindProxy()
	control := store.NewControl(s, c.enc, c.dec)
	made := 0
	attempt := func(n int, how cut) (func(), int) {
		made++
		q := c.queue("a", fmt.Sprint("q", made))
		c.group(q, "g", store.GroupOptions{})
		c.push(q, msg("p", "0"), msg("p", "1"))
		p.arm(n, how)
		err := errors.New("never asked")
		for try := 0; err != nil; try++ {
			require.Less(t, try, 5, "cut %d at message %d: %v", how, n, err)
			_, err = control.DeleteMessage(t.Context(), by("a"), q.Name, store.MessageName{ID: &message.ID{Shard: q.Shards[0]}})
		}
		messages, did := p.count()
		require.Equal(t, n > 0, did)
		return func() {
			require.EqualValues(t, 1, c.depth(q, "g"), "cut %d at message %d", how, n)
			require.Equal(t, 1, scan[int](c.bench, "SELECT count(*) FROM dispatcher.tombstones WHERE shard_id = $1", q.Shards[0]))
			require.Equal(t, 1, scan[int](c.bench, "SELECT count(*) FROM audit.outbox WHERE resource = $1", "queue/"+q.Name))
			require.Equal(t, 2, scan[int](c.bench, "SELECT version FROM dispatcher.group_shards WHERE shard_id = $1", q.Shards[0]))
		}, messages
	}
	attempt(0, 0) // prepares the statements
	verify, messages := attempt(0, 0)
	verify()

	for n := messages - 2; n <= messages; n++ {
		for how := cutBefore; how <= cutSplitEnd; how++ {
			attempt(0, 0) // the connection is as it was
			verify, _ := attempt(n, how)
			verify()
			p.deliver()
			require.NoError(t, c.settle())
			verify()
		}
	}
}
