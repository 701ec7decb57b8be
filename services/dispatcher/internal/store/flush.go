package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"postrider.dev/pkg/pg"
	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/seal"
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
	Key     *seal.Key // encrypts the body as it is written; that of the shard's queue, nil where that is not encrypted
	// MaxBytes is how many bytes of bodies the shard may hold with this one; 0 is no limit.
	MaxBytes int64
}

// most is the limit as the statement takes it.
func (a *Append) most() int64 {
	if a.MaxBytes == 0 {
		return math.MaxInt64
	}
	return a.MaxBytes
}

// Status says what became of an append.
type Status uint8

// The states.
const (
	StatusAppended Status = iota + 1
	StatusNothing         // there was nothing to append: the keyed messages were all duplicates
	StatusSealed          // the queue was deleted; nothing was written to this shard
	StatusGone            // there is no such shard
	// StatusLeftOut says that nothing was written to this shard, although it may take an append: the head known was too high (the database was restored
	// to an earlier state), or why it was left out could not be read after the commit. Append again, with no head known.
	StatusLeftOut
	// StatusFull says that nothing was written to this shard because it would have held more than MaxBytes. Other shards of its queue were left out with it.
	StatusFull
)

// Appended answers one Append.
type Appended struct {
	Shard         message.ShardID
	Status        Status
	Base          message.Offset // of the first message; the shard's head where nothing was appended
	Count         int
	CreatedAt     time.Time // by the database's clock; never decreases within a shard
	ConfigVersion int64     // the queue's present one, 0 where the shard is gone
	Kept          int64     // bytes of bodies the shard held, where nothing was appended
}

// errRepeatedShard is a fault of the caller.
var errRepeatedShard = errors.New("two segments for one shard in one flush")

// Flush appends the segments in one transaction and one round trip, and answers each at its index. When it returns nil, what is StatusAppended is durable
// and readable, with dense offsets in the order of commits, and of all else nothing was written. A shard may appear once.
//
// An error says that nothing was written at all, unless pg.IsOutcomeUnknown: then the caller MUST ask FindFlush before it repeats anything.
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
	s.explain(ctx, appends, results)
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

// queueFlush adds the flush of all appends to the batch, encrypted where they have a key; answer is called for each that was appended, Count left out.
func (s *Store) queueFlush(batch *pgx.Batch, appends []Append, answer func(Appended)) {
	var queued *pgx.QueuedQuery
	if len(appends) == 1 {
		a := &appends[0]
		queued = batch.Queue(s.sql.text("flush_one"),
			a.Count, a.stored(), a.Shard, a.Known, a.most(), a.FlushID, int16(a.Codec), a.Key.ID(), a.Partitions, a.Sizes)
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
	partitions, sizes, bodies, most := make([][]byte, n), make([][]byte, n), make([][]byte, n), make([]int64, n)
	for i := range order {
		a := &order[i]
		shards[i], known[i], counts[i], ids[i] = int64(a.Shard), int64(a.Known), int32(a.Count), a.FlushID
		codecs[i], keyIDs[i] = int16(a.Codec), a.Key.ID()
		partitions[i], sizes[i], bodies[i], most[i] = a.Partitions, a.Sizes, a.stored(), a.most()
	}
	return []any{shards, known, counts, ids, codecs, keyIDs, partitions, sizes, bodies, most}
}

// explain says why appends were left out. What the others wrote is committed, so a failure here is not the flush's: it leaves StatusLeftOut.
func (s *Store) explain(ctx context.Context, appends []Append, results []Appended) {
	var left []int64
	for i := range results {
		if results[i].Status == 0 {
			results[i] = Appended{Shard: appends[i].Shard, Status: StatusLeftOut}
			left = append(left, int64(appends[i].Shard))
		}
	}
	if len(left) == 0 {
		return
	}
	states := shardStates{}
	rows, err := s.db.Query(ctx, s.sql.text("shard_states"), left, make([]int64, len(left)))
	if err != nil || states.scan(rows) != nil {
		return
	}
	for i := range results {
		if results[i].Status == StatusLeftOut {
			results[i] = states.of(appends[i].Shard)
			if r := &results[i]; r.Status == StatusLeftOut && r.Kept+int64(len(appends[i].Body)) > appends[i].most() {
				r.Status = StatusFull
			}
		}
	}
}

// shardStates are the rows of shards as they were read, to say what became of an append that is not there.
type shardStates map[message.ShardID]Appended

// scan reads rows of lock_shards or shard_states.
func (s shardStates) scan(rows pgx.Rows) error {
	return s.scanWith(rows, func(message.ShardID, message.Offset) {})
}

// scanWith tells each shard's tail beside.
func (s shardStates) scanWith(rows pgx.Rows, tail func(message.ShardID, message.Offset)) error {
	var r Appended
	var sealed bool
	var at time.Time
	var first message.Offset
	_, err := pgx.ForEachRow(rows, []any{&r.Shard, &r.Base, &first, &r.Kept, &r.ConfigVersion, &sealed, &at}, func() error {
		tail(r.Shard, first)
		r.Status = StatusLeftOut
		if sealed {
			r.Status = StatusSealed
		}
		s[r.Shard] = r
		return nil
	})
	return err
}

func (s shardStates) of(shard message.ShardID) Appended {
	if r, ok := s[shard]; ok {
		return r
	}
	return Appended{Shard: shard, Status: StatusGone}
}

// Sought is one append of a flush whose outcome is unknown.
type Sought struct {
	Shard   message.ShardID
	FlushID FlushID
	Known   message.Offset      // a head the shard had before the flush, or 0
	Pending []message.PendingID // of messages that the flush accepted for later
}

// ErrTrimmedSince says that a flush that was sought is not in the log, and that the log was trimmed since, so that it may have been.
var ErrTrimmedSince = errors.New("the log was trimmed since the flush")

// soughtArrays are the columns of find_flush, and all pending ids.
func soughtArrays(sought []Sought) (shards, known []int64, ids, pending [][16]byte) {
	for _, a := range sought {
		shards, known, ids = append(shards, int64(a.Shard)), append(known, int64(a.Known)), append(ids, a.FlushID)
		for _, id := range a.Pending {
			pending = append(pending, id)
		}
	}
	return shards, known, ids, pending
}

// FindFlush says whether a flush whose outcome was unknown is in the database: it is if any of its appends or pending ids is, for they were one
// transaction. Each append is answered at its index as Flush would have: StatusAppended, or why nothing of it is there. The answer is final: the session
// that sent the flush is ended and the shards' locks were taken, so nothing can still arrive. Where trimming may have taken it meanwhile the error matches
// ErrTrimmedSince.
func (s *Store) FindFlush(ctx context.Context, sought []Sought) (results []Appended, found bool, err error) {
	if err := s.endLost(ctx); err != nil {
		return nil, false, fmt.Errorf("find flush: %w", err)
	}
	shards, known, ids, pending := soughtArrays(sought)
	states, there := shardStates{}, map[message.ShardID]Appended{}
	tails := map[message.ShardID]message.Offset{}
	err = s.write(ctx, func(conn *pgxpool.Conn) error {
		clear(states)
		clear(there)
		found = false
		batch := &pgx.Batch{}
		batch.Queue("begin")
		batch.Queue(s.sql.text("lock_shards"), shards, make([]int64, len(sought))).Query(func(rows pgx.Rows) error {
			return states.scanWith(rows, func(shard message.ShardID, tail message.Offset) { tails[shard] = tail })
		})
		batch.Queue(s.sql.text("find_flush"), shards, known, ids).Query(func(rows pgx.Rows) error {
			r := Appended{Status: StatusAppended}
			_, err := pgx.ForEachRow(rows, []any{&r.Shard, &r.Base, &r.Count, &r.CreatedAt}, func() error {
				r.ConfigVersion = states[r.Shard].ConfigVersion
				there[r.Shard] = r
				return nil
			})
			return err
		})
		if len(pending) > 0 { // their rows among the keys are there also when they are due and moved
			batch.Queue(s.sql.text("find_keys"), pending).Query(func(rows pgx.Rows) error {
				found = rows.Next()
				rows.Close()
				return rows.Err()
			})
		}
		batch.Queue("commit")
		return conn.SendBatch(ctx, batch).Close()
	})
	if err != nil {
		return nil, false, fmt.Errorf("find flush: %w", err)
	}
	results = make([]Appended, len(sought))
	for i, a := range sought {
		if r, ok := there[a.Shard]; ok {
			results[i], found = r, true
		} else {
			results[i] = states.of(a.Shard)
		}
	}
	if !found && slices.ContainsFunc(sought, func(a Sought) bool { return tails[a.Shard] > a.Known }) {
		return nil, false, fmt.Errorf("find flush: %w", ErrTrimmedSince)
	}
	return results, found, nil
}
