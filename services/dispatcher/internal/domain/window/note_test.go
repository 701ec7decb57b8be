package window_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"postrider.dev/services/dispatcher/internal/domain/queue"
	"postrider.dev/services/dispatcher/internal/domain/settled"
	"postrider.dev/services/dispatcher/internal/domain/trace"
	"postrider.dev/services/dispatcher/internal/domain/window"
)

// trail is what the events alone say of a group-shard.
type trail struct {
	leased  map[window.Offset]uint64
	settled map[window.Offset]bool
	deleted map[window.Offset]bool // stayed settled in a seek
	trimmed window.Offset
}

func newTrail() *trail {
	return &trail{leased: map[window.Offset]uint64{}, settled: map[window.Offset]bool{}, deleted: map[window.Offset]bool{}}
}

// follow takes the events of a change in and demands that they say what the rows say: who holds what, and what is settled.
func (tr *trail) follow(w *world, p plan) {
	for _, e := range p.change.Events {
		tr.take(w, e)
	}
	for _, r := range p.requests {
		switch r := r.(type) {
		case *window.Trim:
			tr.trimmed = max(tr.trimmed, r.To)
		case *window.Seek:
			if r.Deleted != nil {
				for off := range r.Deleted.All() {
					tr.deleted[off] = true
				}
			}
		}
	}
	rows, err := w.mem.Read()
	require.NoError(w.t, err)
	held := map[window.Offset]uint64{}
	for _, l := range rows.Leases {
		_, entries, err := window.DecodeEntries(l.Entries)
		require.NoError(w.t, err)
		for _, e := range entries {
			held[e.Offset] = uint64(l.Epoch)
		}
	}
	require.Equal(w.t, held, tr.leased, "who holds what")
	done, err := settled.New(rows.Row.Hot, rows.Chunks)
	require.NoError(w.t, err)
	for off := range w.log.Head() {
		if has := done.Has(off); has != tr.settled[off] {
			require.True(w.t, has && (off < w.start || off < tr.trimmed || tr.deleted[off]), "message %d is settled: %t", off, has)
		}
	}
}

func (tr *trail) take(w *world, e trace.Event) {
	switch e.Kind {
	case trace.Delivered:
		require.NotContains(w.t, tr.leased, e.Offset)
		require.False(w.t, tr.settled[e.Offset], "delivered after it was settled")
		require.Positive(w.t, e.Attempt)
		require.Positive(w.t, e.After)
		tr.leased[e.Offset] = e.Epoch
	case trace.Acked, trace.Rejected, trace.Nacked, trace.Expired, trace.Released, trace.Returned:
		require.Equal(w.t, tr.leased[e.Offset], e.Epoch, "%+v", e)
		delete(tr.leased, e.Offset)
		if e.Kind == trace.Acked {
			tr.settled[e.Offset] = true
		}
	case trace.Deleted:
		if e.Epoch != 0 {
			require.Equal(w.t, tr.leased[e.Offset], e.Epoch)
			delete(tr.leased, e.Offset)
		}
		require.NotContains(w.t, tr.leased, e.Offset)
		tr.settled[e.Offset] = true
	case trace.DeadLettered:
		require.NotContains(w.t, tr.leased, e.Offset)
		tr.settled[e.Offset] = true
	case trace.Sought:
		for off := range w.log.Head() {
			if hash, _ := w.log.Hash(off); e.Hash == 0 || e.Hash == hash {
				delete(tr.leased, off)
				tr.settled[off] = off < e.Offset
			}
		}
	default:
		w.t.Fatalf("unknown event %+v", e)
	}
}

func TestWithoutTheOptionNothingIsNoted(t *testing.T) {
	t.Parallel()
	s := newSim(t, queue.Ordered, queue.Block)
	s.log.Append(1, 2)
	pop := &window.Pop{MaxMessages: 9, Lease: time.Minute}
	s.log.Supply(s.v, pop)
	change, _ := s.v.Plan(s.mem.Now(), half, []window.Request{pop})
	require.NotEmpty(t, change.LeaseInserts)
	require.Empty(t, change.Events)
}

func TestAChangeSaysWhatItDoesToEachMessage(t *testing.T) {
	t.Parallel()
	s := newSim(t, queue.Ordered, queue.Block)
	s.p.Trace = true
	s.reload()
	s.log.Append(1, 1, 2)
	do := func(r window.Request) []trace.Event {
		t.Helper()
		change, _ := s.v.Plan(s.mem.Now(), half, []window.Request{r})
		stamp, err := s.mem.Apply(change)
		require.NoError(t, err)
		s.v.Commit(change, stamp)
		return change.Events
	}
	pop := &window.Pop{MaxMessages: 9, Lease: time.Minute, Holder: "anna"}
	s.log.Supply(s.v, pop)

	got := do(pop)
	epoch := got[0].Epoch
	require.Equal(t, []trace.Event{
		{Kind: trace.Delivered, Offset: 0, Epoch: epoch, Attempt: 1, After: time.Minute, Text: "anna"},
		{Kind: trace.Delivered, Offset: 1, Epoch: epoch, Attempt: 1, After: time.Minute, Text: "anna"},
		{Kind: trace.Delivered, Offset: 2, Epoch: epoch, Attempt: 1, After: time.Minute, Text: "anna"},
	}, got)
	require.Equal(t, []trace.Event{
		{Kind: trace.Nacked, Offset: 0, Epoch: epoch, After: time.Second, Text: "no"},
		{Kind: trace.Returned, Offset: 1, Epoch: epoch},
		{Kind: trace.Rejected, Offset: 2, Epoch: epoch, Text: "never"},
		{Kind: trace.DeadLettered, Offset: 2, Text: "rejected"},
	}, do(&window.Settle{Epoch: window.Epoch(epoch), Items: []window.Item{nack(0), {Offset: 2, Verdict: window.Reject, Reason: "never"}}}))
	require.Equal(t, []trace.Event{{Kind: trace.Sought, Offset: 1}}, do(&window.Seek{To: 1}))
	change, _ := s.v.Plan(s.mem.Now(), half, []window.Request{&window.Release{Epoch: window.Epoch(epoch)}})
	require.Empty(t, change.Events, "what is refused is no event")
}
