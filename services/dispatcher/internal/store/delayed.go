package store

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"postrider.dev/pkg/pg"
	"postrider.dev/pkg/tenant"
	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/seal"
	"postrider.dev/services/dispatcher/internal/domain/segment"
	"postrider.dev/services/dispatcher/internal/domain/trace"
)

// What one transaction of FlushDue moves at most, over all its shards; a single message may be larger.
const (
	DueMessages = 2_000
	DueBytes    = 8 << 20
)

// dueClass is the first half of the advisory locks by which dispatchers take turns on a shard's due messages; the second half is a hash of the shard.
const dueClass = 0x70640001

// Delayed is a message that is accepted and has no place in the log yet.
type Delayed struct {
	message.Pending

	Frame []byte
	Key   *seal.Key // what it is sealed with while it waits; nil: in clear
}

// DueShard is what FlushDue appended to one shard.
type DueShard struct {
	Shard     message.ShardID
	QueueID   int64
	Tenant    tenant.ID
	Queue     string
	Base      message.Offset // of the first
	Frames    []segment.Frame
	CreatedAt time.Time

	queue Queue
}

// BlockedShard is a shard whose due messages cannot be moved: a key is missing (ErrKeyMissing), or what waits is damaged. They stay where they are.
type BlockedShard struct {
	Shard message.ShardID
	Queue string
	Err   error
}

// Due is what one transaction of FlushDue did.
type Due struct {
	Shards []DueShard
	// Blocked are shards that stopped the transaction: nothing was moved. The others can be moved beside them.
	Blocked []BlockedShard
	// More says that there may be more that is due now.
	More bool
}

// FlushDue moves messages that are due, by the database's clock, from where they waited to the ends of their logs: the earliest of each shard first, those
// of one instant in the order in which they were accepted, in one transaction. Any number of dispatchers may do so at once. Where nobody knows whether the
// transaction was committed, nothing has to be found out: what is moved is gone, and what is not is still due.
//
// since is an instant before which nothing waits, as far as the caller remembers; the zero time looks at everything. What waits on the shards of except is
// left alone.
func (c *Control) FlushDue(ctx context.Context, since time.Time, except []message.ShardID) (Due, error) {
	if err := c.s.endLost(ctx); err != nil { // one of them may hold a turn
		return Due{}, fmt.Errorf("flush due messages: %w", err)
	}
	var due Due
	err := c.s.write(ctx, func(conn *pgxpool.Conn) (err error) {
		due, err = c.flushDue(ctx, conn, since, except)
		return err
	})
	if err != nil {
		return Due{}, fmt.Errorf("flush due messages: %w", err)
	}
	return due, nil
}

func (c *Control) flushDue(ctx context.Context, conn *pgxpool.Conn, since time.Time, except []message.ShardID) (Due, error) {
	shards, err := c.claimDue(ctx, conn, since, except)
	if err != nil {
		return Due{}, err
	}
	if len(shards) == 0 {
		return Due{}, nothingDue(ctx, conn)
	}
	if blocked, err := c.loadDueQueues(ctx, conn, shards); err != nil || len(blocked) > 0 {
		return Due{Blocked: blocked, More: true}, errors.Join(err, nothingDue(ctx, conn))
	}
	rows, states, err := c.takeDue(ctx, conn, shards, since)
	if err != nil {
		return Due{}, err
	}
	if len(rows) == 0 {
		return Due{}, nothingDue(ctx, conn)
	}
	if err := c.loadDueKeys(ctx, conn, rows); err != nil {
		return Due{}, err
	}
	w, blocked, err := c.encodeDue(shards, rows, states)
	if err != nil {
		return Due{}, err
	}
	if len(blocked) > 0 {
		return Due{Blocked: blocked, More: true}, nothingDue(ctx, conn)
	}
	if err := c.commitDue(ctx, conn, shards, w); err != nil {
		return Due{}, err
	}
	due := Due{More: true} // cheaper to look once more than to know
	for i := range shards {
		if len(shards[i].Frames) > 0 {
			due.Shards = append(due.Shards, shards[i])
		}
	}
	return due, nil
}

// nothingDue ends a transaction that wrote nothing.
func nothingDue(ctx context.Context, conn *pgxpool.Conn) error {
	if _, err := conn.Exec(ctx, "rollback"); err != nil {
		return fmt.Errorf("rollback: %w", err)
	}
	return nil
}

// claimDue begins the transaction and takes turns, in the order of shards.
func (c *Control) claimDue(ctx context.Context, conn *pgxpool.Conn, since time.Time, except []message.ShardID) (shards []DueShard, err error) {
	statement, args := "delayed_claim", []any{since, DueMessages, dueClass}
	if len(except) > 0 {
		statement, args = "delayed_claim_except", []any{since, except, DueMessages, dueClass}
	}
	batch := &pgx.Batch{}
	batch.Queue("begin")
	batch.Queue(c.s.sql.text(statement), args...).Query(func(rows pgx.Rows) (err error) {
		shards, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (s DueShard, err error) {
			s.queue, err = c.scanQueueAnd(row, &s.Shard)
			s.QueueID, s.Tenant, s.Queue = s.queue.ID, s.queue.Tenant, s.queue.Name
			return s, err
		})
		return err
	})
	if err := conn.SendBatch(ctx, batch).Close(); err != nil {
		return nil, fmt.Errorf("claim: %w", err)
	}
	slices.SortFunc(shards, func(a, b DueShard) int { return cmp.Compare(a.Shard, b.Shard) })
	return shards, nil
}

// taken is a row of delayed that is deleted by the transaction.
type taken struct {
	Key   KeyID
	Shard message.ShardID
	At    time.Time
	Seq   int64
	Frame []byte // sealed with key, if there is one
	KeyID int32

	key *seal.Key
	err error // why it cannot be opened
}

// takeDue deletes the rows that are due, in their order, and locks their shards. It returns the heads of those shards that take appends.
func (c *Control) takeDue(ctx context.Context, conn *pgxpool.Conn, shards []DueShard, since time.Time) ([]taken, shardStates, error) {
	ids := make([]int64, len(shards))
	for i := range shards {
		ids[i] = int64(shards[i].Shard)
	}
	var rows []taken
	states := shardStates{}
	batch := &pgx.Batch{}
	batch.Queue(c.s.sql.text("delayed_take"), ids, since, max(1, DueMessages/len(shards)), DueBytes).Query(func(r pgx.Rows) (err error) {
		rows, err = pgx.CollectRows(r, func(row pgx.CollectableRow) (t taken, err error) {
			return t, row.Scan(&t.Key, &t.Shard, &t.At, &t.Seq, &t.Frame, &t.KeyID)
		})
		return err
	})
	batch.Queue(c.s.sql.text("lock_shards"), ids, make([]int64, len(ids))).Query(states.scan)
	if err := conn.SendBatch(ctx, batch).Close(); err != nil {
		return nil, nil, fmt.Errorf("take: %w", err)
	}
	slices.SortFunc(rows, func(a, b taken) int {
		return cmp.Or(cmp.Compare(a.Shard, b.Shard), a.At.Compare(b.At), cmp.Compare(a.Seq, b.Seq))
	})
	return rows, states, nil
}

// encodeDue makes one segment a shard, as its queue wants it stored, notes its frames in shards, and says where each message will be. What waited for a
// queue that is deleted is dropped. It also returns the shards of which something cannot be read.
func (c *Control) encodeDue(shards []DueShard, rows []taken, states shardStates) (w keyedWrite, blocked []BlockedShard, err error) {
	for i := range shards {
		s := &shards[i]
		state := states.of(s.Shard)
		s.Base = state.Base
		n := 0
		for n < len(rows) && rows[n].Shard == s.Shard {
			n++
		}
		mine := rows[:n]
		rows = rows[n:]
		if state.Status != StatusLeftOut || n == 0 {
			continue
		}
		if err := s.open(mine); err != nil {
			blocked = append(blocked, BlockedShard{Shard: s.Shard, Queue: s.Queue, Err: err})
			continue
		}
		var due []trace.Event
		for j, r := range mine {
			w.keys = append(w.keys, NewKey{Key: Key{ID: r.Key}, Offset: s.Base + message.Offset(j)})
			w.keyShards = append(w.keyShards, int64(s.Shard))
			due = append(due, trace.Event{Kind: trace.Due, Offset: s.Base + message.Offset(j), Text: message.PendingID(r.Key).String()})
		}
		if s.queue.Config.Trace {
			w.traces = append(w.traces, noted{shard: s.Shard, events: due})
		}
		encoded, _, err := s.queue.Encode(c.enc, s.Frames)
		if err != nil {
			return w, nil, fmt.Errorf("encode due messages: %w", err)
		}
		a := Append{Encoded: encoded, Shard: s.Shard, Known: s.Base, Key: s.queue.Key()}
		_, _ = rand.Read(a.FlushID[:])
		w.plain = append(w.plain, a)
	}
	return w, blocked, nil
}

// commitDue writes the segments and the places of their messages, and commits.
func (c *Control) commitDue(ctx context.Context, conn *pgxpool.Conn, shards []DueShard, w keyedWrite) error {
	batch := &pgx.Batch{}
	if len(w.plain) > 0 { // else all of it waited for queues that are deleted
		c.s.queueFlush(batch, w.plain, func(r Appended) {
			for i := range shards {
				if shards[i].Shard == r.Shard {
					shards[i].CreatedAt = r.CreatedAt
				}
			}
		})
	}
	c.s.queueKeys(batch, w.keys, w.keyShards)
	if len(w.traces) > 0 {
		batch.Queue(c.s.sql.text("trace_put"), notedArgs(w.traces)...)
	}
	batch.Queue("commit")
	return pg.CommitError(conn.SendBatch(ctx, batch).Close())
}

// NextDue returns the database's time, and when the next message is due; zero means that none waits. since and except are as in FlushDue.
func (c *Control) NextDue(ctx context.Context, since time.Time, except []message.ShardID) (now, next time.Time, err error) {
	statement, args := "delayed_next", []any{since}
	if len(except) > 0 {
		statement, args = "delayed_next_except", []any{since, except}
	}
	var at *time.Time
	if err := c.on().QueryRow(ctx, c.s.sql.text(statement), args...).Scan(&now, &at); err != nil {
		return now, next, fmt.Errorf("next due message: %w", err)
	}
	if at != nil {
		next = *at
	}
	return now, next, nil
}
