package window

import (
	"cmp"
	"slices"
	"sort"
	"time"

	"postrider.dev/services/dispatcher/internal/domain/trace"
)

// settle gives an outcome for each item: first what is said about single messages, then what is said about all that are left.
func (p *planner) settle(r *Settle) Outcome {
	out := Outcome{Result: Done, Epoch: r.Epoch, Items: make([]ItemResult, len(r.Items))}
	l := p.lease(r.Epoch)
	understood := p.named(l, r.Items, out.Items)
	for _, nacks := range []bool{false, true} {
		for i := range r.Items {
			item := &r.Items[i]
			switch {
			case !item.Through || (item.Verdict == Nack) != nacks:
			case l == nil:
				out.Items[i] = p.refuse(l, item.Offset)
			case !understood:
				out.Items[i] = ItemResult{Result: Refused}
			default:
				out.Items[i] = p.through(l, item)
			}
		}
	}
	for i := range out.Items {
		out.Refusal = out.Refusal || out.Items[i].Result.refusal()
		out.Count += out.Items[i].Count
	}
	if out.Refusal && out.Count == 0 {
		out.Result = out.Items[0].Result
		if slices.ContainsFunc(out.Items, func(i ItemResult) bool { return i.Result == Stale }) {
			out.Result = Stale
		}
	}
	return out
}

// named carries out what is said about single messages, in the order of the log, whatever the order of the items. In a group that blocks, a
// message that failed stops its partition: what lies behind it in the lease comes back, whatever is said about it. named reports whether
// nothing was refused, so that what is left of the lease is what the caller means by that.
func (p *planner) named(l *leaseState, items []Item, results []ItemResult) bool {
	understood := true
	p.order = p.order[:0]
	for i := range items {
		item := &items[i]
		switch {
		case item.Through:
		case l != nil && p.holds(l, item.Offset):
			p.order = append(p.order, i)
		default:
			results[i] = p.refuse(l, item.Offset)
			understood = understood && results[i].Result == AlreadySettled && item.Verdict == Ack
		}
	}
	slices.SortFunc(p.order, func(a, b int) int {
		return cmp.Or(cmp.Compare(items[a].Offset, items[b].Offset), cmp.Compare(items[a].Verdict.rank(), items[b].Verdict.rank()), cmp.Compare(a, b))
	})
	for n, i := range p.order {
		item := &items[i]
		at := l.find(item.Offset)
		switch code := *p.code(l, at); {
		case code == stays:
			results[i] = p.verdict(l, at, item)
		case code == comesBack:
			results[i] = ItemResult{Result: Returned}
		case items[p.order[n-1]].Verdict == item.Verdict: // said twice, answered twice
			results[i] = results[p.order[n-1]]
			results[i].Count = 0
		default: // two verdicts about one message: the first of them holds
			results[i] = p.refuse(l, item.Offset)
			understood = false
		}
	}
	return understood
}

// holds says whether a lease has a message, as this plan leaves it.
func (p *planner) holds(l *leaseState, off Offset) bool {
	i := l.find(off)
	return i >= 0 && *p.code(l, i) == stays
}

// through takes a verdict of every message that is left, up to one.
func (p *planner) through(l *leaseState, item *Item) ItemResult {
	res := ItemResult{}
	end := sort.Search(len(l.entries), func(i int) bool { return l.entries[i].off > item.Offset })
	for i := range end {
		if *p.code(l, i) != stays || item.Keyed && l.entries[i].key.hash != item.Hash {
			continue
		}
		one := p.verdict(l, i, item)
		if item.Verdict == Nack && one.Result == DeadLettered && p.v.blocks {
			p.giveBackBehind(l, i, trace.Returned) // who gives up on a batch was at the first of a partition, not at all of them
		}
		if res.Count == 0 || one.Result == Retrying {
			res.Result, res.Delay = one.Result, one.Delay
		}
		res.Count++
	}
	if res.Count == 0 {
		return p.refuse(l, item.Offset)
	}
	return res
}

// refuse says why a message is not in a lease (R4).
func (p *planner) refuse(l *leaseState, off Offset) ItemResult {
	switch {
	case off >= 0 && off <= maxOffset && p.edit.Has(off):
		return ItemResult{Result: AlreadySettled}
	case l != nil:
		return ItemResult{Result: NotHeld}
	}
	return ItemResult{Result: Stale}
}

func (p *planner) verdict(l *leaseState, i int, item *Item) ItemResult {
	e := l.entries[i]
	switch item.Verdict {
	case Ack:
		p.noteOf(trace.Acked, l, i, 0, "")
		p.settleOffset(e.off, p.leave(l, i, becomesSettled))
		return ItemResult{Result: Done, Count: 1}
	case Reject:
		p.noteOf(trace.Rejected, l, i, 0, item.Reason)
		row, _ := p.row(e.off)
		row.PartitionHash, row.LastError = e.key.hash, item.Reason
		row.Deliveries++
		row.Failures++
		p.bury(row, DeadRejected)
		p.noteDead(e.off, DeadRejected)
		p.settleOffset(e.off, p.leave(l, i, becomesSettled))
		return ItemResult{Result: DeadLettered, Count: 1}
	default:
		return p.nack(l, i, item)
	}
}

func (p *planner) nack(l *leaseState, i int, item *Item) ItemResult {
	e := l.entries[i]
	var wait *time.Duration
	if item.HasDelay {
		wait = &item.Delay
	}
	delay, again := p.fail(e.off, e.key, DeadAttempts, item.Reason, wait, false)
	p.noteOf(trace.Nacked, l, i, delay, item.Reason)
	if !again {
		p.noteDead(e.off, DeadAttempts)
		p.settleOffset(e.off, p.leave(l, i, becomesSettled))
		return ItemResult{Result: DeadLettered, Count: 1}
	}
	p.leave(l, i, waits)
	if p.v.blocks {
		p.giveBackBehind(l, i, trace.Returned)
	}
	return ItemResult{Result: Retrying, Count: 1, Delay: delay}
}

// giveBackBehind returns the later messages of the same partition, uncharged; kind is what that is called.
func (p *planner) giveBackBehind(l *leaseState, i int, kind trace.Kind) int {
	n := 0
	for j := i + 1; j < len(l.entries); j++ {
		if l.entries[j].key == l.entries[i].key && *p.code(l, j) == stays {
			p.noteOf(kind, l, j, 0, "")
			p.leave(l, j, comesBack)
			n++
		}
	}
	return n
}

// settleAs settles without a lease; kind is what an ack is called.
func (p *planner) settleAs(r *SettleAt, kind trace.Kind) Outcome {
	if p.edit.Has(r.Offset) {
		return Outcome{Result: AlreadySettled, Refusal: true}
	}
	k := p.v.keys[r.Hash]
	result := Done
	if r.Verdict == Reject {
		row, _ := p.row(r.Offset)
		row.PartitionHash, row.LastError = r.Hash, r.Reason
		p.bury(row, DeadRejected)
		result = DeadLettered
	}
	l, i := p.holder(r.Offset)
	p.noteSettleAt(r, l, kind)
	if l != nil {
		k = p.leave(l, i, becomesSettled)
	} else if k != nil {
		p.touch(k)
		k.dirty = true
		p.loose = append(p.loose, entry{off: r.Offset, key: k})
	}
	p.settleOffset(r.Offset, k)
	return Outcome{Result: result, Count: 1}
}

// holder finds the lease a message is in, as this plan leaves it.
func (p *planner) holder(off Offset) (*leaseState, int) {
	if !p.v.out.has(off) {
		return nil, 0
	}
	for l := p.v.oldest; l != nil; l = l.next {
		if i := l.find(off); i >= 0 {
			if p.touchLease(l); *p.code(l, i) == stays {
				return l, i
			}
			return nil, 0
		}
	}
	return nil, 0
}

func (p *planner) renew(r *Renew) Outcome {
	l := p.lease(r.Epoch)
	if l == nil {
		return Outcome{Result: Stale, Refusal: true, Epoch: r.Epoch}
	}
	l.extend = max(l.extend, DBTime(r.Lease/time.Microsecond))
	return Outcome{Result: Done, Epoch: r.Epoch, Lease: r.Lease, Count: l.open}
}

func (p *planner) release(r *Release) Outcome {
	l := p.lease(r.Epoch)
	if l == nil {
		return Outcome{Result: Stale, Refusal: true, Epoch: r.Epoch}
	}
	out := Outcome{Result: Done, Epoch: r.Epoch}
	if len(r.Offsets) == 0 {
		for i := range l.entries {
			if *p.code(l, i) == stays {
				p.noteOf(trace.Released, l, i, 0, "")
				p.leave(l, i, comesBack)
				out.Count++
			}
		}
		return out
	}
	for _, off := range r.Offsets {
		if i := l.find(off); i >= 0 && *p.code(l, i) == stays {
			p.noteOf(trace.Released, l, i, 0, "")
			p.leave(l, i, comesBack)
			out.Count++
			if !p.v.shared {
				out.Count += p.giveBackBehind(l, i, trace.Released)
			}
		}
	}
	if out.Count == 0 {
		out.Result, out.Refusal = Stale, true
	}
	return out
}

// reclaim takes back leases that ended, at most limit (0 = MaxReclaim).
func (p *planner) reclaim(limit int) Outcome {
	if limit <= 0 {
		limit = MaxReclaim
	}
	out := Outcome{Result: Nothing, Refusal: true}
	p.v.expired(p.v.now, func(l *leaseState) bool {
		p.touchLease(l)
		if l.open == 0 || l.extend > 0 {
			return true
		}
		out.Result, out.Refusal = Done, false
		out.Count += p.takeBack(l)
		limit--
		return limit > 0
	})
	return out
}

// takeBack ends an expired lease. A message that was leased alone has failed; several are not charged, but will travel alone.
func (p *planner) takeBack(l *leaseState) int {
	p.change.NotBefore = max(p.change.NotBefore, l.expires)
	n := l.open
	if l.alone {
		e := l.entries[0]
		delay, again := p.fail(e.off, e.key, DeadExpired, "lease expired", nil, true)
		p.noteOf(trace.Expired, l, 0, delay, "")
		if again {
			p.leave(l, 0, waits)
		} else {
			p.noteDead(e.off, DeadExpired)
			p.settleOffset(e.off, p.leave(l, 0, becomesSettled))
		}
		return n
	}
	for i := range l.entries {
		if *p.code(l, i) != stays {
			continue
		}
		p.noteOf(trace.Expired, l, i, 0, "")
		k := l.entries[i].key
		p.touch(k)
		if k.suspect != l {
			k.suspect, k.suspectFrom = l, l.entries[i].off
		}
		k.suspectTo = l.entries[i].off
	}
	for i := range l.entries {
		if *p.code(l, i) == stays {
			p.suspect(l, i)
		}
	}
	return n
}

// suspect returns an entry of a lease that expired with others. The first one of its key gets the row that marks them all.
func (p *planner) suspect(l *leaseState, i int) {
	k, off := l.entries[i].key, l.entries[i].off
	if k.suspectFrom != off {
		p.leave(l, i, comesBack)
		return
	}
	row, _ := p.row(off)
	row.PartitionHash = k.hash
	row.Deliveries++
	row.AloneThrough = max(row.AloneThrough, k.suspectTo)
	p.setRow(rowEdit{row: row, fresh: true})
	p.leave(l, i, waits)
}
