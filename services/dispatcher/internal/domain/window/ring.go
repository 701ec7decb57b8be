package window

// A key may be in one list of each slot.
const (
	slotTurn   = iota // ready or parked
	slotRefill        // hungry or remembered
	slots
)

type link struct {
	prev, next *key
	in         *ring
}

// ring is an intrusive list of keys, the one to be served next first.
type ring struct {
	slot int
	root key // sentinel
	n    int
}

func (r *ring) init(slot int) {
	r.slot, r.n = slot, 0
	r.root.link[slot] = link{prev: &r.root, next: &r.root}
}

// front is the key to be served next, nil if there is none.
func (r *ring) front() *key { return r.after(&r.root) }

// after is the key behind k, nil at the end.
func (r *ring) after(k *key) *key {
	if next := k.link[r.slot].next; next != &r.root {
		return next
	}
	return nil
}

// back is the key served last, nil if there is none; before is the one in front of k.
func (r *ring) back() *key { return r.before(&r.root) }

func (r *ring) before(k *key) *key {
	if prev := k.link[r.slot].prev; prev != &r.root {
		return prev
	}
	return nil
}

// put makes r the list of k in its slot, at the end, unless it is there already. A nil ring takes k out.
func put(k *key, slot int, r *ring) {
	l := &k.link[slot]
	if l.in == r {
		return
	}
	if l.in != nil {
		l.prev.link[slot].next, l.next.link[slot].prev = l.next, l.prev
		l.in.n--
		*l = link{}
	}
	if r != nil {
		last := r.root.link[slot].prev
		*l = link{prev: last, next: &r.root, in: r}
		last.link[slot].next, r.root.link[slot].prev = k, k
		r.n++
	}
}
