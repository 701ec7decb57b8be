package window

import (
	"cmp"
	"slices"

	"postrider.dev/services/dispatcher/internal/domain/settled"
	"postrider.dev/services/dispatcher/internal/domain/trace"
)

// MaxSeekChunks bounds what a seek of one partition may rewrite: its messages lie in at most so many chunks of settled.ChunkLen offsets.
const MaxSeekChunks = 16_384

// Seek says where the group stands: what lies before To counts as done, everything from there on comes again. What is leased is fenced off, and what
// failed begins anew. Dead letters stay. Lay it alone.
//
// Without Keyed it is about the whole shard and costs the same whatever was settled. With Keyed it is about the messages of one partition hash, and takes
// only these out of leases that hold others too.
type Seek struct {
	To    Offset // in the log, or its head
	Keyed bool
	Hash  uint64
	// Members, with Keyed: every message of the hash in the log whose mark may have to change. Read under the lock of the group-shard's row, because
	// whatever commits later is not settled and lies behind To.
	Members *settled.Marks
	// Deleted are messages that stay settled wherever the group stands.
	Deleted *settled.Marks
}

func (*Seek) request() {}

// soughtAlone carries out a seek if there is one, and tells whether there was. Nothing else is planned beside it: leases that go could not be told from
// leases that are settled.
func (p *planner) soughtAlone(requests []Request, outcomes []Outcome) bool {
	at := slices.IndexFunc(requests, func(r Request) bool { _, ok := r.(*Seek); return ok })
	if at < 0 {
		return false
	}
	if len(requests) > 1 {
		for i := range outcomes {
			outcomes[i] = Outcome{Result: Refused, Refusal: true, Stop: StopNotAlone}
		}
		return true
	}
	p.change.Active = true // it is used; else a group that was silent for long would lose at once what it comes back for
	seek, _ := requests[at].(*Seek)
	if seek.Keyed {
		outcomes[at] = p.seekKey(seek)
	} else {
		outcomes[at] = p.seekAll(seek)
	}
	return true
}

// seekAll begins the group-shard anew.
func (p *planner) seekAll(r *Seek) Outcome {
	v, c := p.v, &p.change
	p.fresh = settled.StartWith(r.To, r.Deleted)
	c.Sought, c.Reset, c.To = true, true, c.From+1
	c.Hot, c.Low, c.UnsettledBelow, c.ChunkUpserts = *p.fresh.Hot(), p.fresh.Low(), p.fresh.Below(), p.fresh.Rows()
	c.LeaseLow = c.To
	p.note(trace.Sought, r.To, trace.Event{})
	return Outcome{Result: Done, From: v.done.Low(), Leases: len(v.leases), Count: v.leased}
}

// seekKey moves one partition. From is its first message that was not settled, MaxOffset if all were.
func (p *planner) seekKey(r *Seek) Outcome {
	if r.Members.Chunks() > MaxSeekChunks {
		return Outcome{Result: Refused, Refusal: true, Stop: StopWide}
	}
	out := Outcome{Result: Done, From: MaxOffset}
	p.change.Sought = true
	p.note(trace.Sought, r.To, trace.Event{Hash: r.Hash})
	for l := p.v.oldest; l != nil; l = l.next {
		if n := p.takeOut(l, r.Hash); n > 0 {
			out.Leases++
			out.Count += n
		}
	}
	for _, row := range p.v.rowsOf(r.Hash) {
		p.setRow(rowEdit{row: row.row, gone: true})
	}
	for off := range r.Members.All() {
		had := p.edit.Has(off)
		if !had {
			out.From = min(out.From, off)
		}
		switch done := off < r.To || r.Deleted.Has(off); {
		case done && !had:
			p.edit.Settle(off, false)
		case !done && had:
			p.edit.Unsettle(off)
		}
	}
	return out
}

// takeOut takes the messages of a partition out of a lease, and returns how many it held.
func (p *planner) takeOut(l *leaseState, hash uint64) int {
	n := 0
	for i := range l.entries {
		if l.entries[i].key.hash == hash {
			p.touchLease(l)
			p.leave(l, i, comesBack)
			n++
		}
	}
	return n
}

// rowsOf lists the retry rows of a partition by offset.
func (v *View) rowsOf(hash uint64) []*retry {
	var list []*retry
	for _, r := range v.retries {
		if r.key.hash == hash {
			list = append(list, r)
		}
	}
	slices.SortFunc(list, func(a, b *retry) int { return cmp.Compare(a.row.Offset, b.row.Offset) })
	return list
}

// commitSeek makes the view what its rows are after a seek. What was admitted says nothing any more.
func (v *View) commitSeek(p *planner, c Change, stamp Stamp) {
	v.sought = c.To
	if c.Reset {
		v.done = *p.fresh
		v.empty()
		return
	}
	v.done.Apply(p.diff)
	v.commitLeases(p, stamp)
	for _, off := range c.RetryDeletes {
		v.dropRow(off)
	}
	v.restart()
}

// empty forgets everything but the settled marks.
func (v *View) empty() {
	v.out = offsets{}
	v.leases, v.expiry, v.oldest, v.newest, v.leased = map[Epoch]*leaseState{}, nil, nil, nil, 0
	v.retries, v.waiting, v.dueUpTo, v.rowsBehind = map[Offset]*retry{}, nil, 0, 0
	v.keys, v.admitted, v.offered, v.cuts = map[uint64]*key{}, 0, 0, 0
	v.turn.init(slotTurn)
	v.parked.init(slotTurn)
	v.starving.init(slotRefill)
	v.remembered.init(slotRefill)
	v.frontier, v.ripeAt = v.done.Low(), 0
}
