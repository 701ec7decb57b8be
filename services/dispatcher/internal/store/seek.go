package store

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"postrider.dev/pkg/pg"
	"postrider.dev/pkg/tenant"
	"postrider.dev/services/dispatcher/internal/domain/invalid"
	"postrider.dev/services/dispatcher/internal/domain/lease"
	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/queue"
	"postrider.dev/services/dispatcher/internal/domain/settled"
	"postrider.dev/services/dispatcher/internal/domain/window"
)

// searchBatch is how many directories a seek of one partition reads at once.
const searchBatch = 256

var errNotApplied = errors.New("a change under the lock was not applied")

// Seek says where a group is to stand.
type Seek struct {
	Partition string // only this one; empty: the whole queue
	To        queue.Place
}

// Moved is what a seek did.
type Moved struct {
	Positions        []Position // one a shard, in the queue's order; with a partition only its own, one a lane
	Leases, Messages int        // fenced: how many leases lost messages, and how many
}

// Position is where the group stood in one shard, and where it stands.
type Position struct {
	Shard    message.ShardID
	From, To message.Offset
}

// target is one group-shard of a seek.
type target struct {
	id         lease.GroupShardID
	shard      message.ShardID
	tail, head message.Offset
	to         message.Offset

	// Of a partition: its messages, and how far they were looked for.
	members  *settled.Marks
	searched message.Offset
}

// Seek moves a group, or one partition of it, in one transaction: all of its shards or none. When it returns nil, what was leased is fenced off: of a
// partition only its messages, whatever else the leases hold. Dead letters stay. A place that is not in the log is an *invalid.Error.
//
// One partition means the messages under its hash, as everywhere: another one that shares it is moved too.
func (c *Control) Seek(ctx context.Context, by tenant.Caller, queueName, group string, seek Seek) (Moved, error) {
	var out Moved
	err := c.inTx(ctx, func(tx pg.Tx) error {
		out = Moved{}
		q, err := c.oneQueue(ctx, tx, "queue_lock", string(by.Tenant), queueName)
		if err != nil {
			return err
		}
		if err := q.Usable(); err != nil {
			return err
		}
		g, err := c.oneGroup(ctx, tx, "group_find", q.ID, group)
		if err != nil {
			return err
		}
		targets, err := targetsOf(q, g, seek)
		if err != nil {
			return err
		}
		if err := c.seek(ctx, tx, q, g, seek, targets, &out); err != nil {
			return err
		}
		return c.audit(ctx, tx, by, "group.seek", groupResource(queueName, group), map[string]any{
			"queue_id": idText(q.ID), "group_id": idText(g.ID), "partition": q.Shown(seek.Partition), "to": seek.To.String(),
			"positions": out.detail(), "fenced_leases": out.Leases, "fenced_messages": out.Messages,
		})
	})
	return out, err
}

// detail is the positions for the audit.
func (m *Moved) detail() []map[string]string {
	list := make([]map[string]string, len(m.Positions))
	for i, p := range m.Positions {
		list[i] = map[string]string{"shard_id": idText(int64(p.Shard)), "from": idText(int64(p.From)), "to": idText(int64(p.To))}
	}
	return list
}

// targetsOf finds the group-shards that a seek is about, and refuses offsets that are not one for each.
func targetsOf(q Queue, g Group, seek Seek) ([]target, error) {
	var list []target
	for i, shard := range q.Shards {
		list = append(list, target{id: g.Shards[i], shard: shard})
	}
	if seek.Partition != "" {
		all := list
		list = nil
		for _, at := range q.Layout().Homes(q.Hash(seek.Partition)) {
			list = append(list, all[at])
		}
	}
	if n := len(seek.To.Offsets); n > 0 && n != len(list) {
		return nil, invalid.New(invalid.OutOfRange, "offsets", "has %d offsets, and %d are needed: one for each shard, in their order", n, len(list))
	}
	return list, nil
}

// seek does the work. What a partition has in the log is read before the lock, and only the rest under it.
func (c *Control) seek(ctx context.Context, tx pg.Tx, q Queue, g Group, seek Seek, targets []target, out *Moved) error {
	hash := q.Hash(seek.Partition)
	if seek.Partition != "" {
		if err := c.bounds(ctx, tx, targets); err != nil {
			return err
		}
		for i := range targets {
			t := &targets[i]
			t.members, t.searched = &settled.Marks{}, t.head
			if err := c.search(ctx, tx, t.shard, hash, t.tail, t.searched, t.members); err != nil {
				return err
			}
		}
	}
	ids := make([]lease.GroupShardID, len(targets))
	for i := range targets {
		ids[i] = targets[i].id
	}
	if err := c.exec(ctx, tx, "group_shards_lock", ids); err != nil {
		return err
	}
	if err := c.bounds(ctx, tx, targets); err != nil { // what commits from here on is not settled by anybody
		return err
	}
	if err := c.places(ctx, tx, seek.To, targets); err != nil {
		return err
	}
	for _, t := range targets {
		deleted, err := c.s.tombstones(ctx, tx, t.shard, t.tail, window.MaxOffset)
		if err != nil {
			return err
		}
		want := &window.Seek{To: t.to, Deleted: deleted}
		if seek.Partition != "" {
			if err := c.search(ctx, tx, t.shard, hash, t.searched, t.head, t.members); err != nil {
				return err
			}
			want.Keyed, want.Hash, want.Members = true, hash, t.members
		}
		done, err := c.changeLocked(ctx, tx, t.id, policyOf(q, g), want)
		if err != nil {
			return err
		}
		if done.Stop == window.StopWide {
			return invalid.New(invalid.OutOfRange, "partition", "has messages over more than %d offsets; seek the queue, or shorten its retention",
				window.MaxSeekChunks*settled.ChunkLen)
		}
		from := max(t.tail, min(done.From, t.head))
		out.Positions = append(out.Positions, Position{Shard: t.shard, From: from, To: t.to})
		out.Leases += done.Leases
		out.Messages += done.Count
	}
	return nil
}

// bounds reads what the log of each target holds.
func (c *Control) bounds(ctx context.Context, tx pg.Tx, targets []target) error {
	shards := make([]message.ShardID, len(targets))
	for i := range targets {
		shards[i] = targets[i].shard
	}
	rows, err := tx.Query(ctx, c.s.sql.text("shard_bounds"), shards)
	if err != nil {
		return fmt.Errorf("read shards: %w", err)
	}
	n := 0
	var id message.ShardID
	var tail, head message.Offset
	if _, err = pgx.ForEachRow(rows, []any{&id, &tail, &head}, func() error {
		targets[n].tail, targets[n].head = tail, head
		n++
		return nil
	}); err != nil {
		return fmt.Errorf("read shards: %w", err)
	}
	return nil
}

// places finds the offset of each target.
func (c *Control) places(ctx context.Context, tx pg.Tx, to queue.Place, targets []target) error {
	for i := range targets {
		t := &targets[i]
		switch {
		case len(to.Offsets) > 0:
			if t.to = message.Offset(to.Offsets[i]); t.to < t.tail || t.to > t.head {
				return invalid.New(invalid.OutOfRange, fmt.Sprintf("offsets[%d]", i), "is not in the log, which goes from %d to %d", t.tail, t.head)
			}
		case to.Kind == queue.Earliest:
			t.to = t.tail
		case to.Kind == queue.Latest:
			t.to = t.head
		default:
			at, err := c.startsAt(ctx, tx, "to", []message.ShardID{t.shard}, to.Time)
			if err != nil {
				return err
			}
			t.to = min(message.Offset(at[0]), t.head)
		}
	}
	return nil
}

// search adds the messages of a partition in [from, to) to members.
func (c *Control) search(
	ctx context.Context, tx pg.Tx, shard message.ShardID, hash uint64, from, to message.Offset, members *settled.Marks,
) error {
	wanted := binary.BigEndian.AppendUint64(nil, hash)
	for at := from; at < to; {
		rows, err := tx.Query(ctx, c.s.sql.text("search_partition"), shard, at, to, wanted, searchBatch)
		if err != nil {
			return fmt.Errorf("search partition: %w", err)
		}
		found, err := scanDirectories(rows)
		if err != nil {
			return fmt.Errorf("search partition: %w", err)
		}
		for _, d := range found {
			for i, h := range d.Hashes {
				if off := d.Base + message.Offset(i); h == hash && off >= from && off < to {
					members.Add(off)
				}
			}
			at = max(at, d.End())
		}
		if len(found) < searchBatch {
			return nil
		}
	}
	return nil
}

// changeLocked carries out one request on a group-shard whose row is locked. It writes nothing where the request is refused or changes nothing.
func (c *Control) changeLocked(ctx context.Context, tx pg.Tx, id lease.GroupShardID, policy window.Policy, want window.Request) (window.Outcome, error) {
	view, now, err := c.lockedView(ctx, tx, id, policy)
	if err != nil {
		return window.Outcome{}, err
	}
	return c.changeView(ctx, tx, view, now, want)
}

// lockedView reads a group-shard whose row is locked, and the clock.
func (c *Control) lockedView(ctx context.Context, tx pg.Tx, id lease.GroupShardID, policy window.Policy) (*window.View, window.DBTime, error) {
	state, err := c.s.readRow(ctx, tx, "", "group_shard", id, 0)
	if err == nil {
		err = c.s.readRest(ctx, tx, &state, window.Known{}, "")
	}
	if err != nil {
		return nil, 0, fmt.Errorf("read group-shard %d: %w", id, err)
	}
	view, err := window.Load(state.Snapshot, policy)
	return view, state.Now, err
}

// changeView carries out one request on what lockedView returned.
func (c *Control) changeView(ctx context.Context, tx pg.Tx, view *window.View, now window.DBTime, want window.Request) (window.Outcome, error) {
	var none window.Outcome
	change, outcomes := view.Plan(now, func() float64 { return 0 }, []window.Request{want})
	if change.Empty() {
		return outcomes[0], nil
	}
	var result WorkResult
	batch := &pgx.Batch{}
	c.s.queueChange(batch, &change, &result)
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return none, fmt.Errorf("change group-shard %d: %w", view.ID(), err)
	}
	if !result.Applied {
		return none, fmt.Errorf("group-shard %d: %w", view.ID(), errNotApplied)
	}
	return outcomes[0], nil
}

// startsAt returns for each shard the first offset committed at or after t. created_at never decreases inside a shard, so it is found by halving. A time
// ahead of the database's clock has no offset yet: up to a minute, which clocks may differ by, it means latest; beyond, it is refused.
func (c *Control) startsAt(ctx context.Context, tx pg.Tx, field string, shards []message.ShardID, t time.Time) ([]int64, error) {
	var far bool
	if err := tx.QueryRow(ctx, c.s.sql.text("time_is_far_ahead"), t).Scan(&far); err != nil {
		return nil, fmt.Errorf("compare %s with the clock: %w", field, err)
	}
	if far {
		return nil, invalid.New(invalid.OutOfRange, field, "is in the future; %q is now", queue.Latest)
	}
	rows, err := tx.Query(ctx, c.s.sql.text("shard_bounds"), shards)
	if err != nil {
		return nil, fmt.Errorf("read shards: %w", err)
	}
	type bounds struct{ ID, Tail, Head int64 }
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[bounds])
	if err != nil {
		return nil, fmt.Errorf("read shards: %w", err)
	}
	starts := make([]int64, 0, len(found))
	for _, s := range found {
		low, high := s.Tail, s.Head // the answer is in [low, high]
		for low < high {
			var base, count int64
			var at time.Time
			err := tx.QueryRow(ctx, c.s.sql.text("segment_at"), s.ID, low+(high-low)/2).Scan(&base, &count, &at)
			switch {
			case pg.IsNoRows(err):
				low += (high-low)/2 + 1 // trimmed meanwhile
			case err != nil:
				return nil, fmt.Errorf("find segment: %w", err)
			case at.Before(t):
				low = base + count
			default:
				high = max(base, low)
			}
		}
		starts = append(starts, low)
	}
	return starts, nil
}
