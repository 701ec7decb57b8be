package window

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
)

// SetLimits makes the bounds of a view small enough for tests to reach.
func SetLimits(v *View, admitted, listed, blocked, remembered int) {
	v.lim.admitted, v.lim.listed, v.lim.blocked, v.lim.remembered = admitted, listed, blocked, remembered
}

// SetLeaseLimits does the same for leases.
func SetLeaseLimits(v *View, leases, messages int) { v.lim.leases, v.lim.leased = leases, messages }

// Rows is everything of a view that comes from rows, comparable.
type Rows struct {
	Version Version
	Sought  Version
	Low     Offset
	Below   int64
	Losses  Losses
	Hot     any
	Chunks  any
	Leases  []string
	Retries []RetryRow
}

// RowsOf returns what the view believes to be in the database.
func RowsOf(v *View) Rows {
	r := Rows{
		Version: v.version, Sought: v.sought, Low: v.done.Low(), Below: v.done.Below(), Losses: v.losses, Hot: *v.done.Hot(), Chunks: v.done.Rows(),
	}
	for l := v.oldest; l != nil; l = l.next {
		text := fmt.Appendf(nil, "%d until %d for %q alone %v:", l.epoch, l.expires, l.holder, l.alone)
		for _, e := range l.entries {
			text = fmt.Appendf(text, " %d/%d/%d", e.off, e.key.hash, e.size)
		}
		r.Leases = append(r.Leases, string(text))
	}
	for _, x := range v.retries {
		r.Retries = append(r.Retries, x.row)
	}
	slices.SortFunc(r.Retries, func(a, b RetryRow) int { return cmp.Compare(a.Offset, b.Offset) })
	return r
}

// Same compares what two views believe.
func Same(a, b *View) error {
	x, y := RowsOf(a), RowsOf(b)
	if !reflect.DeepEqual(x, y) {
		x.Hot, y.Hot = nil, nil
		return fmt.Errorf("views differ:\n%+v\n%+v", x, y)
	}
	return nil
}

// Advance lets time pass.
func Advance(v *View, now DBTime) { v.advance(now) }

// Frontier is where admission stands.
func Frontier(v *View) Offset { return v.frontier }

// Audit demands every invariant of a view, given the log.
func Audit(v *View, head Offset, hash func(Offset) (uint64, bool)) error {
	a := auditor{v: v, place: map[Offset]string{}}
	a.leases()
	a.retries()
	a.keys()
	for off := v.done.Low(); off < head && a.err == nil; off++ {
		if h, ok := hash(off); ok { // else trimmed
			a.message(off, h)
		}
	}
	a.counts()
	return a.err
}

type auditor struct {
	v        *View
	place    map[Offset]string
	admitted int
	offered  int
	cuts     int
	err      error
}

func (a *auditor) failf(format string, args ...any) {
	if a.err == nil {
		a.err = fmt.Errorf(format, args...)
	}
}

func (a *auditor) put(off Offset, where string) {
	if old, ok := a.place[off]; ok {
		a.failf("offset %d is %s and %s", off, old, where)
	}
	if a.v.done.Has(off) {
		a.failf("offset %d is %s and settled", off, where)
	}
	a.place[off] = where
}

func (a *auditor) leases() {
	v, n := a.v, 0
	leased := map[*key]int{}
	for l := v.oldest; l != nil; l = l.next {
		n++
		if v.leases[l.epoch] != l || v.expiry[l.at] != l || len(l.entries) == 0 || l.next != nil && l.next.epoch <= l.epoch {
			a.failf("lease %d is not linked well", l.epoch)
		}
		for _, e := range l.entries {
			a.put(e.off, "leased")
			if leased[e.key]++; v.keys[e.key.hash] != e.key || !v.out.has(e.off) {
				a.failf("offset %d of lease %d is not accounted for", e.off, l.epoch)
			}
			if !v.shared && e.key.leased > 0 && v.leases[l.epoch] == nil {
				a.failf("lost lease")
			}
		}
	}
	total := 0
	for _, k := range v.keys {
		total += leased[k]
		if k.leased != leased[k] {
			a.failf("key %d counts %d leased, has %d", k.hash, k.leased, leased[k])
		}
	}
	bits := 0
	for _, p := range v.out.pages {
		bits += p.n
	}
	if n != len(v.leases) || n != len(v.expiry) || total != v.leased || bits != total {
		a.failf("%d leases of %d messages: %d in the map, %d in the heap, %d counted, %d bits", n, total, len(v.leases), len(v.expiry), v.leased, bits)
	}
}

func (a *auditor) retries() {
	v, behind := a.v, 0
	for off, r := range v.retries {
		k := r.key
		want := uint8(isWaiting)
		switch {
		case v.done.Has(off):
			want = isMarker
		case v.out.has(off):
			want = isLeased
		case r.row.dueAt() <= v.now:
			want = isDue
			a.put(off, "due")
		default:
			a.put(off, "waiting")
		}
		if r.state != want || r.row.Offset != off || v.keys[k.hash] != k || k.hash != r.row.PartitionHash {
			a.failf("row %d is in state %d, should be in %d", off, r.state, want)
		}
		if want == isMarker && v.done.Has(r.row.AloneThrough) {
			a.failf("row %d marks nothing", off)
		}
		if slices.Contains(k.due, r) != (want == isDue) || slices.Contains(k.waits, r) != (v.blocks && want == isWaiting) ||
			slices.Contains(k.spans, r) != (r.row.AloneThrough > off) || (want == isWaiting) != slices.Contains(v.waiting, r) {
			a.failf("row %d in state %d is in the wrong lists", off, want)
		}
		if (want != isMarker && off < v.frontier) != r.behind {
			a.failf("row %d is counted behind: %v, frontier %d", off, r.behind, v.frontier)
		}
		if r.behind {
			behind++
		}
	}
	if behind != v.rowsBehind {
		a.failf("%d rows behind, counted %d", behind, v.rowsBehind)
	}
}

func (a *auditor) keys() {
	v, rows := a.v, 0
	for hash, k := range v.keys {
		known := v.known(k)
		rows += k.rows
		list := k.listed()
		for i, it := range list {
			a.put(it.off, "listed")
			if it.off >= known || i > 0 && list[i-1].off >= it.off || it.size == 0 {
				a.failf("key %d lists %d, known to %d", hash, it.off, known)
			}
		}
		a.admitted += len(list)
		if k.cut && !k.ahead {
			a.cuts++
		}
		turn := (*ring)(nil)
		if v.ready(k) {
			turn = &v.turn
			a.offered += len(list) + len(k.due)
		} else if len(list) > 0 {
			turn = &v.parked
		}
		if k.link[slotTurn].in != turn || (k.link[slotRefill].in == &v.starving) != v.hungry(k) {
			a.failf("key %d is in the wrong ring", hash)
		}
		if turn == nil && k.rows+k.leased == 0 && !k.cut && k.link[slotRefill].in != &v.remembered {
			a.failf("key %d should be forgotten", hash)
		}
		if !slices.IsSortedFunc(k.due, byOffset) && !v.shared {
			a.failf("due messages of key %d are out of order", hash)
		}
		if len(list) > v.lim.listed {
			a.failf("key %d lists %d", hash, len(list))
		}
	}
	if rows != len(v.retries) {
		a.failf("%d rows, keys count %d", len(v.retries), rows)
	}
}

// message demands that an unsettled message is where its key's known part says.
func (a *auditor) message(off Offset, hash uint64) {
	v, known := a.v, a.v.frontier
	k := v.keys[hash]
	if k != nil {
		known = v.known(k)
	}
	where := a.place[off]
	if off < known && where == "" && !v.done.Has(off) {
		a.failf("offset %d of key %d is nowhere, known to %d, frontier %d", off, hash, known, v.frontier)
	}
	if where == "listed" && !slices.ContainsFunc(k.listed(), func(it item) bool { return it.off == off }) {
		a.failf("offset %d is listed by another key", off)
	}
}

func (a *auditor) counts() {
	v := a.v
	if a.admitted != v.admitted || a.cuts != v.cuts || a.offered != v.offered {
		a.failf("admitted %d counted %d, cuts %d counted %d, offered %d counted %d", a.admitted, v.admitted, a.cuts, v.cuts, a.offered, v.offered)
	}
	if v.admitted > v.lim.admitted || v.remembered.n > v.lim.remembered {
		a.failf("bounds exceeded: %d listed, %d remembered", v.admitted, v.remembered.n)
	}
}
