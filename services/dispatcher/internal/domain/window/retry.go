package window

import (
	"cmp"
	"container/heap"
	"slices"
)

// Where the message of a retry row is.
const (
	nowhere = iota
	isWaiting
	isDue
	isLeased
	isMarker // its own message is settled; the row only marks later ones of its key
)

// retry is a retry row and where its message is.
type retry struct {
	row    RetryRow
	key    *key
	size   uint32 // 0 while no directory has been seen
	state  uint8
	behind bool // counted in rowsBehind
	at     int  // in the heap
}

// retryHeap has the earliest due on top.
type retryHeap []*retry

func (h retryHeap) Len() int           { return len(h) }
func (h retryHeap) Less(i, j int) bool { return h[i].row.AvailableAt < h[j].row.AvailableAt }
func (h retryHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].at, h[j].at = i, j
}

// Push implements heap.Interface.
func (h *retryHeap) Push(x any) {
	r, _ := x.(*retry)
	r.at = len(*h)
	*h = append(*h, r)
}

// Pop implements heap.Interface.
func (h *retryHeap) Pop() any {
	last := len(*h) - 1
	r := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return r
}

// putRow adds or replaces a retry row. Settled bits and leases MUST be up to date; its key is to be placed afterwards.
func (v *View) putRow(row RetryRow) {
	r, ok := v.retries[row.Offset]
	if ok {
		v.unmark(r)
	} else {
		r = &retry{key: v.keyOf(row.PartitionHash)}
		v.retries[row.Offset] = r
		r.key.rows++
	}
	r.row = row
	if row.AloneThrough > row.Offset {
		r.key.spans = append(r.key.spans, r)
	}
	v.locate(r)
}

// dropRow forgets a retry row. Its key is to be placed afterwards.
func (v *View) dropRow(off Offset) {
	r, ok := v.retries[off]
	if !ok {
		return
	}
	v.unmark(r)
	v.lift(r)
	v.countBehind(r, false)
	r.key.rows--
	delete(v.retries, off)
}

func (v *View) unmark(r *retry) {
	if r.row.AloneThrough > r.row.Offset {
		r.key.spans = without(r.key.spans, r)
	}
}

// locate puts the message of a row where it belongs now: time, settled bits and leases decide.
func (v *View) locate(r *retry) {
	v.lift(r)
	off := r.row.Offset
	switch {
	case v.done.Has(off):
		r.state = isMarker
	case v.out.has(off):
		r.state = isLeased
	case r.row.dueAt() <= v.now:
		r.state = isDue
		v.dueUpTo = max(v.dueUpTo, r.row.dueAt())
		v.insertDue(r)
	default:
		r.state = isWaiting
		heap.Push(&v.waiting, r)
		if v.blocks {
			r.key.waits = append(r.key.waits, r)
		}
	}
	v.countBehind(r, r.state != isMarker && off < v.frontier)
}

// dueAt is when the message may be handed out. A row without failures never waits: its instant was the database's present when it was
// written, whatever this process's clock says.
func (r *RetryRow) dueAt() DBTime {
	if r.Failures == 0 {
		return 0
	}
	return r.AvailableAt
}

// lift takes the message of a row from where it is.
func (v *View) lift(r *retry) {
	switch r.state {
	case isWaiting:
		heap.Remove(&v.waiting, r.at)
		r.key.waits = without(r.key.waits, r)
	case isDue:
		r.key.due = without(r.key.due, r)
	}
	r.state = nowhere
}

// insertDue keeps the order of the log where the mode promises one, else the order of becoming due.
func (v *View) insertDue(r *retry) {
	k := r.key
	at := len(k.due)
	if !v.shared {
		at, _ = slices.BinarySearchFunc(k.due, r, byOffset)
	}
	k.due = slices.Insert(k.due, at, r)
}

func (v *View) countBehind(r *retry, behind bool) {
	switch {
	case behind && !r.behind:
		v.rowsBehind++
	case !behind && r.behind:
		v.rowsBehind--
	}
	r.behind = behind
}

// recountBehind follows a frontier that jumped.
func (v *View) recountBehind() {
	for _, r := range v.retries {
		v.countBehind(r, r.state != isMarker && r.row.Offset < v.frontier)
	}
}

// advance makes it now: what was waiting and is due may be handed out. A clock that was ahead may be set back: what became due too
// early waits again.
func (v *View) advance(now DBTime) {
	v.now = now
	if now < v.dueUpTo {
		v.dueUpTo = 0
		for _, r := range v.dueRows() {
			v.locate(r)
			v.place(r.key)
		}
	}
	for len(v.waiting) > 0 && v.waiting[0].row.AvailableAt <= now {
		r := v.waiting[0]
		v.locate(r)
		v.place(r.key)
	}
}

// dueRows lists the due messages by offset.
func (v *View) dueRows() []*retry {
	var list []*retry
	for _, r := range v.retries {
		if r.state == isDue {
			list = append(list, r)
		}
	}
	slices.SortFunc(list, byOffset)
	return list
}

func byOffset(a, b *retry) int { return cmp.Compare(a.row.Offset, b.row.Offset) }

// without removes one element, keeping order.
func without(list []*retry, r *retry) []*retry {
	if i := slices.Index(list, r); i >= 0 {
		return slices.Delete(list, i, i+1)
	}
	return list
}
