package store

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"postrider.dev/pkg/pg"
	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/window"
)

// lookupBatch is how many segments a search reads at once.
const lookupBatch = 16

// Found is a message in the log.
type Found struct {
	message.Message

	Shard     message.ShardID
	Offset    message.Offset
	CreatedAt time.Time
	Deleted   bool // for everybody: only who asks by its producer's name is told that there was one
}

// ClientName is what a producer calls a message.
type ClientName struct{ Partition, ClientID string }

// FindByClientID is FindByClientIDs for one name; false means there is none. A name is its newest message's: while that is in the log and deleted, the name
// finds nothing else.
func (c *Control) FindByClientID(ctx context.Context, q Queue, partition, clientID string) (Found, bool, error) {
	name := ClientName{partition, clientID}
	found, err := c.FindByClientIDs(ctx, q, []ClientName{name})
	f, ok := found[name]
	return f, ok, err
}

// FindByClientIDs returns the newest message under each name, of all lanes, as long as it is in the log. There is no index: the directories are searched for the
// partitions, newest first, and names compared in the frames, once a shard however many names there are. The cost grows with what the partitions have in
// the log, so the caller MUST bound ctx.
func (c *Control) FindByClientIDs(ctx context.Context, q Queue, names []ClientName) (map[ClientName]Found, error) {
	if err := q.Usable(); err != nil {
		return nil, err
	}
	wanted := map[message.ShardID]map[ClientName]uint64{}
	for _, name := range names {
		hash := q.Hash(name.Partition)
		for _, home := range q.Layout().Homes(hash) {
			shard := q.Shards[home]
			if wanted[shard] == nil {
				wanted[shard] = map[ClientName]uint64{}
			}
			wanted[shard][name] = hash
		}
	}
	newest := make(map[ClientName]Found, len(names))
	for shard, names := range wanted {
		found := make(map[ClientName]Found, len(names))
		if err := c.findOnShard(ctx, shard, names, found); err != nil {
			return nil, err
		}
		if err := c.markDeleted(ctx, shard, found); err != nil {
			return nil, err
		}
		for name, f := range found {
			if other, ok := newest[name]; !ok || cmp.Or(f.CreatedAt.Compare(other.CreatedAt), cmp.Compare(f.Shard, other.Shard)) > 0 {
				newest[name] = f
			}
		}
	}
	return newest, nil
}

// markDeleted notes which of the messages that were found on a shard are deleted.
func (c *Control) markDeleted(ctx context.Context, shard message.ShardID, found map[ClientName]Found) error {
	from, to := window.MaxOffset, message.Offset(0)
	for _, f := range found {
		if f.Shard == shard {
			from, to = min(from, f.Offset), max(to, f.Offset+1)
		}
	}
	if from >= to {
		return nil
	}
	deleted, err := c.s.tombstones(ctx, c.on(), shard, from, to)
	if err != nil {
		return err
	}
	for name, f := range found {
		if f.Shard == shard {
			f.Deleted = deleted.Has(f.Offset)
			found[name] = f
		}
	}
	return nil
}

// findOnShard moves names that it finds from wanted, where they have their partition's hash, to found.
func (c *Control) findOnShard(ctx context.Context, shard message.ShardID, wanted map[ClientName]uint64, found map[ClientName]Found) error {
	var tail, head message.Offset
	var id message.ShardID
	err := c.on().QueryRow(ctx, c.s.sql.text("shard_bounds"), []message.ShardID{shard}).Scan(&id, &tail, &head)
	if pg.IsNoRows(err) {
		return ErrQueueNotFound
	}
	if err != nil {
		return fmt.Errorf("read shard: %w", err)
	}
	for before := head; len(wanted) > 0; {
		hashes := map[uint64]bool{}
		var needles [][]byte
		for _, hash := range wanted {
			if !hashes[hash] {
				hashes[hash] = true
				needles = append(needles, binary.BigEndian.AppendUint64(nil, hash))
			}
		}
		read, err := c.readSegments(ctx, shard, "segments_with", shard, before, tail, needles, lookupBatch)
		if err != nil {
			return err
		}
		for _, s := range read {
			if err := s.find(shard, tail, hashes, wanted, found); err != nil {
				return err
			}
			before = s.Base
		}
		if len(read) < lookupBatch {
			return nil
		}
	}
	return nil
}

// find moves the names of the segment's messages, at tail or later, from wanted to found.
func (s *wholeSegment) find(
	shard message.ShardID, tail message.Offset, hashes map[uint64]bool, wanted map[ClientName]uint64, found map[ClientName]Found,
) error {
	for i, h := range slices.Backward(s.Hashes) {
		at := s.Base + message.Offset(i)
		if !hashes[h] || at < tail {
			continue
		}
		m, err := s.Body.Message(i)
		if err != nil {
			return fmt.Errorf("message %d: %w", at, err)
		}
		name := ClientName{m.Partition, m.ClientID}
		if _, ok := wanted[name]; ok {
			delete(wanted, name)
			found[name] = Found{Message: m, Shard: shard, Offset: at, CreatedAt: s.CreatedAt}
		}
	}
	return nil
}
