package windowtest

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"postrider.dev/services/dispatcher/internal/domain/settled"
	"postrider.dev/services/dispatcher/internal/domain/window"
)

// ErrStale says that the row has another version than the change is from; nothing was written.
var ErrStale = errors.New("stale version")

// ErrGone says that the group-shard does not exist (any more).
var ErrGone = errors.New("no such group-shard")

// TooEarlyError says that the database's clock has not passed the change's NotBefore; nothing was written.
type TooEarlyError struct{ Now window.DBTime }

// Error implements error.
func (e *TooEarlyError) Error() string {
	return fmt.Sprintf("too early: the database's clock says %d", e.Now)
}

// Mem keeps the rows of one group-shard and applies changes as one compare-and-set. It is not safe for concurrent use.
type Mem struct {
	row     window.Row
	chunks  map[settled.ChunkNo]settled.Chunk
	leases  map[window.Epoch]window.LeaseRow
	retries map[window.Offset]window.RetryRow
	dead    []window.DeadLetter
	clock   window.DBTime
	gone    bool
}

// NewMem is a group-shard that begins at an offset; the clock stands at one hour.
func NewMem(id window.GroupShardID, start window.Offset) *Mem {
	return &Mem{
		row:    window.Row{ID: id, Version: 1, Hot: settled.Start(start), Low: start},
		chunks: map[settled.ChunkNo]settled.Chunk{}, leases: map[window.Epoch]window.LeaseRow{},
		retries: map[window.Offset]window.RetryRow{}, clock: window.DBTime(time.Hour / time.Microsecond),
	}
}

// Now is the store's clock.
func (m *Mem) Now() window.DBTime { return m.clock }

// Advance moves the clock.
func (m *Mem) Advance(d time.Duration) { m.clock = m.clock.Add(d) }

// DeadLetters are those written so far.
func (m *Mem) DeadLetters() []window.DeadLetter { return m.dead }

// Read is the rows as they are, sorted. Leases are read from LeaseLow on, as a database would.
func (m *Mem) Read() (window.Snapshot, error) {
	if m.gone {
		return window.Snapshot{}, ErrGone
	}
	s := window.Snapshot{Row: m.row}
	for _, no := range slices.Sorted(maps.Keys(m.chunks)) {
		c := m.chunks[no]
		c.Data = bytes.Clone(c.Data)
		s.Chunks = append(s.Chunks, c)
	}
	for _, e := range slices.Sorted(maps.Keys(m.leases)) {
		l := m.leases[e]
		if e.Version() < m.row.LeaseLow {
			continue // a cold read starts there
		}
		l.Entries = bytes.Clone(l.Entries)
		s.Leases = append(s.Leases, l)
	}
	for _, off := range slices.Sorted(maps.Keys(m.retries)) {
		s.Retries = append(s.Retries, m.retries[off])
	}
	return s, nil
}

// Apply writes a change with the store's own clock.
func (m *Mem) Apply(c window.Change) (window.Stamp, error) { return m.ApplyAt(c, m.clock) }

// ApplyAt writes a change as if the clock said at, so that it can follow another store.
func (m *Mem) ApplyAt(c window.Change, at window.DBTime) (window.Stamp, error) {
	switch {
	case m.gone:
		return window.Stamp{}, ErrGone
	case c.From != m.row.Version:
		return window.Stamp{}, ErrStale
	case at < c.NotBefore:
		return window.Stamp{}, &TooEarlyError{Now: at}
	case c.To != c.From+1:
		return window.Stamp{}, fmt.Errorf("change from %d to %d", c.From, c.To)
	}
	if c.Drop {
		m.gone = true
		return window.Stamp{At: at}, nil
	}
	m.row = window.Row{
		ID: m.row.ID, Version: c.To, Shard: m.row.Shard, Hot: c.Hot, Low: c.Low, UnsettledBelow: c.UnsettledBelow, LeaseLow: c.LeaseLow,
		Losses: c.Losses,
		Sought: m.row.Sought,
	}
	if c.Sought {
		m.row.Sought = c.To
	}
	if c.Reset {
		clear(m.chunks)
		clear(m.leases)
		clear(m.retries)
	}
	for _, no := range c.ChunkDeletes {
		delete(m.chunks, no)
	}
	for _, row := range c.ChunkUpserts {
		m.chunks[row.No] = row
	}
	m.applyLeases(c, at)
	m.applyRetries(c, at)
	m.dead = append(m.dead, c.DeadLetters...)
	return window.Stamp{At: at}, nil
}

func (m *Mem) applyLeases(c window.Change, at window.DBTime) {
	for _, e := range c.LeaseDeletes {
		delete(m.leases, e)
	}
	for _, u := range c.LeaseUpdates {
		l := m.leases[u.Epoch]
		if u.Entries != nil {
			l.Entries = u.Entries
		}
		if u.Extend > 0 {
			l.ExpiresAt = max(l.ExpiresAt, at.Add(u.Extend))
		}
		m.leases[u.Epoch] = l
	}
	for _, i := range c.LeaseInserts {
		m.leases[i.Epoch] = window.LeaseRow{Epoch: i.Epoch, ExpiresAt: at.Add(i.Lease), Holder: i.Holder, Entries: i.Entries}
	}
}

func (m *Mem) applyRetries(c window.Change, at window.DBTime) {
	for _, off := range c.RetryDeletes {
		delete(m.retries, off)
	}
	for _, u := range c.RetryUpserts {
		r := window.RetryRow{
			Offset: u.Offset, PartitionHash: u.PartitionHash, Failures: u.Failures, Deliveries: u.Deliveries,
			AvailableAt: u.AvailableAt, AloneThrough: u.AloneThrough, LastError: u.LastError,
		}
		if u.AvailableAt == 0 {
			r.AvailableAt = at.Add(u.After)
		}
		m.retries[u.Offset] = r
	}
}
