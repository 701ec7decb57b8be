package window

// Need says which directory a pop of any partition wants next, given the shard's head; ok is false if none would help. Directories are
// read on demand: ask only while what is ready does not fill the pops at hand. A keyed need is answered by AdmitKey (and SkipKey for
// the part of it where the hash does not occur), another one by Admit (and Skip).
func (v *View) Need(head Offset) (need Need, ok bool) {
	head = v.Reach(head)
	full := v.admitted >= v.lim.admitted && v.parked.n == 0
	for k := v.starving.front(); k != nil && !full; {
		next := v.starving.after(k)
		if from, some := v.refillFrom(k); some && from < v.Reach(v.frontier) && (v.rowsBehind < v.lim.blocked || v.overdue(k)) {
			return Need{From: from, To: v.Reach(v.frontier), Keyed: true, Hash: k.hash}, true
		}
		k = next
	}
	v.frontier = max(v.frontier, v.done.Next(v.frontier))
	if v.frontier >= head || v.Stopped() != NoStop {
		return Need{}, false
	}
	return Need{From: v.frontier, To: head}, true
}

// NeedKey is Need for a pop of up to most messages of one partition. A partition that has so many ready, or as many as there is room
// for, needs nothing, nor does one that is held up by a lease or a retry.
func (v *View) NeedKey(hash uint64, head Offset, most int) (need Need, ok bool) {
	head = v.Reach(head)
	from := v.frontier
	if k, there := v.keys[hash]; there {
		filled := v.ready(k) && (len(k.due)+len(k.listed()) >= min(most, v.lim.listed) || v.admitted >= v.lim.admitted)
		if from = v.known(k); filled || !v.shared && k.leased > 0 || k.wall() < from {
			return Need{}, false
		}
	}
	if from = v.done.Next(from); from >= head {
		return Need{}, false
	}
	return Need{From: from, To: head, Keyed: true, Hash: hash}, true
}

// refillFrom is where reading for a starving key goes on; some is false if all of it turned out to be known.
func (v *View) refillFrom(k *key) (from Offset, some bool) {
	from = min(v.done.Next(k.more), v.frontier)
	if from != k.more {
		v.setKnown(k, from)
		v.place(k)
	}
	return from, from < v.frontier
}

// overdue tells that something of k is due and cannot be handed out before what lies in front of it is known.
func (v *View) overdue(k *key) bool {
	return !v.shared && len(k.due) > 0 && k.due[0].row.Offset >= v.known(k)
}

// Skip says that the log holds no messages in [from, to): they were trimmed.
func (v *View) Skip(from, to Offset) {
	for _, k := range v.sortedKeys() {
		if known := v.known(k); k.cut && v.joins(known, from) && known < to {
			v.setKnown(k, to)
		}
	}
	if v.joins(v.frontier, from) && v.frontier < to {
		v.frontier = to
		v.recountBehind()
	}
	for _, k := range v.sortedKeys() {
		v.place(k)
	}
}

// SkipKey says that the log holds no message of this hash in [from, to). It is how a search that found nothing is remembered.
func (v *View) SkipKey(hash uint64, from, to Offset) {
	k := v.keyOf(hash)
	if known := v.known(k); v.joins(known, from) && known < to {
		v.setKnown(k, to)
	}
	v.place(k)
}

// joins tells that nothing unsettled lies between what is known and the range that begins at from.
func (v *View) joins(known, from Offset) bool { return known >= from || v.done.Next(known) >= from }

// Admit moves the frontier over a directory and lists what it holds. A directory that does not join on to the frontier is left out. It
// reports whether the frontier moved; it stands where bounds demand it (Stopped).
func (v *View) Admit(d Directory) bool {
	before := v.frontier
	if !v.joins(v.frontier, d.Base) || v.tooYoung(d) {
		return false
	}
	v.frontier = max(v.frontier, d.Base)
	for i := int(v.frontier - d.Base); i < d.Len(); i++ {
		off := d.Base + Offset(i)
		if v.done.Has(off) {
			continue
		}
		v.frontier = off
		if !v.pass(v.keys[d.Hashes[i]], d.Hashes[i], item{off: off, size: d.Sizes[i]}) {
			return v.frontier > before
		}
		v.frontier = off + 1
	}
	v.frontier = max(v.frontier, d.End())
	return v.frontier > before
}

// pass admits the unsettled message at the frontier; false if the frontier must stand before it.
func (v *View) pass(k *key, hash uint64, it item) bool {
	if k == nil {
		if v.crowded() || !v.makeRoom(nil, false) {
			return false
		}
		k = v.keyOf(hash)
	}
	known, r := v.known(k), v.rowOf(k, it.off)
	switch {
	case r != nil:
		r.size = it.size
		v.frontier = it.off + 1
		v.countBehind(r, r.state != isMarker)
	case it.off != known || v.out.has(it.off): // listed by a search, cut before, or leased
		return true
	case len(k.listed()) >= v.lim.listed, !v.makeRoom(k, false) && v.held(k):
		v.frontier = it.off + 1
		v.setKnown(k, it.off)
	case v.admitted >= v.lim.admitted:
		return false
	default:
		v.frontier = it.off + 1
		k.push(it)
		v.admitted++
	}
	v.place(k)
	return true
}

// AdmitKey lists what a directory holds of one partition, wherever the frontier stands. A directory that does not join on to what is
// known of it is left out. It reports whether more is known than before.
func (v *View) AdmitKey(hash uint64, d Directory) bool {
	k := v.keyOf(hash)
	before := v.known(k)
	if v.joins(before, d.Base) && before < d.End() && !v.tooYoung(d) {
		v.setKnown(k, v.fill(k, d, max(before, d.Base)))
	}
	known := v.known(k)
	v.place(k)
	return known > before
}

// fill lists messages of k in d from an offset on and returns how far it came.
func (v *View) fill(k *key, d Directory, from Offset) Offset {
	for i := int(from - d.Base); i < d.Len(); i++ {
		off := d.Base + Offset(i)
		if d.Hashes[i] != k.hash || v.done.Has(off) {
			continue
		}
		if r := v.rowOf(k, off); r != nil {
			r.size = d.Sizes[i]
			continue
		}
		if v.out.has(off) {
			continue
		}
		if len(k.listed()) >= v.lim.listed || !v.makeRoom(k, true) {
			return off
		}
		k.push(item{off: off, size: d.Sizes[i]})
		v.admitted++
	}
	return d.End()
}

// rowOf is the retry row of one message, nil if it has none.
func (v *View) rowOf(k *key, off Offset) *retry {
	if k == nil || k.rows == 0 {
		return nil
	}
	return v.retries[off]
}
