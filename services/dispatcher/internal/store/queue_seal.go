package store

import (
	"encoding/binary"
	"fmt"

	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/placement"
	"postrider.dev/services/dispatcher/internal/domain/queue"
	"postrider.dev/services/dispatcher/internal/domain/seal"
	"postrider.dev/services/dispatcher/internal/domain/segment"
)

// Encrypted reports whether what is kept of the queue is encrypted. It is so from its creation or never.
func (q *Queue) Encrypted() bool { return q.Placement == placement.V2 }

// Usable is nil if messages of the queue can be read and written here; else it matches ErrKeyMissing. Where it is not nil, nothing else below may be asked.
func (q *Queue) Usable() error {
	if !q.Encrypted() {
		return nil
	}
	if q.keys == nil {
		return fmt.Errorf("the keys of queue %q were not read: %w", q.Name, ErrKeyMissing)
	}
	return q.keys.err
}

// Key is what seals new records of the queue; nil where it is not encrypted.
func (q *Queue) Key() *seal.Key {
	if !q.Encrypted() {
		return nil
	}
	return q.keys.data
}

// Hash is the number by which a partition of the queue is placed, found and blocked.
func (q *Queue) Hash(partition string) uint64 {
	if !q.Encrypted() {
		return placement.Hash(partition)
	}
	return q.keys.names.Hash(partition)
}

// Shown is what an audit entry says of a partition: its name, or of an encrypted queue its hash.
func (q *Queue) Shown(partition string) string {
	if partition == "" || !q.Encrypted() {
		return partition
	}
	return fmt.Sprintf("#%016x", q.Hash(partition))
}

// DedupeKey is the row key of an idempotency key. Of an encrypted queue it is keyed, so that nobody can try out names and keys.
func (q *Queue) DedupeKey(shard message.ShardID, kind message.KeyKind, partition, key string) KeyID {
	id := message.DedupeKey(shard, kind, partition, key)
	if q.Encrypted() {
		mac := q.keys.names.Mac(id[:])
		copy(id[:], mac[:])
	}
	return KeyID(id)
}

// BodyHash is what is remembered of a body beside a key; of an encrypted queue it is an HMAC.
func (q *Queue) BodyHash(hash uint64) uint64 {
	if !q.Encrypted() {
		return hash
	}
	mac := q.keys.names.Mac(binary.BigEndian.AppendUint64([]byte("body"), hash))
	return binary.BigEndian.Uint64(mac[:])
}

// Encode builds a segment as the queue wants it compressed. It is not encrypted yet: that is done when it is appended, with Key.
func (q *Queue) Encode(enc *segment.Encoder, frames []segment.Frame) (segment.Encoded, segment.Directory, error) {
	if q.Config.Compression == queue.CompressionNone {
		return enc.BuildRaw(frames)
	}
	return enc.Build(frames)
}

// stored is the body of an append as it is written.
func (a *Append) stored() []byte {
	if a.Key == nil {
		return a.Body
	}
	return a.Key.Seal(seal.InSegment(a.Shard, a.FlushID, a.Codec, a.Partitions, a.Sizes), a.Body)
}
