package window

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"postrider.dev/services/dispatcher/internal/domain/queue"
	"postrider.dev/services/dispatcher/internal/domain/settled"
)

// View is what one process knows of one group-shard. It is not safe for concurrent use: its owner holds a lock from Plan to Commit.
type View struct {
	id      GroupShardID
	version Version
	sought  Version // the last seek was the change to this version
	policy  Policy
	shared  bool // mode shared
	blocks  bool // a waiting message holds what lies behind it
	dropped bool
	now     DBTime
	lim     limits

	done   settled.Set
	out    offsets // leased messages
	losses Losses

	leases         map[Epoch]*leaseState
	expiry         leaseHeap
	oldest, newest *leaseState
	leased         int // messages in open leases

	retries    map[Offset]*retry
	waiting    retryHeap
	dueUpTo    DBTime // nothing that counts as due was to wait longer
	rowsBehind int    // rows of unsettled messages behind the frontier

	frontier   Offset // every unsettled message before it was admitted
	young      young  // what must grow older first
	ripeAt     DBTime // when the youngest segment was committed of which anything was admitted; kept where there is a delay only
	keys       map[uint64]*key
	admitted   int // listed messages
	offered    int // listed or due messages of ready keys
	cuts       int // keys whose list was cut
	turn       ring
	parked     ring
	starving   ring
	remembered ring

	plan planner
}

// limits are the bounds of a view; tests make them small.
type limits struct{ admitted, listed, blocked, remembered, leases, leased int }

// Load builds a view of rows that are all of one version. It refuses rows that do not fit together with ErrCorrupt.
func Load(s Snapshot, p Policy) (*View, error) {
	v := &View{id: s.Row.ID, policy: p, shared: p.Mode == queue.Shared, keys: map[uint64]*key{}}
	v.lim = limits{MaxAdmitted, MaxListed, MaxBlocked, MaxRemembered, MaxLeases, MaxLeasedMessages}
	v.blocks = !v.shared && p.OnFailure == queue.Block
	v.turn.init(slotTurn)
	v.parked.init(slotTurn)
	v.starving.init(slotRefill)
	v.remembered.init(slotRefill)
	if err := v.read(s); err != nil {
		return nil, err
	}
	v.frontier = v.done.Low()
	for _, k := range v.sortedKeys() {
		v.place(k)
	}
	return v, nil
}

// read replaces everything that comes from rows. Keys are left to be placed.
func (v *View) read(s Snapshot) error {
	chunks := s.Chunks
	if s.ChunksKept {
		chunks = v.done.Rows()
	}
	done, err := settled.New(s.Row.Hot, chunks)
	if err != nil {
		return fmt.Errorf("group-shard %d: %w", s.Row.ID, err)
	}
	rows := s.Retries
	if s.RetriesKept {
		rows = nil
		for _, r := range v.retries {
			rows = append(rows, r.row)
		}
	}
	v.version, v.sought, v.done, v.out, v.losses = s.Row.Version, s.Row.Sought, *done, offsets{}, s.Row.Losses
	v.leases, v.expiry, v.oldest, v.newest, v.leased = make(map[Epoch]*leaseState, len(s.Leases)), nil, nil, nil, 0
	v.retries, v.waiting, v.rowsBehind = make(map[Offset]*retry, len(rows)), nil, 0
	if err := v.readLeases(s.Leases); err != nil {
		return fmt.Errorf("group-shard %d: %w", s.Row.ID, err)
	}
	slices.SortFunc(rows, func(a, b RetryRow) int { return cmp.Compare(a.Offset, b.Offset) })
	for _, row := range rows {
		v.putRow(row)
	}
	return nil
}

func (v *View) readLeases(rows []LeaseRow) error {
	rows = slices.Clone(rows)
	slices.SortFunc(rows, func(a, b LeaseRow) int { return cmp.Compare(a.Epoch, b.Epoch) })
	for _, row := range rows {
		alone, entries, err := DecodeEntries(row.Entries)
		if err != nil {
			return fmt.Errorf("lease %d: %w", row.Epoch, err)
		}
		l := &leaseState{epoch: row.Epoch, expires: row.ExpiresAt, holder: row.Holder, alone: alone, entries: make([]entry, len(entries))}
		for i, e := range entries {
			if v.done.Has(e.Offset) || v.out.has(e.Offset) {
				return fmt.Errorf("lease %d holds offset %d, which is settled or leased twice: %w", row.Epoch, e.Offset, ErrCorrupt)
			}
			l.entries[i] = entry{off: e.Offset, key: v.keyOf(e.Hash), size: e.Size}
		}
		if _, twice := v.leases[l.epoch]; twice || len(entries) == 0 {
			return fmt.Errorf("lease %d is empty or there twice: %w", row.Epoch, ErrCorrupt)
		}
		v.addLease(l)
	}
	return nil
}

func (v *View) sortedKeys() []*key {
	return slices.SortedFunc(maps.Values(v.keys), func(a, b *key) int { return cmp.Compare(a.hash, b.hash) })
}

// ID is the group-shard's id.
func (v *View) ID() GroupShardID { return v.id }

// Version is the version the view is valid for.
func (v *View) Version() Version { return v.version }

// Policy is what Plan decides by.
func (v *View) Policy() Policy { return v.policy }

// Known is what an incremental refresh needs: read leases of versions above Version, and probe these.
type Known struct {
	Version Version
	Leases  []Epoch
}

// Known is what an incremental refresh has to know.
func (v *View) Known() Known {
	return Known{Version: v.version, Leases: slices.Sorted(maps.Keys(v.leases))}
}

// Ready is how many partitions a pop of any partition would be served from, and how many messages they have at hand. Not all of them
// may go into one pop: suspects travel alone, and in a partition with a waiting message only what lies before it.
func (v *View) Ready() (partitions, messages int) { return v.turn.n, v.offered }

// Depth counts the messages before head that are not settled.
func (v *View) Depth(head Offset) int64 { return v.done.Unsettled(head) }

// Low is the first unsettled offset.
func (v *View) Low() Offset { return v.done.Low() }

// Settled tells whether the message at off is settled. A no is a refusal like any other (R4).
func (v *View) Settled(off Offset) bool { return v.done.Has(off) }

// Leased counts open leases and the messages in them.
func (v *View) Leased() (leases, messages int) { return len(v.leases), v.leased }

// Waiting counts the messages that failed and wait for their next attempt.
func (v *View) Waiting() int { return len(v.waiting) }

// NextWake is the earliest instant at which time alone makes something available: a retry that becomes due, a lease that may be
// reclaimed, a message that is old enough. It may lie in the past if a lease ran out and nobody wanted its messages. ok is false if there is none.
func (v *View) NextWake() (at DBTime, ok bool) {
	at = noInstant
	if len(v.waiting) > 0 {
		at = v.waiting[0].row.AvailableAt
	}
	if len(v.expiry) > 0 {
		at = min(at, v.expiry[0].expires)
	}
	if v.young.until > v.now {
		at = min(at, v.young.until)
	}
	return at, at != noInstant
}

// NextWakeAfter is NextWake without what is due already. It looks at everything that waits.
func (v *View) NextWakeAfter(now DBTime) (at DBTime, ok bool) {
	at = noInstant
	for _, r := range v.waiting {
		if r.row.AvailableAt > now {
			at = min(at, r.row.AvailableAt)
		}
	}
	for _, l := range v.expiry {
		if l.expires > now {
			at = min(at, l.expires)
		}
	}
	if v.young.until > now {
		at = min(at, v.young.until)
	}
	return at, at != noInstant
}

// Stopped says why the frontier stands although there may be more, NoStop if it does not.
func (v *View) Stopped() Stop {
	switch {
	case v.crowded():
		return StopBlocked
	case v.admitted >= v.lim.admitted && v.parked.n == 0:
		return StopAdmitted
	default:
		return NoStop
	}
}

// Key is what the view knows of one partition hash.
func (v *View) Key(hash uint64) KeyInfo {
	k, ok := v.keys[hash]
	if !ok {
		return KeyInfo{Known: v.frontier}
	}
	info := KeyInfo{Listed: len(k.listed()) + len(k.due), Leased: k.leased, Ready: v.ready(k), Known: v.known(k)}
	if k.rows > 0 {
		for _, r := range v.waiting {
			if r.key == k {
				info.Waiting++
				if info.RetryAt == 0 || r.row.AvailableAt < info.RetryAt {
					info.RetryAt = r.row.AvailableAt
				}
			}
		}
	}
	return info
}

// Holding describes one open lease, for inspection.
type Holding struct {
	Epoch     Epoch
	Holder    string
	ExpiresAt DBTime
	Messages  int
}

// Holdings lists the open leases, oldest first, at most limit.
func (v *View) Holdings(limit int) []Holding {
	var list []Holding
	for l := v.oldest; l != nil && len(list) < limit; l = l.next {
		list = append(list, Holding{Epoch: l.epoch, Holder: l.holder, ExpiresAt: l.expires, Messages: len(l.entries)})
	}
	return list
}
