package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"postrider.dev/pkg/pg"
	"postrider.dev/services/dispatcher/internal/domain/lease"
	"postrider.dev/services/dispatcher/internal/domain/settled"
	"postrider.dev/services/dispatcher/internal/domain/window"
)

// State is a group-shard as the database holds it at one version, and what else a reader wants to know of that moment.
type State struct {
	window.Snapshot

	Group int64         // whose it is
	Now   window.DBTime // the database's clock

	chunksVersion, retriesVersion window.Version // that last wrote such rows
}

var errHotSize = errors.New("the inline pair has another size")

// Snapshot reads everything of a group-shard, of one version. It returns ErrGone if there is no row.
func (s *Store) Snapshot(ctx context.Context, gs window.GroupShardID) (State, error) {
	return s.Refresh(ctx, gs, window.Known{})
}

// Refresh is Snapshot for one who has the state of known: it reads only leases that are newer, looks whether the known ones are still there, and leaves out
// chunks and retries where none was written since (ChunksKept, RetriesKept). Sessions
// this process lost sight of are ended first, so what is read is not changed behind its back by itself.
func (s *Store) Refresh(ctx context.Context, gs window.GroupShardID, known window.Known) (State, error) {
	var state State
	if err := s.endLost(ctx); err != nil {
		return state, fmt.Errorf("read group-shard %d: %w", gs, err)
	}
	err := s.read(ctx, func(conn *pgxpool.Conn) error {
		var err error
		if state, err = s.readRow(ctx, conn, "begin isolation level repeatable read, read only", "group_shard", gs, known.Version); err != nil {
			return err
		}
		return s.readRest(ctx, conn, &state, known, "commit")
	})
	if err != nil {
		return State{}, fmt.Errorf("read group-shard %d: %w", gs, err)
	}
	return state, nil
}

// read runs fn on one connection and leaves no transaction open on it.
func (s *Store) read(ctx context.Context, fn func(*pgxpool.Conn) error) error {
	conn, err := s.db.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("acquire connection: %w", err)
	}
	defer conn.Release()
	err = fn(conn)
	if !conn.Conn().IsClosed() && conn.Conn().PgConn().TxStatus() != 'I' {
		rollback(ctx, conn.Conn())
	}
	return err
}

// batcher is a connection or a transaction.
type batcher interface {
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// readRow begins a transaction, if begin says how, and reads, or locks, the hot row. A known version that is above the row's (the database was restored) is tried again as none.
func (s *Store) readRow(ctx context.Context, conn batcher, begin, name string, gs window.GroupShardID, known window.Version) (State, error) {
	var state State
	batch := &pgx.Batch{}
	if begin != "" {
		batch.Queue(begin)
	}
	batch.Queue(s.sql.text(name), gs, known).QueryRow(func(row pgx.Row) error { return state.scanRow(row) })
	err := conn.SendBatch(ctx, batch).Close()
	if pg.IsNoRows(err) && known > 0 {
		err = state.scanRow(conn.QueryRow(ctx, s.sql.text(name), gs, 0))
	}
	if pg.IsNoRows(err) {
		return state, ErrGone
	}
	return state, err
}

func (state *State) scanRow(row pgx.Row) error {
	var hot []byte
	var now time.Time
	r := &state.Row
	err := row.Scan(&r.ID, &r.Version, &state.Group, &r.Shard, &r.Hot.Chunk, &hot, &r.Low, &r.UnsettledBelow, &r.LeaseLow,
		&state.chunksVersion, &state.retriesVersion, &r.Sought, &r.Losses.Messages, &r.Losses.Untold, &r.Losses.First, &now)
	if err != nil {
		return err
	}
	if len(hot) != settled.HotBytes {
		return fmt.Errorf("%w: %d", errHotSize, len(hot))
	}
	copy(r.Hot.Bits[:], hot)
	state.Now = window.DBTimeOf(now)
	return nil
}

// readRest reads chunks, leases and retries, and ends the transaction if last says so. Chunks below the first unsettled offset have no row.
func (s *Store) readRest(ctx context.Context, conn batcher, state *State, known window.Known, last string) error {
	batch := &pgx.Batch{}
	s.queueRest(batch, state, known)
	if last != "" {
		batch.Queue(last)
	}
	return conn.SendBatch(ctx, batch).Close()
}

// queueRest adds the reads of readRest to the batch.
func (s *Store) queueRest(batch *pgx.Batch, state *State, known window.Known) {
	id := state.Row.ID
	if known.Version > state.Row.Version {
		known = window.Known{} // the database was restored to an earlier state
	}
	state.ChunksKept = known.Version > 0 && state.chunksVersion <= known.Version
	state.RetriesKept = known.Version > 0 && state.retriesVersion <= known.Version
	if !state.ChunksKept {
		first := pairKey(id, uint64(state.Row.Low/settled.ChunkLen))
		batch.Queue(s.sql.text("chunks"), first, pairKey(id, lastOfPair)).Query(state.scanChunks)
	}
	if !state.RetriesKept {
		batch.Queue(s.sql.text("retries"), pairKey(id, 0), pairKey(id, lastOfPair)).Query(state.scanRetries)
	}
	if len(known.Leases) > 0 {
		keys := make([][16]byte, len(known.Leases))
		for i, epoch := range known.Leases {
			keys[i] = pairKey(id, uint64(epoch))
		}
		batch.Queue(s.sql.text("probe_leases"), keys).Query(state.scanLeases)
	}
	from := max(state.Row.LeaseLow, known.Version+1)
	batch.Queue(s.sql.text("leases"), pairKey(id, uint64(lease.MakeEpoch(from, 0))), pairKey(id, lastOfPair)).Query(state.scanLeases)
}

func (state *State) scanChunks(rows pgx.Rows) error {
	var key [16]byte
	var c settled.Chunk
	_, err := pgx.ForEachRow(rows, []any{&key, &c.Encoding, &c.Data}, func() error {
		c.No = settled.ChunkNo(numberOf(key))
		state.Chunks = append(state.Chunks, c)
		c.Data = nil
		return nil
	})
	return err
}

func (state *State) scanLeases(rows pgx.Rows) error {
	var key [16]byte
	var l window.LeaseRow
	var expires time.Time
	_, err := pgx.ForEachRow(rows, []any{&key, &expires, &l.Holder, &l.Entries}, func() error {
		l.Epoch, l.ExpiresAt = window.Epoch(numberOf(key)), window.DBTimeOf(expires)
		state.Leases = append(state.Leases, l)
		l.Entries = nil
		return nil
	})
	return err
}

func (state *State) scanRetries(rows pgx.Rows) error {
	var key [16]byte
	var r window.RetryRow
	var hash int64
	var available time.Time
	_, err := pgx.ForEachRow(rows, []any{&key, &hash, &r.Failures, &r.Deliveries, &available, &r.AloneThrough, &r.LastError}, func() error {
		r.Offset, r.PartitionHash, r.AvailableAt = window.Offset(numberOf(key)), uint64(hash), window.DBTimeOf(available)
		state.Retries = append(state.Retries, r)
		return nil
	})
	return err
}
