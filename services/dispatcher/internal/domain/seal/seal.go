// Package seal encrypts what is kept of encrypted queues, and hashes their names.
//
// It is an envelope. A queue has random keys of its own: data keys, of which the newest seals and all open, and one names key that never changes, since
// partitions are found and blocked by hashes made with it. Each is wrapped by a master key, which comes from the configuration and is stored nowhere.
//
// What is sealed begins with a random salt and a random nonce. The salt makes, with the data key, a key for this one piece: so there is no number of pieces
// after which a nonce is likely to come again. What a piece is, and where it belongs, is authenticated with it: it opens nowhere else.
package seal

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"

	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/segment"
)

// KeyBytes is the size of every key.
const KeyBytes = 32

const saltBytes = 16

// Overhead is by how much a sealed piece is longer than its content.
const Overhead = saltBytes + 12 + 16

// ErrAltered says that sealed bytes are not what was sealed, or not in the place they were sealed for, or that the key is another one.
var ErrAltered = errors.New("sealed bytes do not open")

// Key is a data key of a queue. It is immutable and safe for concurrent use.
type Key struct {
	id     int32
	queue  int64
	secret []byte
}

// NewKey returns the data key of that id of a queue.
func NewKey(queue int64, id int32, secret []byte) (*Key, error) {
	if len(secret) != KeyBytes {
		return nil, fmt.Errorf("a key of %d bytes: %w", len(secret), ErrAltered)
	}
	return &Key{id: id, queue: queue, secret: secret}, nil
}

// ID is the id of the key; 0 of nil, which is no encryption.
func (k *Key) ID() int32 {
	if k == nil {
		return 0
	}
	return k.id
}

// Queue is the id of the queue whose key it is.
func (k *Key) Queue() int64 { return k.queue }

// String names the key without showing it.
func (k *Key) String() string { return fmt.Sprintf("key %d", k.ID()) }

// Seal encrypts plain for one place.
func (k *Key) Seal(at Place, plain []byte) []byte {
	out := make([]byte, saltBytes, Overhead+len(plain))
	_, _ = rand.Read(out)                                   // never fails
	return k.cipher(out).Seal(out, nil, plain, at.bytes(k)) //nolint:gosec // the cipher draws the nonce
}

// Open decrypts what Seal made for the same place. The error matches ErrAltered.
func (k *Key) Open(at Place, sealed []byte) ([]byte, error) {
	if len(sealed) < Overhead {
		return nil, fmt.Errorf("%d bytes: %w", len(sealed), ErrAltered)
	}
	plain, err := k.cipher(sealed[:saltBytes]).Open(nil, nil, sealed[saltBytes:], at.bytes(k))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", k, ErrAltered)
	}
	return plain, nil
}

// cipher is that of one piece.
func (k *Key) cipher(salt []byte) cipher.AEAD {
	return newCipher(derive(k.secret, "postrider piece "+string(salt), KeyBytes))
}

// derive makes a key of another one; it fails only for sizes that are fixed here.
func derive(secret []byte, info string, size int) []byte {
	key, err := hkdf.Expand(sha256.New, secret, info, size)
	if err != nil {
		panic(err)
	}
	return key
}

// newCipher is AES-256-GCM that draws a random nonce for each piece and keeps it in front. It fails only for sizes that were checked before.
func newCipher(secret []byte) cipher.AEAD {
	block, err := aes.NewCipher(secret)
	if err != nil {
		panic(err)
	}
	c, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		panic(err)
	}
	return c
}

// Place is what a sealed piece is and where it belongs. A piece opens in the place it was sealed for only.
type Place struct {
	kind string
	text []byte
}

// InSegment is the place of a body: its shard, its flush, how it is coded, and the directory beside it.
func InSegment(shard message.ShardID, flush [16]byte, codec segment.Codec, partitions, sizes []byte) Place {
	b := make([]byte, 0, 32+len(partitions)+len(sizes))
	b = binary.BigEndian.AppendUint64(b, uint64(shard))
	b = append(b, flush[:]...)
	b = binary.BigEndian.AppendUint16(b, uint16(codec))
	b = binary.BigEndian.AppendUint32(b, uint32(len(partitions)))
	b = append(b, partitions...)
	return Place{kind: "segment", text: append(b, sizes...)}
}

// InRecord is the place of a piece in any other record: kind says which kind of record, and which column of it; id is the record's own.
func InRecord(kind string, id []byte) Place { return Place{kind: kind, text: id} }

func (p Place) bytes(k *Key) []byte {
	b := make([]byte, 0, 24+len(p.kind)+len(p.text))
	b = binary.BigEndian.AppendUint64(b, uint64(k.queue))
	b = binary.BigEndian.AppendUint32(b, uint32(k.id))
	b = append(b, byte(len(p.kind)))
	b = append(b, p.kind...)
	return append(b, p.text...)
}
