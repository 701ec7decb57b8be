package window

import (
	"container/heap"
	"math"
	"math/bits"
	"sort"

	"postrider.dev/services/dispatcher/internal/domain/settled"
)

// entry is one open message of a lease. Its key cannot be forgotten while it is here.
type entry struct {
	off  Offset
	key  *key
	size uint32
}

// leaseState is one open lease.
type leaseState struct {
	epoch   Epoch
	expires DBTime
	holder  string
	alone   bool    // granted for one message only
	entries []entry // ascending

	at         int         // in the heap
	prev, next *leaseState // in the order of being granted

	// Scratch of the plan numbered mark.
	mark   uint64
	codes  int // index of its first entry's code in the planner
	open   int // entries still open
	extend DBTime
}

// find is the index of the entry of off, -1 if the lease does not hold it.
func (l *leaseState) find(off Offset) int {
	i := sort.Search(len(l.entries), func(i int) bool { return l.entries[i].off >= off })
	if i < len(l.entries) && l.entries[i].off == off {
		return i
	}
	return -1
}

// leaseHeap has the earliest expiry on top.
type leaseHeap []*leaseState

func (h leaseHeap) Len() int           { return len(h) }
func (h leaseHeap) Less(i, j int) bool { return h[i].expires < h[j].expires }
func (h leaseHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].at, h[j].at = i, j
}

// Push implements heap.Interface.
func (h *leaseHeap) Push(x any) {
	l, _ := x.(*leaseState)
	l.at = len(*h)
	*h = append(*h, l)
}

// Pop implements heap.Interface.
func (h *leaseHeap) Pop() any {
	last := len(*h) - 1
	l := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return l
}

// addLease takes an open lease in. Leases MUST come in the order of their epochs.
func (v *View) addLease(l *leaseState) {
	v.leases[l.epoch] = l
	heap.Push(&v.expiry, l)
	l.prev = v.newest
	if l.prev != nil {
		l.prev.next = l
	} else {
		v.oldest = l
	}
	v.newest = l
	for i := range l.entries {
		v.out.set(l.entries[i].off)
		l.entries[i].key.leased++
	}
	v.leased += len(l.entries)
}

// dropLease forgets a lease without open entries.
func (v *View) dropLease(l *leaseState) {
	delete(v.leases, l.epoch)
	heap.Remove(&v.expiry, l.at)
	if l.prev != nil {
		l.prev.next = l.next
	} else {
		v.oldest = l.next
	}
	if l.next != nil {
		l.next.prev = l.prev
	} else {
		v.newest = l.prev
	}
}

// expired calls f for the leases that ended by now, until it returns false. Order is that of the heap.
func (v *View) expired(now DBTime, f func(*leaseState) bool) { v.expiredFrom(0, now, f) }

func (v *View) expiredFrom(i int, now DBTime, f func(*leaseState) bool) bool {
	if i >= len(v.expiry) || v.expiry[i].expires > now {
		return true
	}
	return f(v.expiry[i]) && v.expiredFrom(2*i+1, now, f) && v.expiredFrom(2*i+2, now, f)
}

// offsets is a set of offsets that lie close together: which messages are leased.
type offsets struct {
	pages map[settled.ChunkNo]*page
	last  *page // the page used last; neighbours come together
	no    settled.ChunkNo
}

type page struct {
	bits [settled.ChunkLen / 64]uint64
	n    int
}

func (s *offsets) page(off Offset) *page {
	no := settled.ChunkNo(off / settled.ChunkLen)
	if s.last == nil || s.no != no {
		s.last, s.no = s.pages[no], no
	}
	return s.last
}

func (s *offsets) has(off Offset) bool {
	p, at := s.page(off), off%settled.ChunkLen
	return p != nil && p.bits[at/64]&(1<<(at%64)) != 0
}

func (s *offsets) set(off Offset) {
	p, at := s.page(off), off%settled.ChunkLen
	if p == nil {
		if s.pages == nil {
			s.pages = map[settled.ChunkNo]*page{}
		}
		p = new(page)
		s.pages[s.no], s.last = p, p
	}
	p.n += 1 - bits.OnesCount64(p.bits[at/64]>>(at%64)&1)
	p.bits[at/64] |= 1 << (at % 64)
}

func (s *offsets) clear(off Offset) {
	p, at := s.page(off), off%settled.ChunkLen
	if p == nil || p.bits[at/64]&(1<<(at%64)) == 0 {
		return
	}
	p.bits[at/64] &^= 1 << (at % 64)
	if p.n--; p.n == 0 {
		delete(s.pages, s.no)
		s.last = nil
	}
}

// noInstant is later than every instant.
const noInstant DBTime = math.MaxInt64
