package store

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"postrider.dev/pkg/pg"
	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/placement"
)

// lookupBatch is how many segments a search reads at once.
const lookupBatch = 16

// Found is a message in the log.
type Found struct {
	message.Message

	Shard     message.ShardID
	Offset    message.Offset
	CreatedAt time.Time
}

// FindByClientID returns the newest message of the partition that its producer gave this id, as long as it is in the log; false means there is none. There
// is no index: the directories are searched for the partition, newest first, and names compared in the frames. The cost grows with what the
// partition has in the log, so the caller MUST bound ctx.
func (c *Control) FindByClientID(ctx context.Context, q Queue, partition, clientID string) (Found, bool, error) {
	hash := placement.Hash(partition)
	shard := q.Shards[placement.Shard(hash, len(q.Shards))]
	var tail, head message.Offset
	var id message.ShardID
	err := c.on().QueryRow(ctx, c.s.sql.text("shard_bounds"), []message.ShardID{shard}).Scan(&id, &tail, &head)
	if pg.IsNoRows(err) {
		return Found{}, false, ErrQueueNotFound
	}
	if err != nil {
		return Found{}, false, fmt.Errorf("read shard: %w", err)
	}
	needle := binary.BigEndian.AppendUint64(nil, hash)
	for before := head; ; {
		read, err := c.readSegments(ctx, "segments_with", shard, before, tail, needle, lookupBatch)
		if err != nil {
			return Found{}, false, err
		}
		for _, s := range read {
			f, ok, err := s.find(hash, partition, clientID, tail)
			if ok || err != nil {
				f.Shard = shard
				return f, ok, err
			}
			before = s.Base
		}
		if len(read) < lookupBatch {
			return Found{}, false, nil
		}
	}
}

// find returns the newest message of the segment, at tail or later, with that partition and client id.
func (s *wholeSegment) find(hash uint64, partition, clientID string, tail message.Offset) (Found, bool, error) {
	for i, h := range slices.Backward(s.Hashes) {
		at := s.Base + message.Offset(i)
		if h != hash || at < tail {
			continue
		}
		m, err := s.Body.Message(i)
		if err != nil {
			return Found{}, false, fmt.Errorf("message %d: %w", at, err)
		}
		if m.Partition == partition && m.ClientID == clientID {
			return Found{Message: m, Offset: at, CreatedAt: s.CreatedAt}, true, nil
		}
	}
	return Found{}, false, nil
}
