package store

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/seal"
	"postrider.dev/services/dispatcher/internal/domain/segment"
)

// ofDelayed is the place of what waits for its time: its row, for the end of its shard. When it is due does not belong to it: that is no secret, and who
// can change the row can as well delete it.
func ofDelayed(shard message.ShardID, row KeyID) seal.Place {
	return seal.InRecord("delayed message", append(binary.BigEndian.AppendUint64(nil, uint64(shard)), row[:]...))
}

// stored is the frame as it is written.
func (d *Delayed) stored(shard message.ShardID) []byte {
	if d.Key == nil {
		return d.Frame
	}
	return d.Key.Seal(ofDelayed(shard, KeyID(d.ID)), d.Frame)
}

// openDelayed returns the frame of a row; the error matches ErrKeyMissing or seal.ErrAltered.
func (c *Control) openDelayed(ctx context.Context, row KeyID, shard message.ShardID, key int32, stored []byte) ([]byte, error) {
	if key == 0 {
		return stored, nil
	}
	keys, err := c.s.dataKeys(ctx, c.on(), []int32{key})
	if err != nil {
		return nil, err
	}
	return keys[key].Open(ofDelayed(shard, row), stored)
}

// loadDueQueues gives the queues that are encrypted the keys they are written with, before any shard is locked, and returns the shards that have none.
func (c *Control) loadDueQueues(ctx context.Context, on querier, shards []DueShard) (blocked []BlockedShard, err error) {
	keys := map[int64]*Keys{}
	for i := range shards {
		s := &shards[i]
		if s.queue.keys = keys[s.QueueID]; s.queue.keys == nil {
			if err := c.loadKeys(ctx, on, &s.queue); err != nil {
				return nil, err
			}
			keys[s.QueueID] = s.queue.keys
		}
		if err := s.queue.Usable(); err != nil {
			blocked = append(blocked, BlockedShard{Shard: s.Shard, Queue: s.Queue, Err: err})
		}
	}
	return blocked, nil
}

// loadDueKeys gives the rows the keys they open with. What is missing is noted there and is no error.
func (c *Control) loadDueKeys(ctx context.Context, on querier, rows []taken) error {
	for i := range rows {
		r := &rows[i]
		if r.KeyID == 0 {
			continue
		}
		keys, err := c.s.dataKeys(ctx, on, []int32{r.KeyID})
		switch {
		case err == nil:
			r.key = keys[r.KeyID]
		case errors.Is(err, ErrKeyMissing), errors.Is(err, seal.ErrAltered):
			r.err = err
		default:
			return err
		}
	}
	return nil
}

// open makes the frames of what was taken of the shard, in its order.
func (s *DueShard) open(rows []taken) error {
	frames := make([]segment.Frame, len(rows))
	for i := range rows {
		r := &rows[i]
		if r.err != nil {
			return r.err
		}
		bytes := r.Frame
		var err error
		switch {
		case r.key != nil:
			bytes, err = r.key.Open(ofDelayed(r.Shard, r.Key), bytes)
		case s.queue.Encrypted():
			err = fmt.Errorf("it is in clear: %w", seal.ErrAltered)
		}
		var partition []byte
		if err == nil {
			partition, err = message.FramePartition(bytes)
		}
		if err != nil {
			return fmt.Errorf("delayed message %s: %w", message.PendingID(r.Key), err)
		}
		frames[i] = segment.Frame{Hash: s.queue.Hash(string(partition)), Bytes: bytes}
	}
	s.Frames = frames
	return nil
}
