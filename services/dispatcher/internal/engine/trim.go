package engine

import (
	"context"
	"errors"
	"strconv"

	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/window"
	"postrider.dev/services/dispatcher/internal/store"
)

// maxTrims bounds how many changes one call of Trim makes.
const maxTrims = 64

// Trim tells a group-shard, seen at a version, that its log begins at an offset now.
func (e *Engine) Trim(ctx context.Context, id window.GroupShardID, seen window.Version, to message.Offset) error {
	s, err := e.gshardOf(ctx, id)
	if s == nil || err != nil {
		return err
	}
	s.suspect(seen, true)
	return s.trim(to)
}

// gshardOf finds a group-shard by its id; nil if it is gone, and all it held with it.
func (e *Engine) gshardOf(ctx context.Context, id window.GroupShardID) (*gshard, error) {
	e.mu.Lock()
	s := e.byShard[id]
	e.mu.Unlock()
	if s != nil {
		return s, nil
	}
	owner, err := e.ownerOf(ctx, id)
	if errors.Is(err, store.ErrGroupNotFound) {
		return nil, nil //nolint:nilnil // gone is an answer
	}
	if err != nil {
		return nil, e.dbError(err)
	}
	return e.adopt(owner).byID(id), nil
}

// trim makes the changes, several where many messages become dead letters.
func (g *gshard) trim(to message.Offset) error {
	for range maxTrims {
		a := &ask{s: g, want: &window.Trim{To: to}}
		p := pending{asks: []*ask{a}}
		p.submit()
		if err := p.wait(); err != nil || !a.out.Again {
			return err
		}
	}
	return nil
}

// catchUpWithTails gives back the parts of a pop and trims their group-shards to where the logs begin: messages were handed out that are not there any more.
func (e *Engine) catchUpWithTails(ctx context.Context, parts []popPart) error {
	back := pending{}
	known := map[message.ShardID]message.Offset{}
	for _, part := range parts {
		back.asks = append(back.asks, &ask{s: part.s, want: &window.Release{Epoch: part.epoch}})
		known[part.s.shard.id] = 0
	}
	back.submit()
	if err := back.wait(); err != nil {
		return err
	}
	tails, err := e.beginnings(ctx, known)
	if err != nil {
		return err
	}
	for _, part := range parts {
		if err := part.s.trim(tails[part.s.shard.id]); err != nil {
			return err
		}
	}
	return nil
}

// beginnings reads where shards begin.
func (e *Engine) beginnings(ctx context.Context, known map[message.ShardID]message.Offset) (map[message.ShardID]message.Offset, error) {
	for id := range known {
		known[id] = e.headOf(id)
	}
	return persist(ctx, e, func(ctx context.Context) (map[message.ShardID]message.Offset, error) {
		ctx, cancel := context.WithTimeout(ctx, e.cfg.StatementTimeout)
		defer cancel()
		return e.db.Tails(ctx, known)
	})
}

// lossOf is what a pop is told of a group-shard's losses.
func lossOf(part popPart) *queuev1.Trimmed {
	return &queuev1.Trimmed{
		ShardId: strconv.FormatInt(int64(part.s.shard.id), 10), Messages: part.told.Untold, FirstAvailable: int64(part.told.First),
	}
}
