package store

import (
	"encoding/binary"
	"errors"
	"math"
	"strings"

	"postrider.dev/services/dispatcher/internal/domain/lease"
	"postrider.dev/services/dispatcher/internal/domain/message"
)

// lastOfPair is the last second half of a pair: with 0 it bounds all rows of one group-shard.
const lastOfPair = math.MaxUint64

// pairKey joins a group-shard and a number into the one-column key of leases, retries and chunks. Its order is that of the pair.
func pairKey(gs lease.GroupShardID, number uint64) [16]byte {
	var key [16]byte
	binary.BigEndian.PutUint64(key[:8], uint64(gs))
	binary.BigEndian.PutUint64(key[8:], number)
	return key
}

// numberOf returns the number in a pairKey.
func numberOf(key [16]byte) uint64 { return binary.BigEndian.Uint64(key[8:]) }

// cleanText makes a text storable. Names and reasons were validated where they came in; a failure's own description must never make
// its message fail for ever because of a NUL or broken UTF-8.
func cleanText(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}

// notNil keeps an empty value from becoming NULL.
func notNil(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

var errHeaders = errors.New("stored headers are damaged")

// EncodeHeaders writes headers as pairs of name and value, each behind its length.
func EncodeHeaders(headers []message.Header) []byte {
	out := []byte{}
	for _, h := range headers {
		out = appendText(appendText(out, h.Name), h.Value)
	}
	return out
}

func appendText(out []byte, s string) []byte {
	return append(binary.AppendUvarint(out, uint64(len(s))), s...)
}

// DecodeHeaders reads what EncodeHeaders wrote.
func DecodeHeaders(data []byte) ([]message.Header, error) {
	var headers []message.Header
	for len(data) > 0 {
		var h message.Header
		var ok1, ok2 bool
		h.Name, data, ok1 = cutText(data)
		h.Value, data, ok2 = cutText(data)
		if !ok1 || !ok2 {
			return nil, errHeaders
		}
		headers = append(headers, h)
	}
	return headers, nil
}

func cutText(data []byte) (text string, rest []byte, ok bool) {
	length, n := binary.Uvarint(data)
	if n <= 0 || length > uint64(len(data)-n) {
		return "", nil, false
	}
	end := n + int(length)
	return string(data[n:end]), data[end:], true
}
