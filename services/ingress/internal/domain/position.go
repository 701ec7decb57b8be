package domain

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Where a subscription may begin, beside a time and offsets.
const (
	Latest   = "latest"
	Earliest = "earliest"
)

// MaxShards is how many logs a queue can have in all its lanes.
const MaxShards = 512

// Position is where a subscription begins: at a place that the dispatcher finds, or at offsets.
type Position struct {
	// Named is "latest", "earliest" or an RFC 3339 time; empty if Offsets are given.
	Named string
	// Offsets of the first message wanted, one a shard.
	Offsets []int64
	// Queue is the id of the queue that the offsets are of, 0 if that is not known: who resumes knows it.
	Queue int64
}

var (
	errFrom   = errors.New(`from is "latest", "earliest", an RFC 3339 time, or offsets with commas between`)
	errResume = errors.New("resume is no token of a subscription")
)

// ParseFrom reads where a subscription that does not resume begins; nothing is latest.
func ParseFrom(text string) (Position, error) {
	switch text {
	case "", Latest:
		return Position{Named: Latest}, nil
	case Earliest:
		return Position{Named: Earliest}, nil
	}
	if _, err := time.Parse(time.RFC3339, text); err == nil {
		return Position{Named: text}, nil
	}
	var p Position
	for part := range strings.SplitSeq(text, ",") {
		at, err := strconv.ParseUint(part, 10, 63)
		if err != nil || len(p.Offsets) == MaxShards {
			return Position{}, errFrom
		}
		p.Offsets = append(p.Offsets, int64(at))
	}
	return p, nil
}

// resumeVersion begins every token.
const resumeVersion = 1

// AppendResume appends the token that resumes at offsets of a queue. The shard given is taken to be at another offset than offsets says.
func AppendResume(dst []byte, queue int64, offsets []int64, shard int, at int64) []byte {
	var buf [64]byte
	raw := binary.AppendUvarint(append(buf[:0], resumeVersion), uint64(queue))
	for i, offset := range offsets {
		if i == shard {
			offset = at
		}
		raw = binary.AppendUvarint(raw, uint64(offset))
	}
	return base64.RawURLEncoding.AppendEncode(dst, raw)
}

// ParseResume reads a token. Each place has exactly one token; anything else is refused.
func ParseResume(text string) (Position, error) {
	raw, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil || len(raw) == 0 || raw[0] != resumeVersion {
		return Position{}, errResume
	}
	var p Position
	for rest, first := raw[1:], true; len(rest) > 0; first = false {
		v, n := binary.Uvarint(rest)
		if n <= 0 || v > 1<<63-1 || len(p.Offsets) == MaxShards {
			return Position{}, errResume
		}
		rest = rest[n:]
		if first {
			p.Queue = int64(v)
			continue
		}
		p.Offsets = append(p.Offsets, int64(v))
	}
	if p.Queue == 0 || len(p.Offsets) == 0 || !slices.Equal(AppendResume(nil, p.Queue, p.Offsets, -1, 0), []byte(text)) {
		return Position{}, errResume
	}
	return p, nil
}
