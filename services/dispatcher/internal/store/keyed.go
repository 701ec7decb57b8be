package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"postrider.dev/pkg/pg"
	"postrider.dev/services/dispatcher/internal/domain/message"
)

// KeyID is the 128-bit hash of a shard, the kind of key (a message's, with its partition, or a whole request's) and the producer's key.
type KeyID [16]byte

// Key is what a producer calls a message, or a whole request, so that it is accepted once.
type Key struct {
	ID       KeyID
	BodyHash uint64 // of what the key was given for
}

// ErrKeyReused says that the key was used for another body within its window.
var ErrKeyReused = errors.New("idempotency key was used with another body")

// KeyState is what the database knows of one Key, read under the shard's lock, so that it stays true until the flush is committed.
type KeyState struct {
	// Err is ErrKeyReused, or nil.
	Err error
	// Duplicate says that the same was accepted before; Offset and Answer are the first one's.
	Duplicate bool
	Offset    message.Offset
	Answer    []byte // of a whole request
}

// KeyedAppend announces a segment of which some messages, or the request they came with, have keys.
type KeyedAppend struct {
	Shard  message.ShardID
	Known  message.Offset // see Append
	Window time.Duration  // how long a key is remembered
	Keys   []Key          // without repetition
}

// NewKey is a key to remember.
type NewKey struct {
	Key

	Offset message.Offset // of the message, or of the request's first
	Answer []byte         // of a whole request
}

// Remainder is what is left of a KeyedAppend once duplicates are dropped. A Count of 0 appends nothing; Shard and Known are filled in.
type Remainder struct {
	Append

	Keys    []NewKey
	Delayed []Delayed // in the order in which they are accepted; each MUST have its pending id among Keys
}

// Locked is a shard as it is while its lock is held.
type Locked struct {
	Base message.Offset // the next offset
	Kept int64          // bytes of bodies it holds
	Now  time.Time      // by the database's clock, after the wait for the lock
}

// Encode makes the segment of the i-th KeyedAppend, whose first message gets the offset at.Base; states answers Keys. It runs while the shards are locked:
// it MUST NOT wait for anything, and it may run twice.
type Encode func(i int, at Locked, states []KeyState) (Remainder, error)

// FlushKeyed appends like Flush, for messages with idempotency keys. Of racing callers with one key exactly one sees it as new: the lock of
// the key's shard decides. Two round trips. An error of encode is returned and nothing is written.
func (s *Store) FlushKeyed(ctx context.Context, appends []KeyedAppend, encode Encode) ([]Appended, error) {
	if err := checkKeyed(appends); err != nil {
		return nil, fmt.Errorf("flush with keys: %w", err)
	}
	var results []Appended
	run := func(conn *pgxpool.Conn) (err error) {
		results, err = s.flushKeyed(ctx, conn, appends, encode)
		return err
	}
	err := s.write(ctx, run)
	if errors.Is(err, errUnknownHead) { // deleted, or the database was restored to an earlier state
		appends = unknownHeads(appends)
		err = s.write(ctx, run)
	}
	if err != nil {
		return nil, fmt.Errorf("flush with keys: %w", err)
	}
	return results, nil
}

// unknownHeads is appends as of somebody who has seen no head.
func unknownHeads(appends []KeyedAppend) []KeyedAppend {
	appends = slices.Clone(appends)
	for i := range appends {
		appends[i].Known = 0
	}
	return appends
}

// errUnknownHead says that a shard has no row with a head as high as the one known.
var errUnknownHead = errors.New("no such head")

func checkKeyed(appends []KeyedAppend) error {
	shards := make(map[message.ShardID]struct{}, len(appends))
	for _, a := range appends {
		if _, twice := shards[a.Shard]; twice {
			return fmt.Errorf("shard %d: %w", a.Shard, errRepeatedShard)
		}
		shards[a.Shard] = struct{}{}
	}
	return nil
}

func (s *Store) flushKeyed(ctx context.Context, conn *pgxpool.Conn, appends []KeyedAppend, encode Encode) ([]Appended, error) {
	results, at, err := s.lockKeyed(ctx, conn, appends, nil)
	if err != nil {
		return nil, err
	}
	for i := range appends {
		if results[i].Status == StatusGone && appends[i].Known > 0 {
			return nil, errUnknownHead
		}
	}
	writes, err := gatherKeyed(appends, results, at, encode)
	if err != nil {
		return nil, err
	}
	if err := s.commitKeyed(ctx, conn, writes, results, nil); err != nil {
		return nil, err
	}
	return results, nil
}

// gatherKeyed has the segments made that go to shards that take them.
func gatherKeyed(appends []KeyedAppend, results []Appended, at lockedKeys, encode Encode) (w keyedWrite, err error) {
	for i := range appends {
		if results[i].Status != StatusNothing {
			continue
		}
		rest, err := encode(i, Locked{Base: results[i].Base, Kept: results[i].Kept, Now: at.now}, statesOf(&appends[i], at.keys, at.now))
		if err != nil {
			return w, err
		}
		if rest.Count > 0 {
			rest.Shard, rest.Known = appends[i].Shard, results[i].Base
			w.plain = append(w.plain, rest.Append)
		}
		for _, key := range rest.Keys {
			w.keys = append(w.keys, key)
			w.keyShards = append(w.keyShards, int64(appends[i].Shard))
		}
		for _, d := range rest.Delayed {
			w.delayed = append(w.delayed, d)
			w.delayedShards = append(w.delayedShards, int64(appends[i].Shard))
		}
	}
	return w, nil
}

// keyedWrite is what one keyed flush writes.
type keyedWrite struct {
	plain         []Append
	keys          []NewKey
	keyShards     []int64 // of keys
	delayed       []Delayed
	delayedShards []int64 // of delayed
	traces        []noted
}

// lockedKeys is what was read under the locks.
type lockedKeys struct {
	now  time.Time
	keys map[KeyID]foundKey
}

type foundKey struct {
	offset    message.Offset
	bodyHash  int64
	answer    []byte
	createdAt time.Time
}

// lockKeyed locks the shards and, in later statements, reads the keys and what more is asked. A shard that would take an append answers StatusNothing and
// its head.
func (s *Store) lockKeyed(ctx context.Context, conn *pgxpool.Conn, appends []KeyedAppend, more func(*pgx.Batch)) ([]Appended, lockedKeys, error) {
	results, at := make([]Appended, len(appends)), lockedKeys{keys: make(map[KeyID]foundKey)}
	batch := &pgx.Batch{}
	batch.Queue("begin")
	s.queueLocks(batch, appends, results, &at)
	if more != nil {
		more(batch)
	}
	if err := conn.SendBatch(ctx, batch).Close(); err != nil {
		return nil, at, fmt.Errorf("lock shards: %w", err)
	}
	return results, at, nil
}

// queueLocks adds to the batch the locks of the shards of appends, in their order, and the reads of their keys; the answers go to results and at.
func (s *Store) queueLocks(batch *pgx.Batch, appends []KeyedAppend, results []Appended, at *lockedKeys) {
	shards, known := make([]int64, len(appends)), make([]int64, len(appends))
	places := make(map[message.ShardID]int, len(appends))
	var ids [][16]byte
	for i, a := range appends {
		shards[i], known[i] = int64(a.Shard), int64(a.Known)
		places[a.Shard] = i
		results[i] = Appended{Shard: a.Shard, Status: StatusGone}
		for _, key := range a.Keys {
			ids = append(ids, key.ID)
		}
	}
	batch.Queue(s.sql.text("lock_shards"), shards, known).Query(func(rows pgx.Rows) error {
		r := Appended{}
		var sealed bool
		var tail message.Offset
		_, err := pgx.ForEachRow(rows, []any{&r.Shard, &r.Base, &tail, &r.Kept, &r.ConfigVersion, &sealed, &at.now}, func() error {
			r.Status = StatusNothing
			if sealed {
				r.Status = StatusSealed
			}
			results[places[r.Shard]] = r
			return nil
		})
		return err
	})
	batch.Queue(s.sql.text("find_keys"), ids).Query(func(rows pgx.Rows) error {
		var id KeyID
		var f foundKey
		_, err := pgx.ForEachRow(rows, []any{&id, &f.offset, &f.bodyHash, &f.answer, &f.createdAt}, func() error {
			at.keys[id] = f
			return nil
		})
		return err
	})
}

// statesOf compares keys with what was found; what is older than the window counts as absent.
func statesOf(a *KeyedAppend, found map[KeyID]foundKey, now time.Time) []KeyState {
	states := make([]KeyState, len(a.Keys))
	for i, key := range a.Keys {
		f, ok := found[key.ID]
		if !ok || now.Sub(f.createdAt) >= a.Window {
			continue
		}
		if uint64(f.bodyHash) != key.BodyHash {
			states[i].Err = ErrKeyReused
			continue
		}
		states[i] = KeyState{Duplicate: true, Offset: f.offset, Answer: f.answer}
	}
	return states
}

// commitKeyed writes the segments, the keys, what is for later, and what more there is, and commits.
func (s *Store) commitKeyed(ctx context.Context, conn *pgxpool.Conn, w keyedWrite, results []Appended, more func(*pgx.Batch)) error {
	batch := &pgx.Batch{}
	if len(w.plain) > 0 {
		places := make(map[message.ShardID]int, len(results))
		for i := range results {
			places[results[i].Shard] = i
		}
		counts := make(map[message.ShardID]int, len(w.plain))
		for i := range w.plain {
			counts[w.plain[i].Shard] = w.plain[i].Count
		}
		s.queueFlush(batch, w.plain, func(r Appended) {
			r.Count = counts[r.Shard]
			results[places[r.Shard]] = r
		})
	}
	s.queueKeys(batch, w.keys, w.keyShards)
	s.queueDelayed(batch, w.delayed, w.delayedShards)
	if more != nil {
		more(batch)
	}
	batch.Queue("commit")
	return pg.CommitError(conn.SendBatch(ctx, batch).Close())
}

// queueKeys adds the write of keys to the batch; shards says where each is.
func (s *Store) queueKeys(batch *pgx.Batch, keys []NewKey, shards []int64) {
	if len(keys) == 0 {
		return
	}
	ids, offsets, hashes, answers := make([][16]byte, len(keys)), make([]int64, len(keys)), make([]int64, len(keys)), make([][]byte, len(keys))
	for i, key := range keys {
		ids[i], offsets[i], hashes[i], answers[i] = key.ID, int64(key.Offset), int64(key.BodyHash), key.Answer
	}
	batch.Queue(s.sql.text("put_keys"), ids, shards, offsets, hashes, answers)
}

// queueDelayed adds what is for later to the batch; shards says where each goes.
func (s *Store) queueDelayed(batch *pgx.Batch, delayed []Delayed, shards []int64) {
	if len(delayed) == 0 {
		return
	}
	ids, at, frames := make([][16]byte, len(delayed)), make([]time.Time, len(delayed)), make([][]byte, len(delayed))
	keys := make([]int32, len(delayed))
	for i := range delayed {
		d := &delayed[i]
		ids[i], at[i], frames[i], keys[i] = d.ID, d.AvailableAt, d.stored(message.ShardID(shards[i])), d.Key.ID()
	}
	batch.Queue(s.sql.text("delayed_put"), ids, shards, at, frames, keys)
}

// TrimKeys forgets up to most keys older than age, which MUST be no less than the longest window, and returns how many.
func (s *Store) TrimKeys(ctx context.Context, age time.Duration, most int) (int, error) {
	tag, err := s.db.Exec(ctx, s.sql.text("trim_keys"), age, most)
	if err != nil {
		return 0, fmt.Errorf("trim idempotency keys: %w", err)
	}
	return int(tag.RowsAffected()), nil
}
