package engine

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"postrider.dev/pkg/tenant"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/store"
)

// spooledVersion is the first byte of a record of the spool. A reader refuses what it does not know, and the dispatcher does not start then.
const spooledVersion = 1

// spooledPush is a push as it lies in the spool: what it said, without the items that were refused.
type spooledPush struct {
	tenant   tenant.ID
	at       time.Time      // when it was accepted, by this host's clock
	keyed    bool           // its idempotency key covers the request, which has the hash
	hash     uint64         // of the request as it came
	accepted []int          // indexes of items, growing
	sought   []store.Sought // flushes with which it may have got into the log
	req      *queuev1.PushRequest

	keyedHashes []uint64      // of the partitions, where the queue is encrypted
	sealed      *sealedRecord // of an encrypted queue, until it is opened; then req names the queue only
}

// maxIndex is no less than any index of an item in a request.
const maxIndex = 1 << 16

var errSpooled = errors.New("the record is none that this dispatcher understands")

func (s *spooledPush) encode() ([]byte, error) {
	if s.sealed != nil {
		return slices.Concat(s.sealed.header, s.sealed.body), nil
	}
	b := []byte{spooledVersion, 0}
	if s.keyed {
		b[1] = 1
		b = binary.BigEndian.AppendUint64(b, s.hash)
	}
	b = binary.AppendVarint(b, s.at.UnixMicro())
	b = binary.AppendUvarint(b, uint64(len(s.tenant)))
	b = append(b, s.tenant...)
	b = binary.AppendUvarint(b, uint64(len(s.accepted)))
	for _, i := range s.accepted {
		b = binary.AppendUvarint(b, uint64(i))
	}
	b = binary.AppendUvarint(b, uint64(len(s.sought)))
	for _, x := range s.sought {
		b = binary.AppendVarint(b, int64(x.Shard))
		b = binary.AppendVarint(b, int64(x.Known))
		b = append(b, x.FlushID[:]...)
		b = binary.AppendUvarint(b, uint64(len(x.Pending)))
		for _, id := range x.Pending {
			b = append(b, id[:]...)
		}
	}
	req := &queuev1.PushRequest{Queue: s.req.GetQueue(), IdempotencyKey: s.req.GetIdempotencyKey()}
	for _, i := range s.accepted {
		req.Items = append(req.Items, s.req.GetItems()[i])
	}
	return proto.MarshalOptions{}.MarshalAppend(b, req)
}

// parseSpooled reads what encode, or encodeSealed, wrote.
func parseSpooled(b []byte) (*spooledPush, error) {
	if len(b) > 0 && b[0] == sealedVersion {
		return parseSealed(b)
	}
	if len(b) < 2 || b[0] != spooledVersion || b[1] > 1 {
		return nil, errSpooled
	}
	r := spooledReader{b: b[2:]}
	s := &spooledPush{keyed: b[1] == 1}
	if hash := r.bytes(int(b[1]) * 8); len(hash) == 8 {
		s.hash = binary.BigEndian.Uint64(hash)
	}
	s.at, s.tenant = time.UnixMicro(r.signed()), tenant.ID(r.bytes(r.count()))
	s.req = &queuev1.PushRequest{}
	last := -1
	for range r.count() {
		i := r.count()
		if i <= last || i > maxIndex {
			return nil, errSpooled
		}
		s.accepted, last = append(s.accepted, i), i
	}
	for range r.count() {
		x := store.Sought{Shard: message.ShardID(r.signed()), Known: message.Offset(r.signed())}
		copy(x.FlushID[:], r.bytes(len(x.FlushID)))
		for range r.count() {
			x.Pending = append(x.Pending, message.PendingID{})
			copy(x.Pending[len(x.Pending)-1][:], r.bytes(len(message.PendingID{})))
		}
		s.sought = append(s.sought, x)
	}
	if r.bad || !s.tenant.Valid() {
		return nil, errSpooled
	}
	if err := proto.Unmarshal(r.b, s.req); err != nil {
		return nil, fmt.Errorf("%w: %w", errSpooled, err)
	}
	if len(s.accepted) != len(s.req.GetItems()) || last < 0 {
		return nil, errSpooled
	}
	items := make([]*queuev1.PushItem, last+1) // each at its place; the refused ones are not there
	for n, i := range s.accepted {
		items[i] = s.req.GetItems()[n]
	}
	s.req.Items = items
	return s, nil
}

// spooledReader reads numbers and bytes until something is missing; then it is bad, and reads nothing.
type spooledReader struct {
	b   []byte
	bad bool
}

func (r *spooledReader) fail() { r.bad, r.b = true, nil }

func (r *spooledReader) signed() int64 {
	v, n := binary.Varint(r.b)
	if n <= 0 {
		r.fail()
		return 0
	}
	r.b = r.b[n:]
	return v
}

// count reads a number that is no greater than the bytes that could come.
func (r *spooledReader) count() int {
	v, n := binary.Uvarint(r.b)
	if n <= 0 || v > uint64(len(r.b)) {
		r.fail()
		return 0
	}
	r.b = r.b[n:]
	return int(v)
}

func (r *spooledReader) bytes(n int) []byte {
	if n > len(r.b) {
		r.fail()
		return nil
	}
	b := r.b[:n]
	r.b = r.b[n:]
	return b
}
