package window

import (
	"slices"
	"time"

	"postrider.dev/services/dispatcher/internal/domain/settled"
	"postrider.dev/services/dispatcher/internal/domain/trace"
)

// What a plan does to an entry of a lease.
const (
	stays uint8 = iota
	becomesSettled
	comesBack
	waits
)

// planner is the scratch of one plan: what it intends, beside the view it does not change.
type planner struct {
	v      *View
	seq    uint64
	draw   Draw
	change Change
	edit   settled.Edit

	keys    []*key        // touched
	leases  []*leaseState // touched
	codes   []uint8       // of the entries of touched leases
	granted []*leaseState // new
	backs   []entry       // left a lease unsettled; filled by Commit
	diff    settled.Diff  // of the edit
	fresh   *settled.Set  // of a seek that begins anew
	loose   []entry       // settled without having been leased
	again   []*key        // freed by this plan, or served and not exhausted: their turn comes last
	took    int           // messages in granted leases
	order   []int         // items about single messages, in the order of the log

	rows      map[Offset]rowEdit
	rowOrder  []Offset
	turnAt    *key // no key before it in the ring has anything left for this plan; nil with walked: none has
	walked    bool
	againAt   int
	returns   bool // messages come back, so that another plan may find what this one did not
	reclaimed bool
	trimTo    Offset // of this plan; 0 = none
	told      bool   // a pop of this plan is told of losses
	ordinal   int
}

// rowEdit is what becomes of a retry row.
type rowEdit struct {
	row   RetryRow
	gone  bool
	after time.Duration // available that long after the commit; without it the row's own instant stands
	fresh bool
}

// effects ties a change to the plan it came from.
type effects struct{ seq uint64 }

// Plan decides about requests, as of the database time now, and changes nothing that can be seen. The outcomes hold once the change is
// applied. Between Plan and Commit nothing else of the view may be called; planning again forgets the plan.
func (v *View) Plan(now DBTime, draw Draw, requests []Request) (Change, []Outcome) {
	v.advance(now)
	p := &v.plan
	p.begin(v, draw)
	outcomes := make([]Outcome, len(requests))
	if v.dropped {
		for i := range outcomes {
			outcomes[i] = Outcome{Result: Stale, Refusal: true, Stop: StopAlreadyGone}
		}
		return p.change, outcomes
	}
	if p.soughtAlone(requests, outcomes) {
		p.finish(requests)
		return p.change, outcomes
	}
	for i, r := range requests {
		switch r := r.(type) {
		case *Settle:
			outcomes[i] = p.settle(r)
		case *SettleAt:
			outcomes[i] = p.settleAs(r, trace.Acked)
		case *Delete:
			outcomes[i] = p.settleAs(&SettleAt{Offset: r.Offset, Hash: r.Hash, Verdict: Ack}, trace.Deleted)
		case *Renew:
			outcomes[i] = p.renew(r)
		case *Release:
			outcomes[i] = p.release(r)
		}
	}
	for i, r := range requests {
		switch r := r.(type) {
		case *Reclaim:
			outcomes[i] = p.reclaim(r.Max)
		case *Trim:
			outcomes[i] = p.trim(r.To)
		case *Drop:
			outcomes[i] = p.drop(r)
		}
	}
	for i, r := range requests {
		if r, ok := r.(*Pop); ok {
			outcomes[i] = p.pop(r)
		}
	}
	p.finish(requests)
	return p.change, outcomes
}

func (p *planner) begin(v *View, draw Draw) {
	p.v, p.draw = v, draw
	p.turnAt, p.walked, p.againAt, p.returns = nil, false, 0, false
	p.seq++
	p.change = Change{ID: v.id, From: v.version, To: v.version, effects: effects{seq: p.seq}}
	p.edit.Begin(&v.done)
	clear(p.keys)
	clear(p.leases)
	clear(p.granted)
	p.keys, p.leases, p.codes, p.granted = p.keys[:0], p.leases[:0], p.codes[:0], p.granted[:0]
	p.loose, p.again, p.rowOrder = p.loose[:0], p.again[:0], p.rowOrder[:0]
	clear(p.rows)
	p.reclaimed, p.trimTo, p.told, p.ordinal, p.took, p.fresh = false, 0, false, 0, 0, nil
	p.change.Losses = v.losses
}

// touch resets a key's scratch when this plan meets it first.
func (p *planner) touch(k *key) {
	if k.mark != p.seq {
		k.mark, k.freed, k.tookNew, k.tookDue, k.dirty, k.suspect = p.seq, 0, 0, 0, false, nil
		p.keys = append(p.keys, k)
	}
}

// lease finds an open lease and resets its scratch when this plan meets it first; nil if the view holds none of that epoch, or nothing
// of it is left by this plan.
func (p *planner) lease(e Epoch) *leaseState {
	l := p.v.leases[e]
	if l == nil {
		return nil
	}
	p.touchLease(l)
	if l.open == 0 {
		return nil
	}
	return l
}

func (p *planner) touchLease(l *leaseState) {
	if l.mark == p.seq {
		return
	}
	l.mark, l.codes, l.open, l.extend = p.seq, len(p.codes), len(l.entries), 0
	p.codes = slices.Grow(p.codes, len(l.entries))[:len(p.codes)+len(l.entries)]
	clear(p.codes[l.codes:])
	p.leases = append(p.leases, l)
}

func (p *planner) code(l *leaseState, i int) *uint8 { return &p.codes[l.codes+i] }

// leave takes an entry out of its lease.
func (p *planner) leave(l *leaseState, i int, code uint8) *key {
	k := l.entries[i].key
	*p.code(l, i) = code
	l.open--
	p.touch(k)
	k.freed++
	if code != becomesSettled {
		k.dirty, p.returns = true, true
	}
	if !p.v.shared && k.freed == k.leased && !k.dirty {
		p.again = append(p.again, k)
	}
	return k
}

// row is the retry row of a message as this plan leaves it.
func (p *planner) row(off Offset) (RetryRow, bool) {
	if e, ok := p.rows[off]; ok {
		return e.row, !e.gone
	}
	if r, ok := p.v.retries[off]; ok {
		return r.row, true
	}
	return RetryRow{Offset: off, AloneThrough: -1}, false
}

func (p *planner) setRow(e rowEdit) {
	if p.rows == nil {
		p.rows = map[Offset]rowEdit{}
	}
	off := e.row.Offset
	if _, ok := p.rows[off]; !ok {
		p.rowOrder = append(p.rowOrder, off)
	}
	p.rows[off] = e
}

// settleOffset marks a message settled and cleans up the retry rows that spoke of it.
func (p *planner) settleOffset(off Offset, k *key) {
	p.edit.Settle(off, off < p.v.frontier)
	if k == nil || k.rows == 0 && len(p.rows) == 0 {
		return
	}
	if row, ok := p.row(off); ok {
		if row.AloneThrough > off && !p.edit.Has(row.AloneThrough) {
			row.Failures, row.Deliveries, row.LastError = 0, 0, ""
			p.setRow(rowEdit{row: row})
		} else {
			p.setRow(rowEdit{row: row, gone: true})
		}
	}
	for _, s := range k.spans {
		if row, ok := p.row(s.row.Offset); ok && row.Offset != off && p.edit.Has(row.Offset) && p.edit.Has(row.AloneThrough) {
			p.setRow(rowEdit{row: row, gone: true})
		}
	}
}

// fail counts a failure of a message that leaves its lease. It becomes a dead letter if its attempts are used up, else it waits; the
// wait is returned.
func (p *planner) fail(off Offset, k *key, dead DeadReason, cause string, wait *time.Duration, alone bool) (time.Duration, bool) {
	row, _ := p.row(off)
	row.PartitionHash = k.hash
	row.Failures++
	row.Deliveries++
	row.LastError = cause
	if row.Failures >= p.v.policy.MaxAttempts {
		p.bury(row, dead)
		return 0, false
	}
	delay := p.v.policy.Backoff.Next(row.Failures, p.draw())
	if wait != nil {
		delay = wait.Truncate(time.Microsecond)
	}
	if alone {
		row.AloneThrough = max(row.AloneThrough, off)
	}
	p.setRow(rowEdit{row: row, after: delay, fresh: true})
	return delay, true
}

// bury makes a dead letter of a message; the caller settles it.
func (p *planner) bury(row RetryRow, reason DeadReason) {
	p.change.DeadLetters = append(p.change.DeadLetters, DeadLetter{
		Offset: row.Offset, PartitionHash: row.PartitionHash, Failures: row.Failures, Deliveries: row.Deliveries,
		Reason: reason, LastError: row.LastError,
	})
}

func (p *planner) drop(r *Drop) Outcome {
	open := len(p.v.leases)
	for _, l := range p.leases {
		if l.open == 0 {
			open--
		}
	}
	if open > 0 && !r.Force {
		return Outcome{Result: Refused, Refusal: true, Stop: StopLeased}
	}
	p.change.Drop = true
	return Outcome{Result: Done}
}
