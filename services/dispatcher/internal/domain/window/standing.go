package window

import (
	"fmt"

	"postrider.dev/services/dispatcher/internal/domain/queue"
	"postrider.dev/services/dispatcher/internal/domain/settled"
)

// Place is where a message is, seen by a group.
type Place uint8

// The places.
const (
	Settled Place = iota + 1 // acked, passed over, or a dead letter
	Leased
	Waiting // for its retry, or to be as old as the queue wants it
	Blocked // ordered: another message of its key is leased, or waits before it
	Ready
)

// Standing is where one message stands in a group-shard.
type Standing struct {
	Place     Place
	Holder    string // of its lease
	ExpiresAt DBTime
	Attempt   int // of the lease
	Failures  int
	LastError string
	RetryAt   DBTime // of what waits
	BlockedBy Offset // the message that holds it up; -1: none
}

// Asked is the message of which Stand tells.
type Asked struct {
	Offset Offset
	Hash   uint64 // of its key
	At     DBTime // when it was committed
}

// Stand derives where a message stands at now.
func Stand(s Snapshot, p Policy, m Asked, now DBTime) (Standing, error) {
	st := Standing{BlockedBy: -1}
	off, hash := m.Offset, m.Hash
	done, err := settled.New(s.Row.Hot, s.Chunks)
	if err != nil {
		return st, fmt.Errorf("group-shard %d: %w", s.Row.ID, err)
	}
	if done.Has(off) {
		st.Place = Settled
		return st, nil
	}
	st.Place = Ready
	if due := m.At.Add(p.Delay); p.Delay > 0 && due > now {
		st.Place, st.RetryAt = Waiting, due
	}
	deliveries := 0
	leased := map[Offset]bool{}
	for _, l := range s.Leases {
		_, entries, err := DecodeEntries(l.Entries)
		if err != nil {
			return st, fmt.Errorf("lease %d: %w", l.Epoch, err)
		}
		for _, e := range entries {
			if leased[e.Offset] = true; e.Offset == off {
				st.Place, st.Holder, st.ExpiresAt, st.RetryAt = Leased, l.Holder, l.ExpiresAt, 0
			} else if e.Hash == hash && p.Mode != queue.Shared {
				st.block(e.Offset)
			}
		}
	}
	for _, r := range s.Retries {
		wall := p.Mode != queue.Shared && p.OnFailure == queue.Block && r.PartitionHash == hash && r.Offset < off && r.AvailableAt > now
		switch {
		case r.Offset == off:
			deliveries, st.Failures, st.LastError = r.Deliveries, r.Failures, r.LastError
			switch { // it was handed out: its age does not matter any more
			case st.Place == Leased:
			case r.AvailableAt > now:
				st.Place, st.RetryAt = Waiting, r.AvailableAt
			default:
				st.Place, st.RetryAt = Ready, 0
			}
		case wall && !done.Has(r.Offset) && !leased[r.Offset]:
			st.block(r.Offset)
		}
	}
	switch {
	case st.Place == Leased:
		st.Attempt, st.BlockedBy = deliveries+1, -1
	case st.Place == Waiting:
		st.BlockedBy = -1
	case st.BlockedBy >= 0:
		st.Place = Blocked
	}
	return st, nil
}

// block keeps the first of those that hold the message up.
func (st *Standing) block(by Offset) {
	if st.BlockedBy < 0 || by < st.BlockedBy {
		st.BlockedBy = by
	}
}
