package store

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"postrider.dev/pkg/pg"
	"postrider.dev/pkg/tenant"
	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/queue"
	"postrider.dev/services/dispatcher/internal/domain/segment"
)

// Bounds of one redrive transaction; a larger request is several.
const (
	redriveMessages = 250
	redriveBytes    = 8 << 20 // of payloads; one is always taken
)

// ErrTrimmed says that a dead letter has no message to append: it was gone from the log before it failed for good.
var ErrTrimmed = errors.New("the message of the dead letter is gone")

// ErrInClear says that a dead letter of an encrypted queue would be appended to one that is not.
var ErrInClear = errors.New("the dead letter is encrypted, and its queue is not")

// RedriveRequest names dead letters, or up to Limit of a group's, oldest first.
type RedriveRequest struct {
	IDs   []DeadLetterID
	Group string
	Limit int
}

// Redriven is what a redrive did.
type Redriven struct {
	Redriven int
	Already  int // asked for by id, and redriven before
	NotFound []DeadLetterID
	Heads    map[message.ShardID]message.Offset // the shards appended to, and their heads after it
}

// Redrive appends dead letters to their queue again, for every group. Claim, append, mark and audit entry are one transaction: the dead letter's row lock
// decides between racers, so each is appended exactly once whoever asks how often and whoever dies in between. A request over more than
// a few hundred messages or some megabytes is several transactions, each with its own entry; after an error, what Redriven counts is done and asking
// again goes on. Of a name whose queue was deleted, dead letters go to the queue that has the name now; without one the error
// matches ErrQueueNotFound.
func (c *Control) Redrive(ctx context.Context, by tenant.Caller, queueName string, req RedriveRequest) (Redriven, error) {
	out := Redriven{Heads: make(map[message.ShardID]message.Offset)}
	ids, err := c.ChooseDeadLetters(ctx, by.Tenant, queueName, req)
	if err != nil {
		return out, err
	}
	for first := true; first || len(ids) > 0; first = false {
		step, rest, err := c.RedriveSome(ctx, by, queueName, req, ids)
		if err != nil {
			return out, err
		}
		out.Add(step)
		ids = rest
	}
	return out, nil
}

// ChooseDeadLetters returns which dead letters the request is about, in the order of RedriveSome. The error matches ErrQueueNotFound if no queue has the
// name.
func (c *Control) ChooseDeadLetters(ctx context.Context, t tenant.ID, queueName string, req RedriveRequest) ([]DeadLetterID, error) {
	if _, err := c.FindQueue(ctx, t, queueName); err != nil {
		return nil, err
	}
	ids := slices.Clone(req.IDs)
	if req.Group != "" {
		from, err := c.queueIDs(ctx, c.on(), t, queueName)
		if err != nil {
			return nil, err
		}
		if ids, err = c.oldestOf(ctx, from, req.Group, req.Limit); err != nil {
			return nil, err
		}
	}
	slices.SortFunc(ids, compareIDs)
	return slices.Compact(ids), nil
}

// RedriveSome is one transaction of a Redrive: as many of the ids, which are in order, as it may take. It returns the rest.
func (c *Control) RedriveSome(
	ctx context.Context, by tenant.Caller, queueName string, req RedriveRequest, ids []DeadLetterID,
) (step Redriven, rest []DeadLetterID, err error) {
	q, err := c.FindQueue(ctx, by.Tenant, queueName)
	if err != nil {
		return Redriven{}, nil, err
	}
	from, err := c.queueIDs(ctx, c.on(), by.Tenant, queueName)
	if err != nil {
		return Redriven{}, nil, err
	}
	step, rest, err = c.redriveSome(ctx, by, q, from, ids)
	if req.Group != "" {
		step.Already = 0 // taken by a racer after we chose them: nobody asked for those
	}
	return step, rest, err
}

// Add adds what another transaction did.
func (r *Redriven) Add(step Redriven) {
	r.Redriven += step.Redriven
	r.Already += step.Already
	r.NotFound = append(r.NotFound, step.NotFound...)
	for shard, head := range step.Heads {
		r.Heads[shard] = head
	}
}

func (c *Control) oldestOf(ctx context.Context, queues []int64, group string, limit int) ([]DeadLetterID, error) {
	rows, err := c.on().Query(ctx, c.s.sql.text("dead_letters_oldest"), queues, group, limit)
	if err != nil {
		return nil, fmt.Errorf("find dead letters: %w", err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[DeadLetterID])
	if err != nil {
		return nil, fmt.Errorf("find dead letters: %w", err)
	}
	return ids, nil
}

// redriveSome redrives as many of the ids, which are in order, as one transaction may, and returns the rest.
func (c *Control) redriveSome(ctx context.Context, by tenant.Caller, q Queue, from []int64, ids []DeadLetterID) (Redriven, []DeadLetterID, error) {
	var step Redriven
	var rest []DeadLetterID
	err := c.inTx(ctx, func(tx pg.Tx) error {
		var mine claimed
		var err error
		if mine, rest, err = c.claimLetters(ctx, tx, from, ids, letterBound{messages: redriveMessages, bytes: redriveBytes}, toRedrive); err != nil {
			return err
		}
		chosen := mine.chosen
		step = Redriven{Already: mine.passed, NotFound: mine.notFound}
		if err := c.hasRoom(ctx, tx, q, len(chosen)); err != nil {
			return err
		}
		appends, err := c.encodeAgain(ctx, tx, q, chosen)
		if err != nil {
			return err
		}
		if err := c.exec(ctx, tx, "dead_letters_redriven", chosen); err != nil {
			return err
		}
		if err := c.traceRedriven(ctx, tx, q, chosen); err != nil {
			return err
		}
		step.Redriven = len(chosen)
		texts := make([]string, len(chosen))
		for i, id := range chosen {
			texts[i] = uuid.UUID(id).String()
		}
		err = c.audit(ctx, tx, by, "dead_letter.redrive", "queue/"+q.Name, map[string]any{
			"queue_id": idText(q.ID), "redriven": texts, "already_redriven": step.Already,
		})
		if err != nil {
			return err
		}
		step.Heads, err = c.flushIn(ctx, tx, appends) // the hottest lock comes last and is held until the commit only
		return err
	})
	if err != nil {
		return Redriven{}, nil, err
	}
	return step, rest, nil
}

// toRedrive wants what was not redriven before; one without a message ends the whole request.
func toRedrive(d lockedLetter) (bool, error) {
	if d.Trimmed && !d.Again {
		return false, fmt.Errorf("dead letter %s: %w", uuid.UUID(d.ID), ErrTrimmed)
	}
	return !d.Again, nil
}

// encodeAgain makes the segments of the claimed dead letters, one a shard.
func (c *Control) encodeAgain(ctx context.Context, tx pg.Tx, q Queue, ids []DeadLetterID) ([]Append, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	letters, err := c.readClaimed(ctx, tx, q, ids)
	if err != nil {
		return nil, fmt.Errorf("read dead letters: %w", err)
	}
	frames := make(map[message.ShardID][]segment.Frame)
	for i := range letters {
		m := &letters[i].Message
		hash := q.Hash(m.Partition)
		shard := q.ShardOf(letters[i].Priority, hash) // of another queue of the name: as near to the lane as it has one
		frames[shard] = append(frames[shard], segment.Frame{Hash: hash, Bytes: message.AppendFrame(nil, m)})
	}
	appends := make([]Append, 0, len(frames))
	for shard, of := range frames {
		encoded, _, err := q.Encode(c.enc, of)
		if err != nil {
			return nil, fmt.Errorf("encode dead letters: %w", err)
		}
		a := Append{Encoded: encoded, Shard: shard, MaxBytes: queue.Share(q.Config.Limits.Bytes, len(q.Shards)), Key: q.Key()}
		_, _ = rand.Read(a.FlushID[:])
		appends = append(appends, a)
	}
	return appends, nil
}

// ErrQueueFull says that a redrive would bring its queue above its limits.
var ErrQueueFull = errors.New("the queue is full")

// hasRoom looks whether n messages may be added to what is pending of q.
func (c *Control) hasRoom(ctx context.Context, tx pg.Tx, q Queue, n int) error {
	limit := int64(q.Config.Limits.Messages)
	if limit == 0 || n == 0 {
		return nil
	}
	depths, err := c.within(tx).Depths(ctx, []int64{q.ID})
	if err != nil {
		return err
	}
	if depths[q.ID].Pending+int64(n) > limit {
		return ErrQueueFull
	}
	return nil
}

// readClaimed reads the messages of dead letters that are to go to q. Those of an encrypted queue that was deleted go to no queue in clear.
func (c *Control) readClaimed(ctx context.Context, tx pg.Tx, q Queue, ids []DeadLetterID) ([]DeadLetter, error) {
	if err := q.Usable(); err != nil {
		return nil, err
	}
	rows, err := tx.Query(ctx, c.s.sql.text("dead_letters_read"), ids)
	if err != nil {
		return nil, err
	}
	letters, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (d DeadLetter, err error) {
		err = row.Scan(&d.ID, &d.QueueID, &d.Shard, &d.Partition, &d.ClientID, &d.ContentType, &d.sealed, &d.Payload, &d.key)
		switch {
		case err != nil:
		case d.key == 0:
			d.Headers, err = DecodeHeaders(d.sealed)
		case !q.Encrypted():
			err = ErrInClear
		}
		return d, err
	})
	if err != nil {
		return nil, err
	}
	if err := c.s.openLetters(ctx, tx, letters); err != nil {
		return nil, err
	}
	return letters, c.placeLetters(ctx, tx, letters)
}

// flushIn runs the flush of the hot side inside a transaction. A shard that is sealed or gone makes it fail with ErrQueueNotFound, one that would hold too
// much with ErrQueueFull.
func (c *Control) flushIn(ctx context.Context, tx pg.Tx, appends []Append) (map[message.ShardID]message.Offset, error) {
	if len(appends) == 0 {
		return nil, nil
	}
	counts := make(map[message.ShardID]int, len(appends))
	for i := range appends {
		counts[appends[i].Shard] = appends[i].Count
	}
	heads := make(map[message.ShardID]message.Offset, len(appends))
	batch := &pgx.Batch{}
	c.s.queueFlush(batch, appends, func(r Appended) { heads[r.Shard] = r.Base + message.Offset(counts[r.Shard]) })
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return nil, fmt.Errorf("append dead letters: %w", err)
	}
	if len(heads) != len(appends) && appends[0].MaxBytes > 0 {
		if full, err := c.isFull(ctx, tx, appends); full || err != nil {
			return nil, errors.Join(err, ErrQueueFull)
		}
	}
	if len(heads) != len(appends) {
		return nil, fmt.Errorf("a shard takes no messages: %w", ErrQueueNotFound)
	}
	return heads, nil
}

// isFull says whether a shard has no room for what was to be appended to it.
func (c *Control) isFull(ctx context.Context, tx pg.Tx, appends []Append) (bool, error) {
	shards := make([]int64, len(appends))
	for i := range appends {
		shards[i] = int64(appends[i].Shard)
	}
	rows, err := tx.Query(ctx, c.s.sql.text("shard_states"), shards, make([]int64, len(shards)))
	if err != nil {
		return false, fmt.Errorf("read shards: %w", err)
	}
	states := shardStates{}
	if err := states.scan(rows); err != nil {
		return false, fmt.Errorf("read shards: %w", err)
	}
	return slices.ContainsFunc(appends, func(a Append) bool {
		r := states.of(a.Shard)
		return r.Status == StatusLeftOut && r.Kept+int64(len(a.Body)) > a.most()
	}), nil
}

func compareIDs(a, b DeadLetterID) int { return slices.Compare(a[:], b[:]) }
