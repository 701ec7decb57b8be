package store

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"postrider.dev/pkg/pg"
	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/window"
)

// Traced is a message and where it stands in the groups of its queue, all of one moment.
type Traced struct {
	Found

	Trimmed bool // the log does not hold it any more: only its place is known
	Groups  []GroupTrace
	Events  TraceEvents
}

// GroupTrace is where a message stands in one group.
type GroupTrace struct {
	window.Standing

	Group  string
	Letter *TracedLetter // the newest dead letter that the group made of it, if any
}

// TracedLetter is a dead letter as a trace tells of it.
type TracedLetter struct {
	ID                DeadLetterID
	Reason, LastError string
}

// Trace tells where the message of that id stands, in one group, or in all of the queue by name if none is given, and what was recorded of it. It locks
// nothing and changes nothing.
// The error matches ErrMessageNotFound if the queue never had it, and ErrGroupNotFound. Each group costs a read of its whole state on the shard, so the
// caller MUST bound ctx.
func (c *Control) Trace(ctx context.Context, q Queue, id message.ID, page TracePage) (Traced, error) {
	at := slices.Index(q.Shards, id.Shard)
	if at < 0 {
		return Traced{}, fmt.Errorf("message id %s: %w", id, ErrMessageNotFound)
	}
	var out Traced
	err := c.inSnapshot(ctx, func(tx pg.Tx) error {
		in := c.within(tx)
		out = Traced{}
		if err := in.place(ctx, q, id, &out); err != nil {
			return err
		}
		groups, err := in.tracedGroups(ctx, tx, q, page.Group)
		if err != nil {
			return err
		}
		letters, err := in.tracedLetters(ctx, tx, id)
		if err != nil {
			return err
		}
		for _, g := range groups {
			state, err := c.s.readRow(ctx, tx, "", "group_shard", g.Shards[at], 0)
			if err == nil {
				err = c.s.readRest(ctx, tx, &state, window.Known{}, "")
			}
			if err != nil {
				return fmt.Errorf("read group %q: %w", g.Name, err)
			}
			policy := window.Policy{Mode: g.Mode, OnFailure: g.OnFailure, Delay: q.Config.Delay}
			asked := window.Asked{Offset: id.Offset, Hash: q.Hash(out.Partition), At: window.DBTimeOf(out.CreatedAt)}
			standing, err := window.Stand(state.Snapshot, policy, asked, state.Now)
			if err != nil {
				return fmt.Errorf("group %q: %w", g.Name, err)
			}
			out.Groups = append(out.Groups, GroupTrace{Standing: standing, Group: g.Name, Letter: letters[g.ID]})
		}
		out.Events, err = in.traceEvents(ctx, q, &out, page)
		return err
	})
	return out, err
}

// place finds the message, or that it was trimmed.
func (c *Control) place(ctx context.Context, q Queue, id message.ID, out *Traced) error {
	var shard message.ShardID
	var tail, head message.Offset
	err := c.on().QueryRow(ctx, c.s.sql.text("shard_bounds"), []message.ShardID{id.Shard}).Scan(&shard, &tail, &head)
	switch {
	case pg.IsNoRows(err) || err == nil && id.Offset >= head:
		return fmt.Errorf("message id %s: %w", id, ErrMessageNotFound)
	case err != nil:
		return fmt.Errorf("read shard: %w", err)
	case id.Offset < tail:
		out.Shard, out.Offset, out.Trimmed = id.Shard, id.Offset, true
		return nil
	}
	out.Found, err = c.FindByID(ctx, q, id)
	return err
}

func (c *Control) tracedGroups(ctx context.Context, tx pg.Tx, q Queue, name string) ([]Group, error) {
	if name != "" {
		g, err := c.oneGroup(ctx, tx, "group_find", q.ID, name)
		return []Group{g}, err
	}
	rows, err := tx.Query(ctx, c.s.sql.text("group_list"), q.ID)
	if err != nil {
		return nil, fmt.Errorf("list groups: %w", err)
	}
	groups, err := pgx.CollectRows(rows, scanGroup)
	if err != nil {
		return nil, fmt.Errorf("list groups: %w", err)
	}
	return groups, nil
}

func (c *Control) tracedLetters(ctx context.Context, tx pg.Tx, id message.ID) (map[int64]*TracedLetter, error) {
	rows, err := tx.Query(ctx, c.s.sql.text("trace_dead_letters"), id.Shard, id.Offset)
	if err != nil {
		return nil, fmt.Errorf("read dead letters of %s: %w", id, err)
	}
	letters := map[int64]*TracedLetter{}
	var group int64
	var l TracedLetter
	_, err = pgx.ForEachRow(rows, []any{&group, &l.ID, &l.Reason, &l.LastError}, func() error {
		one := l
		letters[group] = &one
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read dead letters of %s: %w", id, err)
	}
	return letters, nil
}
