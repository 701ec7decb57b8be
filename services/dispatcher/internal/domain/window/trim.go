package window

import "slices"

// Losses is what the log's trimming took from the group before it had settled it.
type Losses struct {
	Messages int64  // ever
	Untold   int64  // of these, since a pop was last told
	First    Offset // the first offset that was kept by the last trim that took something
}

// Trim says that the log does not hold anything below To any more: what the group has not settled there counts as settled from now on, and as lost. What
// waits for a retry becomes a dead letter. What is leased stays with its lease, and is settled by it or by a later Trim. Its outcome counts what was lost.
type Trim struct{ To Offset }

// MaxTrimLetters bounds the dead letters of one Trim; more are left to the next (Outcome.Again).
const MaxTrimLetters = 256

// trim settles what the log does not hold any more, but for what is leased or was until this plan.
func (p *planner) trim(to Offset) Outcome {
	if p.change.Drop {
		return Outcome{Result: Nothing, Refusal: true, Stop: StopAlreadyGone}
	}
	out := Outcome{Result: Done}
	waiting := p.waitingBelow(to)
	if len(waiting) > MaxTrimLetters {
		to, waiting, out.Again = waiting[MaxTrimLetters], waiting[:MaxTrimLetters], true
	}
	lost := p.edit.Raise(to, p.leasedBelow(to))
	if lost == 0 {
		return out
	}
	p.trimTo = max(p.trimTo, to)
	for _, off := range waiting {
		row, _ := p.row(off)
		p.bury(row, DeadTrimmed)
		p.noteDead(off, DeadTrimmed)
	}
	p.forgetRowsBelow(to)
	out.Count = int(lost)
	p.change.Losses.Messages += lost
	p.change.Losses.Untold += lost
	p.change.Losses.First = max(p.change.Losses.First, to)
	return out
}

// waitingBelow lists the unsettled messages below to that failed and are not leased.
func (p *planner) waitingBelow(to Offset) []Offset {
	var list []Offset
	for off := range p.v.retries {
		if off >= to || p.edit.Has(off) || p.v.out.has(off) {
			continue
		}
		if row, ok := p.row(off); ok && row.Failures > 0 {
			list = append(list, off)
		}
	}
	slices.Sort(list)
	return list
}

// leasedBelow lists the messages below to that are in leases, also those that this plan takes out: they are left to the next Trim.
func (p *planner) leasedBelow(to Offset) []Offset {
	var list []Offset
	for l := p.v.oldest; l != nil; l = l.next {
		for i := range l.entries {
			if l.entries[i].off >= to {
				break
			}
			list = append(list, l.entries[i].off)
		}
	}
	return list
}

// forgetRowsBelow removes the retry rows that spoke of settled messages only.
func (p *planner) forgetRowsBelow(to Offset) {
	var offs []Offset
	for off := range p.v.retries {
		if off < to {
			offs = append(offs, off)
		}
	}
	slices.Sort(offs)
	for _, off := range offs {
		row, ok := p.row(off)
		if !ok || !p.edit.Has(off) {
			continue
		}
		switch {
		case row.AloneThrough <= off || p.edit.Has(row.AloneThrough):
			p.setRow(rowEdit{row: row, gone: true})
		case row.Failures > 0 || row.Deliveries > 0:
			row.Failures, row.Deliveries, row.LastError = 0, 0, ""
			p.setRow(rowEdit{row: row})
		}
	}
}

// tell hands the losses to the first pop of a plan that gets something.
func (p *planner) tell() Losses {
	if p.told || p.v.losses.Untold == 0 {
		return Losses{}
	}
	p.told = true
	told := p.v.losses
	p.change.Losses.Untold = 0
	return told
}

// active says whether one of the requests is what a consumer does.
func (p *planner) active(requests []Request) bool {
	return slices.ContainsFunc(requests, func(r Request) bool {
		switch r.(type) {
		case *Reclaim, *Trim, *Drop, *Delete:
			return false
		}
		return true
	})
}

// commitTrim makes the keys what they are after everything below to was settled or is leased.
func (v *View) commitTrim(to Offset) {
	v.frontier = max(v.frontier, to)
	v.recountBehind()
	for _, k := range v.sortedKeys() {
		v.sieve(k)
		if k.cut && k.more < to {
			v.setKnown(k, to)
		}
		v.place(k)
	}
}
