package window

import (
	"container/heap"
	"encoding/binary"
	"fmt"
	"slices"
	"time"
)

// finish turns what the planner intends into rows.
func (p *planner) finish(requests []Request) {
	v, c := p.v, &p.change
	if c.Drop {
		*c = Change{ID: v.id, From: v.version, To: v.version + 1, Drop: true, effects: c.effects}
		return
	}
	if c.Reset {
		return
	}
	for _, l := range p.leases {
		switch {
		case l.open == 0:
			c.LeaseDeletes = append(c.LeaseDeletes, l.epoch)
		case l.open < len(l.entries):
			c.LeaseUpdates = append(c.LeaseUpdates, LeaseUpdate{
				Epoch: l.epoch, Entries: encode(l.alone, l.entries, p.codes[l.codes:]), Extend: time.Duration(l.extend) * time.Microsecond,
			})
		case l.extend > 0:
			c.LeaseUpdates = append(c.LeaseUpdates, LeaseUpdate{Epoch: l.epoch, Extend: time.Duration(l.extend) * time.Microsecond})
		}
	}
	p.finishRows()
	if len(c.LeaseInserts)+len(c.LeaseUpdates)+len(c.LeaseDeletes)+len(c.RetryUpserts)+len(c.RetryDeletes) == 0 && !p.edit.Changed() && !c.Sought {
		c.Events = nil
		return
	}
	c.To = c.From + 1
	c.Active = p.active(requests)
	d := p.edit.Diff()
	c.Hot, c.Low, c.UnsettledBelow = d.Hot, d.Low, d.Below
	c.ChunkUpserts, c.ChunkDeletes = d.Upserts, d.Deletes
	c.LeaseLow = c.To
	for l := v.oldest; l != nil; l = l.next {
		if l.mark != p.seq || l.open > 0 {
			c.LeaseLow = l.epoch.Version()
			break
		}
	}
	p.diff = d
}

func (p *planner) finishRows() {
	c := &p.change
	for _, off := range p.rowOrder {
		e := p.rows[off]
		_, had := p.v.retries[off]
		switch {
		case !e.gone:
			u := RetryUpsert{
				Offset: off, PartitionHash: e.row.PartitionHash, Failures: e.row.Failures, Deliveries: e.row.Deliveries,
				AloneThrough: e.row.AloneThrough, LastError: e.row.LastError,
			}
			if e.fresh {
				u.After = e.after
			} else {
				u.AvailableAt = e.row.AvailableAt
			}
			c.RetryUpserts = append(c.RetryUpserts, u)
		case had:
			c.RetryDeletes = append(c.RetryDeletes, off)
		}
	}
}

// encode is EncodeEntries of what stays of a lease.
func encode(alone bool, entries []entry, codes []uint8) []byte {
	size := 1 + 2*binary.MaxVarintLen32*len(entries)
	var hash uint64
	for i := range entries {
		if h := entries[i].key.hash; i == 0 || h != hash {
			hash, size = h, size+8
		}
	}
	dst := EncodeEntries(make([]byte, 0, size), alone, nil)
	last, first := Entry{}, true
	for i := range entries {
		if codes == nil || codes[i] == stays {
			e := Entry{Offset: entries[i].off, Hash: entries[i].key.hash, Size: entries[i].size}
			dst = appendEntry(dst, e, last, first)
			last, first = e, false
		}
	}
	return dst
}

// Commit makes the view what its rows are after the change of the last plan was applied with this stamp. It panics if the change is
// another one: that is a bug in the caller which would make the view lie.
func (v *View) Commit(c Change, stamp Stamp) {
	p := &v.plan
	if c.effects.seq == 0 || c.effects.seq != p.seq || c.From != v.version {
		panic(fmt.Sprintf("window: commit of a change from version %d that is not the last plan of version %d", c.From, v.version))
	}
	if c.Empty() {
		return
	}
	p.seq++ // a plan is committed once
	v.version = c.To
	v.now = max(v.now, stamp.At)
	if c.Drop {
		v.dropped = true
		return
	}
	if c.Sought {
		v.commitSeek(p, c, stamp)
		p.backs = p.backs[:0]
		return
	}
	v.done.Apply(p.diff)
	v.losses = c.Losses
	v.commitLeases(p, stamp)
	for _, u := range c.RetryUpserts {
		v.putRow(u.row(stamp))
	}
	for _, off := range c.RetryDeletes {
		v.dropRow(off)
	}
	for i := len(p.backs) - 1; i >= 0; i-- {
		e := p.backs[i]
		if v.rowOf(e.key, e.off) == nil && !v.done.Has(e.off) {
			v.list(e.key, item{off: e.off, size: e.size})
		}
	}
	v.relocate(p.backs)
	p.backs = p.backs[:0]
	if p.trimTo > 0 {
		v.commitTrim(p.trimTo)
	}
	for _, k := range p.keys {
		v.place(k)
	}
}

// commitLeases takes entries out of leases, closes those without any, and grants new ones.
func (v *View) commitLeases(p *planner, stamp Stamp) {
	for _, l := range p.leases {
		v.closeEntries(p, l)
		if l.open == 0 {
			v.dropLease(l)
			continue
		}
		if l.extend > 0 {
			l.expires = max(l.expires, stamp.At+l.extend)
			heap.Fix(&v.expiry, l.at)
		}
	}
	for _, e := range p.loose {
		if e.key.remove(e.off) {
			v.admitted--
		}
	}
	for _, k := range p.keys {
		if k.tookNew > 0 {
			k.drop(k.tookNew)
			v.admitted -= k.tookNew
		}
		if k.tookNew+k.tookDue > 0 {
			put(k, slotTurn, nil) // served: its next turn is the last
		}
	}
	for _, l := range p.granted {
		l.expires = stamp.At + l.extend
		v.addLease(l)
		v.relocate(l.entries)
	}
}

// closeEntries takes out of a lease what left it, and collects what comes back.
func (v *View) closeEntries(p *planner, l *leaseState) {
	if l.open == len(l.entries) {
		return
	}
	codes := p.codes[l.codes:]
	keep := l.entries[:0]
	for i, e := range l.entries {
		if codes[i] == stays {
			keep = append(keep, e)
			continue
		}
		v.out.clear(e.off)
		v.leased--
		e.key.leased--
		if codes[i] != becomesSettled {
			p.backs = append(p.backs, e)
		}
	}
	clear(l.entries[len(keep):])
	l.entries = keep
}

// relocate moves the retry rows of messages that entered or left a lease.
func (v *View) relocate(entries []entry) {
	for i := range entries {
		if r := v.rowOf(entries[i].key, entries[i].off); r != nil {
			if r.size == 0 {
				r.size = entries[i].size
			}
			v.locate(r)
		}
	}
}

// row is what the statement wrote.
func (u RetryUpsert) row(stamp Stamp) RetryRow {
	r := RetryRow{
		Offset: u.Offset, PartitionHash: u.PartitionHash, Failures: u.Failures, Deliveries: u.Deliveries,
		AvailableAt: u.AvailableAt, AloneThrough: u.AloneThrough, LastError: u.LastError,
	}
	if u.AvailableAt == 0 {
		r.AvailableAt = stamp.At.Add(u.After)
	}
	return r
}

// Refresh makes the view what its rows are now, keeping what was admitted. On an error the view MUST be dropped.
func (v *View) Refresh(s Snapshot) error {
	if s.Row.ID != v.id || s.Row.Version < v.version {
		return fmt.Errorf("group-shard %d version %d, refreshed with %d version %d: %w", v.id, v.version, s.Row.ID, s.Row.Version, ErrCorrupt)
	}
	low, before := v.done.Low(), v.version
	known := v.forgetRows()
	if err := v.read(s); err != nil {
		return err
	}
	v.plan.seq++
	if v.sought > before || v.done.Low() < low { // what was admitted says nothing about what is unsettled again
		v.restart()
		return nil
	}
	v.frontier = max(v.frontier, v.done.Low())
	for _, k := range v.keys {
		v.sieve(k)
	}
	for _, e := range known {
		k := v.keyOf(e.key.hash)
		switch r := v.rowOf(k, e.off); {
		case r != nil:
			r.size = e.size
		case !v.done.Has(e.off) && !v.out.has(e.off):
			v.list(k, item{off: e.off, size: e.size})
		}
	}
	for _, k := range v.sortedKeys() {
		v.place(k)
	}
	return nil
}

// forgetRows empties keys of everything that comes from rows and returns the messages it was about, highest first.
func (v *View) forgetRows() []entry {
	var known []entry
	for _, l := range v.leases {
		known = append(known, l.entries...)
	}
	for off, r := range v.retries {
		if r.size > 0 && r.state != isLeased {
			known = append(known, entry{off: off, key: r.key, size: r.size})
		}
	}
	slices.SortFunc(known, func(a, b entry) int { return int(b.off - a.off) })
	for _, k := range v.keys {
		k.due, k.waits, k.spans, k.rows, k.leased = nil, nil, nil, 0, 0
	}
	return known
}

// sieve drops what is listed and no longer should be.
func (v *View) sieve(k *key) {
	list := k.listed()
	keep := list[:0]
	for _, it := range list {
		if !v.done.Has(it.off) && !v.out.has(it.off) && v.rowOf(k, it.off) == nil {
			keep = append(keep, it)
		}
	}
	v.admitted -= len(list) - len(keep)
	k.items = k.items[:k.head+len(keep)]
	k.drop(0)
}

// restart forgets all that was admitted.
func (v *View) restart() {
	v.frontier, v.admitted, v.cuts, v.ripeAt = v.done.Low(), 0, 0, 0
	for _, k := range v.sortedKeys() {
		k.items, k.head, k.cut, k.ahead = nil, 0, false, false
		v.place(k)
	}
	v.rowsBehind = 0
	for _, r := range v.retries {
		r.behind = false
		v.countBehind(r, r.state != isMarker && r.row.Offset < v.frontier)
	}
}
