package message

import (
	"crypto/sha256"
	"encoding/binary"
)

// KeyKind tells apart what an idempotency key was given for.
type KeyKind byte

// The kinds.
const (
	KeyOfMessage KeyKind = 1 // of one message, scope (shard, partition)
	KeyOfRequest KeyKind = 2 // of a whole request
)

// DedupeKey is the row key of an idempotency key: 128 bits of a SHA-256, so that nobody can make two keys meet.
func DedupeKey(shard ShardID, kind KeyKind, partition, key string) [16]byte {
	b := make([]byte, 0, 16+len(partition)+len(key))
	b = binary.BigEndian.AppendUint64(b, uint64(shard))
	b = append(b, byte(kind))
	b = appendText(b, partition)
	sum := sha256.Sum256(append(b, key...))
	return [16]byte(sum[:16])
}

// OriginHeader keeps who pushed a message, where that was said.
const OriginHeader = "postrider-origin"

// BodyHash tells whether a reused key came with the same body. Trace headers are left out, for a retry is a new span, and the origin, for it may be made by
// another process.
func (m *Message) BodyHash() int64 {
	h := sha256.New()
	var b []byte
	b = appendText(b, m.Partition)
	b = appendText(b, m.ClientID)
	b = appendText(b, m.ContentType)
	for _, x := range m.Headers {
		if x.Name != "traceparent" && x.Name != "tracestate" && x.Name != OriginHeader {
			b = appendText(b, x.Name)
			b = appendText(b, x.Value)
		}
	}
	h.Write(b)
	h.Write([]byte{0})
	h.Write(m.Payload)
	return int64(binary.BigEndian.Uint64(h.Sum(b[:0])))
}
