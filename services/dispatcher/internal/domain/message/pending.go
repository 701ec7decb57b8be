package message

import (
	"encoding/binary"
	"strings"
	"time"

	"postrider.dev/services/dispatcher/internal/domain/invalid"
)

// PendingID names a message that has no place in a log yet. It is random and new for each message, and it names the message for ever: once the message is
// in the log, it is looked up under either id.
type PendingID [16]byte

// pendingPrefix tells a pending id from an ID, whose alphabet lacks it.
const pendingPrefix = "p_"

// String is the prefix and the id in base-58.
func (id PendingID) String() string {
	return pendingPrefix + base58(binary.BigEndian.Uint64(id[:8]), binary.BigEndian.Uint64(id[8:]))
}

// IsPendingID says that the text can only be a PendingID.
func IsPendingID(text string) bool { return strings.HasPrefix(text, pendingPrefix) }

// ParsePendingID reads what String wrote. Anything else is refused with an *invalid.Error.
func ParsePendingID(text string) (PendingID, error) {
	var id PendingID
	digits, ok := strings.CutPrefix(text, pendingPrefix)
	if !ok {
		return id, invalid.New(invalid.IDMalformed, "message_id", "is no pending id")
	}
	hi, lo, err := parseBase58(digits)
	if err != nil {
		return id, err
	}
	binary.BigEndian.PutUint64(id[:8], hi)
	binary.BigEndian.PutUint64(id[8:], lo)
	if id.String() != text {
		return PendingID{}, invalid.New(invalid.IDMalformed, "message_id", "names no message")
	}
	return id, nil
}

// Pending is a message that was accepted for later.
type Pending struct {
	ID          PendingID
	AvailableAt time.Time // by the database's clock; whole microseconds
}

// pendingBytes is the length of what Append appends.
const pendingBytes = 16 + 8

// Append appends the stored form of p.
func (p Pending) Append(dst []byte) []byte {
	return binary.BigEndian.AppendUint64(append(dst, p.ID[:]...), uint64(p.AvailableAt.UnixMicro()))
}

// ParsePending reads what Append wrote, and returns what follows it.
func ParsePending(b []byte) (p Pending, rest []byte, err error) {
	if len(b) < pendingBytes {
		return Pending{}, nil, ErrCorrupt
	}
	copy(p.ID[:], b)
	p.AvailableAt = time.UnixMicro(int64(binary.BigEndian.Uint64(b[16:]))).UTC()
	return p, b[pendingBytes:], nil
}
