package store_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"postrider.dev/pkg/tenant"
	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/placement"
	"postrider.dev/services/dispatcher/internal/domain/queue"
	"postrider.dev/services/dispatcher/internal/domain/retention"
	"postrider.dev/services/dispatcher/internal/domain/trace"
	"postrider.dev/services/dispatcher/internal/domain/window"
	"postrider.dev/services/dispatcher/internal/store"
)

// traced makes a queue with the option, and a group of it.
func (c *cold) traced(name string) (store.Queue, store.Group) {
	c.t.Helper()
	p, err := queue.ParsePatch([]byte(`{"trace":true}`))
	require.NoError(c.t, err)
	done, err := c.control.Configure(c.t.Context(), tenant.Caller{Tenant: "a", Actor: "k"}, name, p)
	require.NoError(c.t, err)
	q := done.Queue
	return q, c.group(q, "g", store.GroupOptions{})
}

// changes is a group's state on the first shard, changed as a dispatcher would.
type changes struct {
	c    *cold
	q    store.Queue
	gs   window.GroupShardID
	view *window.View
}

func (c *cold) changes(q store.Queue, g store.Group) *changes {
	c.t.Helper()
	s, err := c.store.Snapshot(c.t.Context(), g.Shards[0])
	require.NoError(c.t, err)
	v, err := window.Load(s.Snapshot, window.Policy{
		Mode: g.Mode, OnFailure: g.OnFailure, MaxAttempts: 3, Backoff: queue.Backoff{Base: time.Second, Cap: time.Second}, Trace: q.Config.Trace,
	})
	require.NoError(c.t, err)
	dirs, err := c.store.Directories(c.t.Context(), q.Shards[0], 0, 1<<40, 1_000)
	require.NoError(c.t, err)
	for _, d := range dirs {
		v.Admit(d)
	}
	return &changes{c: c, q: q, gs: g.Shards[0], view: v}
}

// do carries out one request; edit may change the change before it is written.
func (h *changes) do(want window.Request, edit func(*window.Change)) (window.Outcome, store.WorkResult) {
	h.c.t.Helper()
	now, err := h.c.store.Now(h.c.t.Context())
	require.NoError(h.c.t, err)
	change, outs := h.view.Plan(now, func() float64 { return 0 }, []window.Request{want})
	for i := range change.DeadLetters {
		change.DeadLetters[i].ID = [16]byte{1, byte(change.DeadLetters[i].Offset)}
	}
	sent := change
	if edit != nil {
		edit(&sent)
	}
	results, err := h.c.store.Work(h.c.t.Context(), []window.Change{sent})
	require.NoError(h.c.t, err)
	if results[0].Applied {
		h.view.Commit(change, results[0].Stamp)
	}
	return outs[0], results[0]
}

func (h *changes) pop(n int) window.Epoch {
	h.c.t.Helper()
	out, _ := h.do(&window.Pop{MaxMessages: n, Lease: time.Minute, Holder: "anna@12345678"}, nil)
	require.Equal(h.c.t, window.Done, out.Result)
	return out.Epoch
}

// told is the events of a message, as kinds with their groups.
func (c *cold) told(q store.Queue, at message.Offset, page store.TracePage) []string {
	c.t.Helper()
	if page.Limit == 0 {
		page.Limit = 100
	}
	got, err := c.control.Trace(c.t.Context(), q, message.ID{Shard: q.Shards[0], Offset: at}, page)
	require.NoError(c.t, err)
	var out []string
	for i, e := range got.Events.Events {
		out = append(out, fmt.Sprintf("%d%s", e.Kind, e.Group))
		if i > 0 {
			require.False(c.t, e.At.Before(got.Events.Events[i-1].At), "in order")
		}
	}
	return out
}

func events(list ...trace.Kind) []string {
	var out []string
	for _, k := range list {
		group := "g"
		if k == trace.Pushed || k == trace.Trimmed || k == trace.Due {
			group = ""
		}
		out = append(out, fmt.Sprintf("%d%s", k, group))
	}
	return out
}

func TestATracedMessageTellsWhatHappenedToItInOrder(t *testing.T) {
	t.Parallel()
	c := newCold(t)
	q, g := c.traced("q")
	c.push(q, msg("p", "0"), msg("p", "1"), msg("r", "2"))
	h := c.changes(q, g)

	first := h.pop(9)
	h.do(&window.Settle{Epoch: first, Items: []window.Item{
		{Offset: 0, Verdict: window.Nack, HasDelay: true, Delay: time.Microsecond, Reason: "no\x00luck"}, {Offset: 2, Verdict: window.Ack},
	}}, nil)
	second := h.pop(1)
	h.do(&window.Settle{Epoch: second, Items: []window.Item{{Offset: 0, Verdict: window.Reject, Reason: "never"}}}, nil)

	require.Equal(t, events(trace.Pushed, trace.Delivered, trace.Nacked, trace.Delivered, trace.Rejected, trace.DeadLettered), c.told(q, 0, store.TracePage{}))
	require.Equal(t, events(trace.Pushed, trace.Delivered, trace.Returned), c.told(q, 1, store.TracePage{}))
	require.Equal(t, events(trace.Pushed, trace.Delivered, trace.Acked), c.told(q, 2, store.TracePage{Group: "g"}))
	got, err := c.control.Trace(t.Context(), q, message.ID{Shard: q.Shards[0]}, store.TracePage{Limit: 100})
	require.NoError(t, err)
	e := got.Events.Events
	require.Equal(t, got.CreatedAt, e[0].At, "the log tells when it was pushed")
	require.Equal(t, trace.Event{Kind: trace.Delivered, Epoch: uint64(first), Attempt: 1, After: time.Minute, Text: "anna@12345678"}, e[1].Event)
	require.Equal(t, trace.Event{Kind: trace.Nacked, Epoch: uint64(first), After: time.Microsecond, Text: "no\uFFFDluck"}, e[2].Event)
	require.Equal(t, 2, e[3].Attempt)
	require.Equal(t, trace.Event{Kind: trace.Rejected, Epoch: uint64(second), Text: "never"}, e[4].Event)

	c.group(q, "other", store.GroupOptions{})
	require.Equal(t, events(trace.Pushed), c.told(q, 0, store.TracePage{Group: "other"}))
}

func TestOfWhatIsNotTracedNothingIsWritten(t *testing.T) {
	t.Parallel()
	c := newCold(t)
	q := c.queue("a", "q")
	g := c.group(q, "g", store.GroupOptions{})
	c.push(q, msg("p", "0"))
	h := c.changes(q, g)
	h.do(&window.Settle{Epoch: h.pop(1), Items: []window.Item{{Offset: 0, Verdict: window.Ack}}}, nil)

	require.Zero(t, scan[int](c.bench, "SELECT count(*) FROM dispatcher.trace_events"))
	require.Equal(t, events(trace.Pushed), c.told(q, 0, store.TracePage{}), "the log tells of the push")
}

func TestAChangeThatIsNotAppliedLeavesNoEvents(t *testing.T) {
	t.Parallel()
	c := newCold(t)
	q, g := c.traced("q")
	c.push(q, msg("p", "0"))
	h := c.changes(q, g)

	_, lost := h.do(&window.Pop{MaxMessages: 1, Lease: time.Minute}, func(ch *window.Change) { ch.From++ })
	require.False(t, lost.Applied)
	require.Zero(t, scan[int](c.bench, "SELECT count(*) FROM dispatcher.trace_events"))
	c.exec("ALTER TABLE dispatcher.trace_events ADD CONSTRAINT broken_ck CHECK (false) NOT VALID")
	now, err := c.store.Now(t.Context())
	require.NoError(t, err)
	change, _ := h.view.Plan(now, func() float64 { return 0 }, []window.Request{&window.Pop{MaxMessages: 1, Lease: time.Minute}})
	_, err = c.store.Work(t.Context(), []window.Change{change})
	require.Error(t, err)
	require.Zero(t, scan[int](c.bench, "SELECT count(*) FROM dispatcher.leases"), "no change without its events")
}

func TestEventsOfAnEncryptedQueueTellNoReason(t *testing.T) {
	t.Parallel()
	c := newCold(t)
	q, g := c.traced("q")
	c.push(q, msg("p", "0"))
	h := c.changes(q, g)
	h.do(&window.Settle{Epoch: h.pop(1), Items: []window.Item{{Offset: 0, Verdict: window.Nack, Reason: "the secret"}}},
		func(ch *window.Change) { ch.Private = true })

	got, err := c.control.Trace(t.Context(), q, message.ID{Shard: q.Shards[0]}, store.TracePage{Limit: 100})
	require.NoError(t, err)
	require.Equal(t, trace.Nacked, got.Events.Events[2].Kind)
	require.Empty(t, got.Events.Events[2].Text)
	require.Equal(t, "anna@12345678", got.Events.Events[1].Text, "who held it is no secret: leases tell it, too")
}

func TestEventsComeInPagesThatMissNoneAndRepeatNone(t *testing.T) {
	t.Parallel()
	c := newCold(t)
	q, g := c.traced("q")
	c.push(q, msg("p", "0"), msg("r", "1"))
	h := c.changes(q, g)
	for range 20 {
		h.do(&window.Release{Epoch: h.pop(2)}, nil)
	}

	var all []string
	page := store.TracePage{Limit: 3}
	for n := 0; ; n++ {
		got, err := c.control.Trace(t.Context(), q, message.ID{Shard: q.Shards[0], Offset: 1}, page)
		require.NoError(t, err)
		require.LessOrEqual(t, len(got.Events.Events), 4)
		for _, e := range got.Events.Events {
			all = append(all, fmt.Sprint(e.Kind))
		}
		if page.After = got.Events.Next; page.After == 0 {
			break
		}
		require.Less(t, n, 30)
	}
	want := []string{"1"}
	for range 20 {
		want = append(want, "3", "9")
	}
	require.Equal(t, want, all)
}

func TestWhatIsTrimmedStillTellsWhenItWasPushed(t *testing.T) {
	t.Parallel()
	c := newCold(t)
	q, g := c.traced("q")
	many := make([]message.Message, 300)
	for i := range many {
		many[i] = msg("p", "x")
	}
	c.push(q, many...)
	c.push(q, msg("p", "newest"))
	h := c.changes(q, g)
	h.do(&window.Settle{Epoch: h.pop(1), Items: []window.Item{{Offset: 0, Verdict: window.Ack}}}, nil)
	found, err := c.control.FindByID(t.Context(), q, message.ID{Shard: q.Shards[0], Offset: 299})
	require.NoError(t, err)

	took, err := c.control.Trim(t.Context(), q.Shards[0], retention.Shard{Head: 301}, retention.Cut{Settled: 300, Trace: true}, 10)
	require.NoError(t, err)
	require.EqualValues(t, 300, took.Messages)

	require.Equal(t, events(trace.Pushed, trace.Delivered, trace.Acked, trace.Trimmed), c.told(q, 0, store.TracePage{}))
	require.Equal(t, events(trace.Pushed, trace.Trimmed), c.told(q, 299, store.TracePage{}), "on the next page of offsets, too")
	require.Equal(t, events(trace.Pushed), c.told(q, 300, store.TracePage{}))
	got, err := c.control.Trace(t.Context(), q, message.ID{Shard: q.Shards[0], Offset: 299}, store.TracePage{Limit: 9})
	require.NoError(t, err)
	require.True(t, got.Trimmed)
	require.True(t, found.CreatedAt.Equal(got.Events.Events[0].At))
}

func TestASeekIsToldToTheMessagesItIsAbout(t *testing.T) {
	t.Parallel()
	c := newCold(t)
	q, _ := c.traced("q")
	c.push(q, msg("p", "0"), msg("r", "1"))
	by := tenant.Caller{Tenant: "a", Actor: "k"}

	_, err := c.control.Seek(t.Context(), by, "q", "g", store.Seek{To: queue.Place{Start: queue.Start{Kind: queue.Latest}}})
	require.NoError(t, err)
	_, err = c.control.Seek(t.Context(), by, "q", "g", store.Seek{Partition: "r", To: queue.Place{Start: queue.Start{Kind: queue.Earliest}}})
	require.NoError(t, err)

	require.Equal(t, events(trace.Pushed, trace.Sought), c.told(q, 0, store.TracePage{}))
	require.Equal(t, events(trace.Pushed, trace.Sought, trace.Sought), c.told(q, 1, store.TracePage{}))
	got, err := c.control.Trace(t.Context(), q, message.ID{Shard: q.Shards[0], Offset: 1}, store.TracePage{Limit: 9})
	require.NoError(t, err)
	require.EqualValues(t, 2, got.Events.Events[1].Offset)
	require.Equal(t, placement.Hash("r"), got.Events.Events[2].Hash)
}

func TestARedriveIsToldToTheMessageItsDeadLetterWasMadeOf(t *testing.T) {
	t.Parallel()
	c := newCold(t)
	q, _ := c.traced("q")
	c.push(q, msg("p", "0"))
	letter := c.deadLetter(q, "g", "p", "0") // at offset 0
	by := tenant.Caller{Tenant: "a", Actor: "k"}

	for range 2 {
		_, err := c.control.Redrive(t.Context(), by, "q", store.RedriveRequest{IDs: []store.DeadLetterID{letter}})
		require.NoError(t, err)
	}
	require.Equal(t, events(trace.Pushed, trace.Redriven), c.told(q, 0, store.TracePage{}), "once, however often it is asked for")
	require.Equal(t, events(trace.Pushed), c.told(q, 1, store.TracePage{}))
}

func TestEventsAreForgottenAfterADayInBoundedSteps(t *testing.T) {
	t.Parallel()
	c := newCold(t)
	q, g := c.traced("q")
	c.push(q, msg("p", "0"))
	h := c.changes(q, g)
	for range 3 {
		h.do(&window.Release{Epoch: h.pop(1)}, nil)
	}
	c.exec("UPDATE dispatcher.trace_events SET at = at - interval '24 hours 1 second' WHERE id <= (SELECT min(id) + 3 FROM dispatcher.trace_events)")

	for _, want := range []int{3, 1, 0} {
		n, err := c.control.TrimTraces(t.Context(), 3)
		require.NoError(t, err)
		require.Equal(t, want, n)
	}
	require.Equal(t, events(trace.Pushed, trace.Delivered, trace.Released), c.told(q, 0, store.TracePage{}))
}

func TestEventsDieWithTheirQueue(t *testing.T) {
	t.Parallel()
	c := newCold(t)
	q, g := c.traced("q")
	other, og := c.traced("other")
	c.push(q, msg("p", "0"))
	c.push(other, msg("p", "0"))
	for _, h := range []*changes{c.changes(q, g), c.changes(other, og)} {
		h.do(&window.Release{Epoch: h.pop(1)}, nil)
	}
	_, err := c.control.Seek(t.Context(), tenant.Caller{Tenant: "a", Actor: "k"}, "q", "g", store.Seek{To: queue.Place{Start: queue.Start{Kind: queue.Latest}}})
	require.NoError(t, err)
	require.Equal(t, 5, scan[int](c.bench, "SELECT count(*) FROM dispatcher.trace_events"))

	_, err = c.control.DeleteQueue(t.Context(), tenant.Caller{Tenant: "a", Actor: "k"}, "q", true)
	require.NoError(t, err)
	c.purgeAll()
	require.Equal(t, 2, scan[int](c.bench, "SELECT count(*) FROM dispatcher.trace_events"))
	require.Equal(t, events(trace.Pushed, trace.Delivered, trace.Released), c.told(other, 0, store.TracePage{}))
}
