package seal

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"fmt"

	"github.com/dchest/siphash"
)

// Names hashes the names of an encrypted queue, so that who reads the database cannot try names out. It never changes in the life of the queue.
type Names struct {
	k0, k1 uint64
	mac    []byte
}

// NewNames returns the Names of a names key.
func NewNames(secret []byte) (*Names, error) {
	if len(secret) != KeyBytes {
		return nil, fmt.Errorf("a key of %d bytes: %w", len(secret), ErrAltered)
	}
	partitions := derive(secret, "postrider partitions", 16)
	return &Names{
		k0: binary.LittleEndian.Uint64(partitions), k1: binary.LittleEndian.Uint64(partitions[8:]),
		mac: derive(secret, "postrider idempotency", KeyBytes),
	}, nil
}

// Hash is the number a partition is known by: SipHash-2-4.
func (n *Names) Hash(partition string) uint64 { return siphash.Hash(n.k0, n.k1, []byte(partition)) }

// Mac is an HMAC of a digest, for what is compared and never read.
func (n *Names) Mac(digest []byte) [32]byte {
	h := hmac.New(sha256.New, n.mac)
	h.Write(digest)
	return [32]byte(h.Sum(nil))
}
