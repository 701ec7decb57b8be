package store

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"postrider.dev/pkg/tenant"
	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/seal"
)

// ServiceKey names a piece of work of one of our own services: its owner, and a number of the owner's own that grows.
type ServiceKey [16]byte

// NewServiceKey returns the key of the owner's n-th piece of work.
func NewServiceKey(owner [8]byte, n uint64) ServiceKey {
	var k ServiceKey
	copy(k[:], owner[:])
	binary.BigEndian.PutUint64(k[8:], n)
	return k
}

// Refused is a message that was accepted into a spool and that its queue does not take.
type Refused struct {
	message.Message

	Tenant        tenant.ID
	QueueID       int64
	Shard         message.ShardID // where it would have gone
	PartitionHash uint64
	Reason        string
	Key           *seal.Key // of an encrypted queue
}

// SpooledAsk is what FlushSpooled looks up under the locks.
type SpooledAsk struct {
	Keys   []ServiceKey
	Sought []Sought // flushes of which nobody knew whether they happened
}

// SpooledFound is what it found.
type SpooledFound struct {
	Done    map[ServiceKey]bool
	Flushed map[FlushID]bool
	// Lost are the shards that take nothing any more.
	Lost map[message.ShardID]bool
}

// SpooledWork is what FlushSpooled needs from its caller. Its methods run while shards are locked: they MUST NOT wait for anything, and they may run twice.
type SpooledWork interface {
	// Look is told first what was found.
	Look(found SpooledFound)
	// Encode is an Encode.
	Encode(i int, at Locked, states []KeyState) (Remainder, error)
	// Rest says last what else is written: the keys of what is done now, and what was refused.
	Rest() (done []ServiceKey, refused []Refused)
}

// FlushSpooled appends like FlushKeyed what a spool holds, and in the same transaction remembers that it was done. What a Sought says may have happened is
// looked for first, once no lost session of this process can do anything any more.
func (s *Store) FlushSpooled(ctx context.Context, appends []KeyedAppend, ask SpooledAsk, work SpooledWork) ([]Appended, error) {
	if err := checkKeyed(appends); err != nil {
		return nil, fmt.Errorf("flush from the spool: %w", err)
	}
	if err := s.endLost(ctx); err != nil {
		return nil, fmt.Errorf("flush from the spool: %w", err)
	}
	var results []Appended
	run := func(conn *pgxpool.Conn) (err error) {
		results, err = s.flushSpooled(ctx, conn, appends, ask, work)
		return err
	}
	err := s.write(ctx, run)
	if errors.Is(err, errUnknownHead) {
		appends = unknownHeads(appends)
		err = s.write(ctx, run)
	}
	if err != nil {
		return nil, fmt.Errorf("flush from the spool: %w", err)
	}
	return results, nil
}

func (s *Store) flushSpooled(ctx context.Context, conn *pgxpool.Conn, appends []KeyedAppend, ask SpooledAsk, work SpooledWork) ([]Appended, error) {
	found := SpooledFound{Done: map[ServiceKey]bool{}, Flushed: map[FlushID]bool{}, Lost: map[message.ShardID]bool{}}
	results, at, err := s.lockKeyed(ctx, conn, appends, func(batch *pgx.Batch) { s.askSpooled(batch, ask, &found) })
	if err != nil {
		return nil, err
	}
	for i, r := range results {
		if r.Status == StatusGone && appends[i].Known > 0 {
			return nil, errUnknownHead
		}
		found.Lost[r.Shard] = r.Status != StatusNothing
	}
	work.Look(found)
	writes, err := gatherKeyed(appends, results, at, work.Encode)
	if err != nil {
		return nil, err
	}
	done, refused := work.Rest()
	err = s.commitKeyed(ctx, conn, writes, results, func(batch *pgx.Batch) {
		s.queueRefused(batch, refused)
		if len(done) > 0 {
			batch.Queue(s.sql.text("put_service_keys"), raw(done))
		}
	})
	return results, err
}

func (s *Store) askSpooled(batch *pgx.Batch, ask SpooledAsk, found *SpooledFound) {
	batch.Queue(s.sql.text("find_service_keys"), raw(ask.Keys)).Query(func(rows pgx.Rows) error {
		var key ServiceKey
		_, err := pgx.ForEachRow(rows, []any{&key}, func() error {
			found.Done[key] = true
			return nil
		})
		return err
	})
	if len(ask.Sought) == 0 {
		return
	}
	shards, known, ids, pending := soughtArrays(ask.Sought)
	flushes := map[KeyID]FlushID{} // by pending id
	for _, a := range ask.Sought {
		for _, id := range a.Pending {
			flushes[KeyID(id)] = a.FlushID
		}
	}
	batch.Queue(s.sql.text("find_flushes"), shards, known, ids).Query(func(rows pgx.Rows) error {
		var id FlushID
		_, err := pgx.ForEachRow(rows, []any{&id}, func() error {
			found.Flushed[id] = true
			return nil
		})
		return err
	})
	if len(pending) == 0 {
		return
	}
	batch.Queue(s.sql.text("find_keys"), pending).Query(func(rows pgx.Rows) error {
		var id KeyID
		var f foundKey
		_, err := pgx.ForEachRow(rows, []any{&id, &f.offset, &f.bodyHash, &f.answer, &f.createdAt}, func() error {
			found.Flushed[flushes[id]] = true
			return nil
		})
		return err
	})
}

func raw(keys []ServiceKey) [][16]byte {
	out := make([][16]byte, len(keys))
	for i, k := range keys {
		out[i] = k
	}
	return out
}

func (s *Store) queueRefused(batch *pgx.Batch, refused []Refused) {
	n := len(refused)
	if n == 0 {
		return
	}
	ids, tenants, queues, shards, hashes := make([][16]byte, n), make([]string, n), make([]int64, n), make([]int64, n), make([]int64, n)
	partitions, clients, types, reasons := make([]string, n), make([]string, n), make([]string, n), make([]string, n)
	headers, payloads, keys := make([][]byte, n), make([][]byte, n), make([]int32, n)
	for i := range refused {
		r := &refused[i]
		id, err := uuid.NewV7()
		if err != nil { // the random source never fails
			id = uuid.UUID{}
		}
		ids[i], tenants[i], queues[i], shards[i], hashes[i] = id, string(r.Tenant), r.QueueID, int64(r.Shard), int64(r.PartitionHash)
		x := kept{
			partition: &r.Partition, clientID: r.ClientID, contentType: r.ContentType, lastError: r.Reason,
			headers: EncodeHeaders(r.Headers), payload: notNil(r.Payload),
		}
		if r.Key != nil {
			x = sealedOf(DeadLetterID(id), r.Reason, &r.Message, r.Key)
		}
		partitions[i], clients[i], types[i], reasons[i] = *x.partition, x.clientID, x.contentType, x.lastError
		headers[i], payloads[i], keys[i] = x.headers, x.payload, x.key
	}
	batch.Queue(s.sql.text("put_refused"), ids, tenants, queues, shards, hashes, partitions, clients, types, headers, payloads, reasons, keys)
}

// ConfirmServiceKeys forgets the keys of an owner up to its n-th: the owner has noted, for good, that they are done.
func (s *Store) ConfirmServiceKeys(ctx context.Context, owner [8]byte, n uint64) error {
	if _, err := s.db.Exec(ctx, s.sql.text("confirm_service_keys"), NewServiceKey(owner, 0), NewServiceKey(owner, n)); err != nil {
		return fmt.Errorf("confirm service keys: %w", err)
	}
	return nil
}
