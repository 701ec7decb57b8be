package message

import (
	"math/bits"
	"strings"

	"postrider.dev/services/dispatcher/internal/domain/invalid"
)

// ID encodes where a message is: its shard and its offset. It is dense, unique for ever and needs no index.
type ID struct {
	Shard  ShardID
	Offset Offset
}

const (
	alphabet  = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
	base      = uint64(len(alphabet))
	maxIDText = 22 // 58^22 > 2^128
)

// String is the base-58 text of the ID: shard and offset as one 128-bit number, without leading zeros.
func (id ID) String() string { return base58(uint64(id.Shard), uint64(id.Offset)) }

// base58 is the text of a 128-bit number.
func base58(hi, lo uint64) string {
	var buf [maxIDText]byte
	at := len(buf)
	for hi != 0 || lo != 0 {
		var r uint64
		hi, r = bits.Div64(0, hi, base)
		lo, r = bits.Div64(r, lo, base)
		at--
		buf[at] = alphabet[r]
	}
	if at == len(buf) {
		at--
		buf[at] = alphabet[0]
	}
	return string(buf[at:])
}

// ParseID reads what String wrote. Every ID has exactly one text; anything else is refused with an *invalid.Error.
func ParseID(text string) (ID, error) {
	hi, lo, err := parseBase58(text)
	if err != nil {
		return ID{}, err
	}
	id := ID{Shard: ShardID(hi), Offset: Offset(lo)}
	if id.Shard < 0 || id.Offset < 0 || id.String() != text {
		return ID{}, invalid.New(invalid.IDMalformed, "message_id", "names no message")
	}
	return id, nil
}

// parseBase58 reads a number of at most 128 bits; it may have leading zeros.
func parseBase58(text string) (hi, lo uint64, err error) {
	if text == "" || len(text) > maxIDText {
		return 0, 0, invalid.New(invalid.IDMalformed, "message_id", "must be 1 to %d characters of base-58", maxIDText)
	}
	for i := range len(text) {
		d := strings.IndexByte(alphabet, text[i])
		if d < 0 {
			return 0, 0, invalid.New(invalid.IDMalformed, "message_id", "character %d is not base-58", i+1)
		}
		over, high := bits.Mul64(hi, base)
		carry, low := bits.Mul64(lo, base)
		var c uint64
		lo, c = bits.Add64(low, uint64(d), 0)
		hi, c = bits.Add64(high, carry, c)
		if over != 0 || c != 0 {
			return 0, 0, invalid.New(invalid.IDMalformed, "message_id", "names no message")
		}
	}
	return hi, lo, nil
}
