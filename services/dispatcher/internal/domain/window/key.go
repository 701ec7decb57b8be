package window

import (
	"slices"
	"sort"
)

// item is a listed message: unsettled, not leased, no retry row.
type item struct {
	off  Offset
	size uint32
}

// key is what the view knows of one partition hash. Each unsettled message of it below known is in exactly one place: listed, due,
// waiting, or in a lease. Due and waiting messages and leases are known whatever known is.
type key struct {
	hash uint64

	items []item // items[head:] is listed, ascending
	head  int
	cut   bool // known is more; else it is the frontier
	ahead bool // with cut: a named search came this far, beyond the frontier. Else the list was cut here, below it
	more  Offset

	due    []*retry // may be handed out again; ordered: ascending
	waits  []*retry // ordered mode with block: waiting, so what lies behind them must wait too
	spans  []*retry // rows whose mark reaches beyond their own message
	rows   int      // retry rows
	leased int      // open lease entries

	offered int // messages counted in the view's offered

	link [slots]link

	// Scratch of the plan numbered mark.
	mark    uint64
	freed   int         // lease entries this plan takes away
	tookNew int         // listed items this plan hands out
	tookDue int         // due ones
	dirty   bool        // this plan gives messages back or settles listed ones: not handed out before the commit
	suspect *leaseState // an expired lease with several messages, and the range of k's among them

	suspectFrom, suspectTo Offset
}

func (k *key) listed() []item { return k.items[k.head:] }

// push lists a message behind all listed ones.
func (k *key) push(it item) {
	if k.head > 0 && len(k.items) == cap(k.items) {
		k.items = k.items[:copy(k.items, k.items[k.head:])]
		k.head = 0
	}
	k.items = append(k.items, it)
}

// drop takes the first n listed messages away.
func (k *key) drop(n int) {
	if k.head += n; k.head == len(k.items) {
		k.items, k.head = k.items[:0], 0
	}
}

// find is the index among the listed of the first one at or behind off.
func (k *key) find(off Offset) int {
	list := k.listed()
	if len(list) == 0 || off <= list[0].off {
		return 0
	}
	return sort.Search(len(list), func(i int) bool { return list[i].off >= off })
}

// insert lists a message among the listed; false if it was there.
func (k *key) insert(it item) bool {
	i := k.find(it.off)
	list := k.listed()
	switch {
	case i < len(list) && list[i].off == it.off:
		return false
	case i == 0 && k.head > 0:
		k.head--
		k.items[k.head] = it
	default:
		k.items = slices.Insert(k.items, k.head+i, it)
	}
	return true
}

// remove takes one listed message away; false if it was not listed.
func (k *key) remove(off Offset) bool {
	i := k.find(off)
	if list := k.listed(); i == len(list) || list[i].off != off {
		return false
	}
	if i == 0 {
		k.drop(1)
		return true
	}
	k.items = slices.Delete(k.items, k.head+i, k.head+i+1)
	return true
}

// wall is the first waiting message that holds what lies behind it.
func (k *key) wall() Offset {
	at := MaxOffset
	for _, r := range k.waits {
		at = min(at, r.row.Offset)
	}
	return at
}

// alone tells whether the message must be the only one of its pop; r is its retry row, if it has one.
func (k *key) alone(off Offset, r *retry) bool {
	if r != nil && r.row.AloneThrough >= off {
		return true
	}
	for _, s := range k.spans {
		if s.row.Offset <= off && off <= s.row.AloneThrough {
			return true
		}
	}
	return false
}

// known is the offset below which every message of k is accounted for.
func (v *View) known(k *key) Offset {
	if k.cut && k.ahead && k.more <= v.frontier {
		k.cut, k.ahead = false, false // the frontier has come by and listed what there was
	}
	if k.cut {
		return k.more
	}
	return v.frontier
}

// setKnown says that every message of k below off is accounted for, and nothing beyond.
func (v *View) setKnown(k *key, off Offset) {
	if k.cut && !k.ahead {
		v.cuts--
	}
	k.more, k.cut, k.ahead = off, off != v.frontier, off > v.frontier
	if k.cut && !k.ahead {
		v.cuts++
	}
}

// first is the offset of the message of k to be handed out next if no lease is in the way, MaxOffset if there is none.
func (v *View) first(k *key) Offset {
	at := MaxOffset
	if list := k.listed(); len(list) > 0 {
		at = list[0].off
	}
	if len(k.due) > 0 && (v.shared || k.due[0].row.Offset < v.known(k)) {
		at = min(at, k.due[0].row.Offset)
	}
	if len(k.waits) > 0 && at > k.wall() {
		return MaxOffset
	}
	return at
}

// ready tells that a pop would be served from k.
func (v *View) ready(k *key) bool { return (v.shared || k.leased == 0) && v.first(k) != MaxOffset }

// hungry tells that reading directories below the frontier would list more of k, and that it would be of use now.
func (v *View) hungry(k *key) bool {
	return k.cut && !k.ahead && len(k.listed()) < v.lim.listed/2 && (v.shared || k.leased == 0) && k.wall() >= k.more
}

// place brings k into the lists it belongs to, or forgets it. It MUST be called after every change of k.
func (v *View) place(k *key) {
	v.known(k)
	var turn, refill *ring
	switch {
	case v.ready(k):
		turn = &v.turn
	case len(k.listed()) > 0:
		turn = &v.parked
	}
	switch {
	case v.hungry(k):
		refill = &v.starving
	case turn != nil || k.rows > 0 || k.leased > 0:
	case !k.cut:
		v.forget(k)
		return
	case k.ahead:
		refill = &v.remembered
	}
	put(k, slotTurn, turn)
	put(k, slotRefill, refill)
	v.offer(k, turn == &v.turn)
	for v.remembered.n > v.lim.remembered {
		v.forget(v.remembered.front()) // found empty longest ago; losing it costs a search
	}
}

// offer counts what a pop may find.
func (v *View) offer(k *key, ready bool) {
	n := 0
	if ready {
		n = len(k.listed()) + len(k.due)
	}
	v.offered += n - k.offered
	k.offered = n
}

// forget drops a key nothing is known of.
func (v *View) forget(k *key) {
	put(k, slotTurn, nil)
	put(k, slotRefill, nil)
	v.offer(k, false)
	if k.cut && !k.ahead {
		v.cuts--
	}
	k.cut = false
	delete(v.keys, k.hash)
}

// keyOf returns the key of a hash, made if need be. A new one MUST be passed to place soon.
func (v *View) keyOf(hash uint64) *key {
	k, ok := v.keys[hash]
	if !ok {
		k = &key{hash: hash}
		v.keys[hash] = k
	}
	return k
}

// list makes a returned or refilled message available. Without room, or behind too many others, it is left to be read again.
func (v *View) list(k *key, it item) {
	if it.off >= v.known(k) {
		return
	}
	if !v.makeRoom(k, false) {
		v.cutAt(k, it.off)
		return
	}
	if !k.insert(it) {
		return
	}
	v.admitted++
	if list := k.listed(); len(list) > v.lim.listed {
		v.cutAt(k, list[v.lim.listed].off)
	}
}

// cutAt unlists what k lists from off on: its messages there will be read again when they are wanted.
func (v *View) cutAt(k *key, off Offset) {
	i := k.find(off)
	v.admitted -= len(k.listed()) - i
	k.items = k.items[:k.head+i]
	k.drop(0)
	v.setKnown(k, off)
}

// makeRoom tells whether one more message may be listed, for k or (nil) for a key not known yet. Keys that cannot be served now give
// their lists up for those that can; what somebody asks for by name (wanted) takes room even from those.
func (v *View) makeRoom(k *key, wanted bool) bool {
	if v.admitted < v.lim.admitted {
		return true
	}
	if k != nil && v.held(k) && !wanted {
		return false
	}
	p := v.parked.front()
	if p == k && p != nil {
		p = v.parked.after(p)
	}
	if p == nil && wanted {
		if p = v.turn.back(); p == k && p != nil {
			p = v.turn.before(p)
		}
	}
	if p == nil || len(p.listed()) == 0 {
		return false
	}
	v.cutAt(p, p.listed()[0].off)
	v.place(p)
	return true
}

// held tells that k waits for a lease or a retry.
func (v *View) held(k *key) bool { return !v.shared && (k.leased > 0 || len(k.waits) > 0) }

// crowded tells that so much waits or was cut behind the frontier that it must stand (MaxBlocked).
func (v *View) crowded() bool { return v.rowsBehind >= v.lim.blocked || v.cuts >= v.lim.blocked }
