package window

import (
	"cmp"
	"slices"
	"time"

	"postrider.dev/services/dispatcher/internal/domain/lease"
	"postrider.dev/services/dispatcher/internal/domain/message"
)

// picking is one pop in the making.
type picking struct {
	req   *Pop
	bytes int64
	parts int
	full  bool // takes no more

	entries  []entry
	messages []Message
}

func (p *planner) pop(r *Pop) Outcome {
	if p.change.Drop {
		return Outcome{Result: Nothing, Refusal: true, Stop: StopAlreadyGone}
	}
	if p.trimTo > 0 { // what is listed may be what was trimmed
		return Outcome{Result: Nothing, Refusal: true, Again: true}
	}
	if len(p.v.leases)+len(p.granted) >= p.v.lim.leases || p.v.leased+p.took >= p.v.lim.leased || p.ordinal > lease.MaxOrdinal {
		return Outcome{Result: Refused, Refusal: true, Stop: StopLeases}
	}
	if r.Named && p.v.crowded() {
		if k := p.v.keys[r.Hash]; k != nil && k.rows == 0 && p.v.ready(k) && p.v.first(k) >= p.v.frontier {
			return Outcome{Result: Refused, Refusal: true, Stop: StopBlocked}
		}
	}
	g := picking{req: r}
	if r.Named {
		if k := p.v.keys[r.Hash]; k != nil {
			p.take(&g, k)
		}
	} else {
		p.walk(&g)
	}
	out := Outcome{Result: Nothing, Refusal: true, Stop: p.v.Stopped()}
	if !g.full && len(g.entries) < r.MaxMessages && !p.reclaimed {
		p.reclaimed = true
		out.Again = p.reclaim(0).Count > 0
	}
	if len(g.entries) == 0 {
		out.Again = out.Again || p.returns
		return out
	}
	return p.grant(&g)
}

// walk serves a pop of any partition: the ring from its front, then what this plan itself made available or has served already.
func (p *planner) walk(g *picking) {
	turn := &p.v.turn
	if !p.walked {
		p.turnAt, p.walked = turn.front(), true
	}
	for p.turnAt != nil && p.served(p.turnAt) {
		p.turnAt = turn.after(p.turnAt)
	}
	for k := p.turnAt; k != nil && !g.full; k = turn.after(k) {
		if !p.served(k) {
			p.take(g, k)
			if p.v.shared && p.served(k) {
				p.again = append(p.again, k)
			}
		}
	}
	for n := len(p.again) - p.againAt; n > 0 && !g.full; n-- {
		k := p.again[p.againAt]
		p.againAt++
		p.take(g, k)
		if p.v.shared || !p.served(k) {
			p.again = append(p.again, k)
		}
	}
}

// served tells that k had its turn in this plan, or cannot have one.
func (p *planner) served(k *key) bool {
	return k.mark == p.seq && (k.dirty || k.tookNew+k.tookDue > 0)
}

// take hands out what k has, within the pop's bounds.
func (p *planner) take(g *picking, k *key) {
	v := p.v
	p.touch(k)
	if k.dirty || !v.shared && (k.leased > k.freed || k.tookNew+k.tookDue > 0) {
		return
	}
	limit := MaxOffset
	if len(k.waits) > 0 {
		limit = k.wall()
	}
	got := false
	for !g.full {
		it, r, ok := p.next(k, limit)
		if !ok || slices.Contains(g.req.Skip, it.off) {
			return
		}
		if !got && g.req.MaxPartitions > 0 && g.parts >= g.req.MaxPartitions {
			g.full = true
			return
		}
		alone, n := (k.rows > 0) && k.alone(it.off, r), len(g.entries)
		if alone && n > 0 {
			return
		}
		if (n > 0 || g.req.Started) && g.req.MaxBytes > 0 && g.bytes+message.WireBound(it.size) > g.req.MaxBytes || v.leased+p.took+n >= v.lim.leased {
			g.full = true
			return
		}
		if !got {
			got = true
			g.parts++
		}
		p.hand(g, k, it, r)
		g.full = alone || n+1 >= g.req.MaxMessages
	}
}

// next is the message of k to be handed out now.
func (p *planner) next(k *key, limit Offset) (it item, r *retry, ok bool) {
	list := k.listed()[k.tookNew:]
	due := k.due[k.tookDue:]
	if len(due) > 0 && !p.v.shared && (due[0].row.Offset >= p.v.known(k) || len(list) > 0 && list[0].off < due[0].row.Offset) {
		due = nil
	}
	switch {
	case len(due) > 0:
		it, r = item{off: due[0].row.Offset, size: due[0].size}, due[0]
	case len(list) > 0:
		it = list[0]
	default:
		return item{}, nil, false
	}
	return it, r, it.off < limit
}

func (p *planner) hand(g *picking, k *key, it item, r *retry) {
	m := Message{Offset: it.off, Hash: k.hash, Size: it.size, Attempt: 1}
	if r != nil {
		k.tookDue++
		m.Attempt, m.Failures = r.row.Deliveries+1, r.row.Failures
		p.change.NotBefore = max(p.change.NotBefore, r.row.AvailableAt)
	} else {
		k.tookNew++
		p.ripen()
	}
	if cap(g.entries) == 0 {
		n := max(1, min(g.req.MaxMessages, max(p.v.admitted, 16)))
		g.entries, g.messages = make([]entry, 0, n), make([]Message, 0, n)
	}
	g.entries = append(g.entries, entry{off: it.off, key: k, size: it.size})
	g.messages = append(g.messages, m)
	g.bytes += message.WireBound(it.size)
}

func (p *planner) grant(g *picking) Outcome {
	epoch := lease.MakeEpoch(p.v.version+1, uint16(p.ordinal))
	p.ordinal++
	slices.SortFunc(g.entries, func(a, b entry) int { return cmp.Compare(a.off, b.off) })
	slices.SortFunc(g.messages, func(a, b Message) int { return cmp.Compare(a.Offset, b.Offset) })
	l := &leaseState{epoch: epoch, holder: g.req.Holder, alone: len(g.entries) == 1, entries: g.entries}
	p.granted = append(p.granted, l)
	p.took += len(l.entries)
	length := g.req.Lease.Truncate(time.Microsecond)
	l.extend = DBTime(length / time.Microsecond)
	p.change.LeaseInserts = append(p.change.LeaseInserts, LeaseInsert{
		Epoch: epoch, Lease: length, Holder: g.req.Holder, Entries: encode(l.alone, l.entries, nil),
	})
	p.noteGrant(epoch, length, g.req.Holder, g.messages)
	return Outcome{Result: Done, Epoch: epoch, Lease: length, Messages: g.messages, Count: len(g.messages), Told: p.tell()}
}
