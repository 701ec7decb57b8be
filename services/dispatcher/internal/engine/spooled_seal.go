package engine

import (
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"postrider.dev/pkg/tenant"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/dispatcher/internal/domain/seal"
	"postrider.dev/services/dispatcher/internal/spool"
)

// sealedVersion is the first byte of a record of an encrypted queue. In clear are when it was accepted, its tenant and queue, the keyed hashes of its
// partitions and the id of the data key; a record of spooledVersion is sealed behind that.
const sealedVersion = 2

// sealedRecord is what is not readable of a spooledPush.
type sealedRecord struct {
	header []byte // all that is in clear; authenticated
	key    int32
	body   []byte
}

// ofSpooled is the place of a record: a spool, and what is said of it in clear.
func ofSpooled(in spool.ID, header []byte) seal.Place {
	return seal.InRecord("spooled push", append(in[:], header...))
}

// encodeSealed is encode for a queue that is encrypted with the key. hashes are those of the partitions of what was accepted.
func (s *spooledPush) encodeSealed(in spool.ID, key *seal.Key, hashes []uint64) ([]byte, error) {
	plain, err := s.encode()
	if err != nil {
		return nil, err
	}
	b := binary.AppendVarint([]byte{sealedVersion}, s.at.UnixMicro())
	for _, text := range []string{string(s.tenant), s.req.GetQueue()} {
		b = binary.AppendUvarint(b, uint64(len(text)))
		b = append(b, text...)
	}
	b = binary.AppendUvarint(b, uint64(len(hashes)))
	for _, h := range hashes {
		b = binary.BigEndian.AppendUint64(b, h)
	}
	b = binary.AppendVarint(b, int64(key.ID()))
	return append(b, key.Seal(ofSpooled(in, b), plain)...), nil
}

// parseSealed reads what encodeSealed wrote, but for what is sealed.
func parseSealed(b []byte) (*spooledPush, error) {
	r := spooledReader{b: b[1:]}
	s := &spooledPush{at: time.UnixMicro(r.signed()), tenant: tenant.ID(r.bytes(r.count()))}
	s.req = &queuev1.PushRequest{Queue: string(r.bytes(r.count()))}
	for range r.count() {
		h := r.bytes(8)
		if len(h) < 8 {
			return nil, errSpooled
		}
		s.keyedHashes = append(s.keyedHashes, binary.BigEndian.Uint64(h))
	}
	key := r.signed()
	if r.bad || !s.tenant.Valid() || len(s.keyedHashes) == 0 || key <= 0 || int64(int32(key)) != key || len(r.b) < seal.Overhead {
		return nil, errSpooled
	}
	s.sealed = &sealedRecord{header: slices.Clone(b[:len(b)-len(r.b)]), key: int32(key), body: slices.Clone(r.b)}
	return s, nil
}

// open reads what is sealed. The error matches seal.ErrAltered.
func (s *spooledPush) open(in spool.ID, key *seal.Key) (*spooledPush, error) {
	plain, err := key.Open(ofSpooled(in, s.sealed.header), s.sealed.body)
	if err != nil {
		return nil, err
	}
	inner, err := parseSpooled(plain)
	if err != nil || inner.sealed != nil || inner.tenant != s.tenant || inner.req.GetQueue() != s.req.GetQueue() {
		return nil, fmt.Errorf("a sealed record of the spool: %w", seal.ErrAltered)
	}
	inner.keyedHashes = s.keyedHashes
	return inner, nil
}

// hashes are those of the partitions of the push's items, each once.
func (p *push) hashes() []uint64 {
	seen := make(map[uint64]bool, len(p.items))
	out := make([]uint64, 0, len(p.items))
	for i := range p.items {
		if h := p.items[i].frame.Hash; !seen[h] {
			seen[h] = true
			out = append(out, h)
		}
	}
	return out
}
