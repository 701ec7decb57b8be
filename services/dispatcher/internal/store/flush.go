package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"postrider.dev/pkg/pg"
	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/segment"
)

// FlushID names one append of one segment, so that it can be looked for when nobody knows whether it happened. It MUST be random and new.
type FlushID [16]byte

// Append is one segment for one shard.
type Append struct {
	segment.Encoded

	Shard message.ShardID
	// Known is a head this process has seen of the shard, or 0. It spares the database a walk over old versions of the row; it is never a condition.
	Known   message.Offset
	FlushID FlushID
	KeyID   int32 // of the key the body is encrypted with; 0 is none
}

// Status says what became of an append.
type Status uint8

// The states.
const (
	StatusAppended Status = iota + 1
	StatusNothing         // there was nothing to append: the keyed messages were all duplicates
	StatusSealed          // the queue was deleted; nothing was written to this shard
	StatusGone            // there is no such shard
)

// Appended answers one Append.
type Appended struct {
	Shard         message.ShardID
	Status        Status
	Base          message.Offset // of the first message; the shard's head where nothing was appended
	Count         int
	CreatedAt     time.Time // by the database's clock; never decreases within a shard
	ConfigVersion int64     // the queue's present one, 0 where the shard is gone
}

// errRepeatedShard is a fault of the caller.
var errRepeatedShard = errors.New("two segments for one shard in one flush")

// Flush appends the segments in one transaction and one round trip, and answers each at its index. When it returns nil, what is StatusAppended is durable
// and readable, with dense offsets in the order of commits. A shard may appear once.
//
// On pg.IsOutcomeUnknown the caller MUST ask FindFlush before it repeats anything.
func (s *Store) Flush(ctx context.Context, appends []Append) ([]Appended, error) {
	results := make([]Appended, len(appends))
	places, err := placesOf(appends)
	if err != nil || len(appends) == 0 {
		return results, err
	}
	err = s.write(ctx, func(conn *pgxpool.Conn) error {
		clear(results)
		batch := &pgx.Batch{}
		s.queueFlush(batch, appends, func(r Appended) {
			r.Count = appends[places[r.Shard]].Count
			results[places[r.Shard]] = r
		})
		return pg.CommitError(conn.SendBatch(ctx, batch).Close())
	})
	if err != nil {
		return nil, fmt.Errorf("flush: %w", err)
	}
	if err := s.explain(ctx, appends, results); err != nil {
		return nil, fmt.Errorf("flush: %w", err)
	}
	return results, nil
}

// placesOf returns the indexes of appends by shard.
func placesOf(appends []Append) (map[message.ShardID]int, error) {
	places := make(map[message.ShardID]int, len(appends))
	for i := range appends {
		if _, twice := places[appends[i].Shard]; twice {
			return nil, fmt.Errorf("shard %d: %w", appends[i].Shard, errRepeatedShard)
		}
		places[appends[i].Shard] = i
	}
	return places, nil
}

// queueFlush adds the flush of all appends to the batch; answer is called for each that was appended, Count left out.
func (s *Store) queueFlush(batch *pgx.Batch, appends []Append, answer func(Appended)) {
	var queued *pgx.QueuedQuery
	if len(appends) == 1 {
		a := &appends[0]
		queued = batch.Queue(s.sql.text("flush_one"), a.Count, a.Body, a.Shard, a.Known, a.FlushID, int16(a.Codec), a.KeyID, a.Partitions, a.Sizes)
	} else {
		queued = batch.Queue(s.sql.text("flush"), flushArrays(appends)...)
	}
	queued.Query(func(rows pgx.Rows) error {
		r := Appended{Status: StatusAppended}
		_, err := pgx.ForEachRow(rows, []any{&r.Shard, &r.Base, &r.CreatedAt, &r.ConfigVersion}, func() error {
			answer(r)
			return nil
		})
		return err
	})
}

// flushArrays turns appends into columns, in the order of shards.
func flushArrays(appends []Append) []any {
	order := slices.Clone(appends)
	slices.SortFunc(order, func(a, b Append) int { return cmp.Compare(a.Shard, b.Shard) })
	n := len(order)
	shards, known, counts, ids := make([]int64, n), make([]int64, n), make([]int32, n), make([][16]byte, n)
	codecs, keyIDs := make([]int16, n), make([]int32, n)
	partitions, sizes, bodies := make([][]byte, n), make([][]byte, n), make([][]byte, n)
	for i := range order {
		a := &order[i]
		shards[i], known[i], counts[i], ids[i] = int64(a.Shard), int64(a.Known), int32(a.Count), a.FlushID
		codecs[i], keyIDs[i] = int16(a.Codec), a.KeyID
		partitions[i], sizes[i], bodies[i] = a.Partitions, a.Sizes, a.Body
	}
	return []any{shards, known, counts, ids, codecs, keyIDs, partitions, sizes, bodies}
}

// explain finds out why appends were left out, and appends those again that only knew too high a head (the database was restored to an earlier state).
func (s *Store) explain(ctx context.Context, appends []Append, results []Appended) error {
	var again []Append
	for i := range results {
		if results[i].Status != 0 {
			continue
		}
		state, err := s.shardState(ctx, appends[i].Shard)
		if err != nil {
			return err
		}
		results[i] = state
		if state.Status == StatusNothing && appends[i].Known > state.Base {
			a := appends[i]
			a.Known = 0
			again = append(again, a)
		}
	}
	if len(again) == 0 {
		return nil
	}
	redone, err := s.Flush(ctx, again)
	if err != nil {
		return err
	}
	for _, r := range redone {
		for i := range results {
			if results[i].Shard == r.Shard {
				results[i] = r
			}
		}
	}
	return nil
}

// shardState reads what a shard's row says now: StatusNothing if it would take an append.
func (s *Store) shardState(ctx context.Context, shard message.ShardID) (Appended, error) {
	r := Appended{Shard: shard, Status: StatusNothing}
	var sealed bool
	err := s.db.QueryRow(ctx, s.sql.text("shard_state"), shard).Scan(&r.Shard, &r.Base, &r.ConfigVersion, &sealed)
	switch {
	case pg.IsNoRows(err):
		r.Status = StatusGone
		return r, nil
	case err != nil:
		return r, fmt.Errorf("read shard: %w", err)
	case sealed:
		r.Status = StatusSealed
	}
	return r, nil
}

// FindFlush says whether a flush whose outcome was unknown is in the log. known is a head the shard had before that flush. The answer is
// final: the session that sent the flush is ended and the shard's lock was taken, so nothing can still arrive.
func (s *Store) FindFlush(ctx context.Context, shard message.ShardID, id FlushID, known message.Offset) (Appended, bool, error) {
	if err := s.endLost(ctx); err != nil {
		return Appended{}, false, fmt.Errorf("find flush: %w", err)
	}
	var r Appended
	found := false
	err := s.write(ctx, func(conn *pgxpool.Conn) error {
		r, found = Appended{Shard: shard, Status: StatusAppended}, false
		batch := &pgx.Batch{}
		batch.Queue("begin")
		batch.Queue(s.sql.text("lock_shards"), []int64{int64(shard)}, []int64{0}).QueryRow(func(row pgx.Row) error {
			var head message.Offset
			var sealed bool
			var at time.Time
			if err := row.Scan(&r.Shard, &head, &r.ConfigVersion, &sealed, &at); !pg.IsNoRows(err) {
				return err
			}
			return nil
		})
		batch.Queue(s.sql.text("find_flush"), shard, known, id).QueryRow(func(row pgx.Row) error {
			err := row.Scan(&r.Base, &r.Count, &r.CreatedAt)
			if found = err == nil; pg.IsNoRows(err) {
				return nil
			}
			return err
		})
		batch.Queue("commit")
		return conn.SendBatch(ctx, batch).Close()
	})
	if err != nil {
		return Appended{}, false, fmt.Errorf("find flush: %w", err)
	}
	return r, found, nil
}
