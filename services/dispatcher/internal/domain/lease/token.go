package lease

import (
	"encoding/base64"
	"encoding/binary"

	"github.com/cespare/xxhash/v2"

	"postrider.dev/services/dispatcher/internal/domain/invalid"
)

// Part is one group-shard of a token and the epoch it was granted there.
type Part struct {
	GroupShard GroupShardID
	Epoch      Epoch
}

// Token is what a client holds for one pop: one part a group-shard it got messages from, at least one, ascending by group-shard.
type Token []Part

const (
	tokenVersion = 1
	checkBytes   = 4
	// MaxParts bounds a token: 64 shards in each of 8 lanes.
	MaxParts = 512
	// MaxTokenText bounds the text before anything is decoded.
	MaxTokenText = (1 + MaxParts*2*binary.MaxVarintLen64 + checkBytes) * 4 / 3 * 2
)

// String is the opaque text: base64url without padding of version, parts and a check sum. The check sum tells a mangled token from a
// stale one; it is no secret, and a token gives no right beyond what its caller's tenant has.
func (t Token) String() string {
	b := append(make([]byte, 0, 32), tokenVersion)
	for _, p := range t {
		b = binary.AppendUvarint(b, uint64(p.GroupShard))
		b = binary.AppendUvarint(b, uint64(p.Epoch))
	}
	b = binary.BigEndian.AppendUint32(b, uint32(xxhash.Sum64(b)))
	return base64.RawURLEncoding.EncodeToString(b)
}

// ParseToken reads what String wrote; every token has one text. It returns an *invalid.Error for anything else.
func ParseToken(text string) (Token, error) {
	if len(text) > MaxTokenText {
		return nil, malformed("is too long")
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil || len(b) < 1+checkBytes {
		return nil, malformed("is not base64url of a token")
	}
	body, check := b[:len(b)-checkBytes], binary.BigEndian.Uint32(b[len(b)-checkBytes:])
	if body[0] != tokenVersion || uint32(xxhash.Sum64(body)) != check {
		return nil, malformed("is damaged or of an unknown version")
	}
	var t Token
	for rest := body[1:]; len(rest) > 0; {
		gs, n := binary.Uvarint(rest)
		if n <= 0 || gs > 1<<63-1 {
			return nil, malformed("is damaged")
		}
		epoch, m := binary.Uvarint(rest[n:])
		if m <= 0 || len(t) == MaxParts {
			return nil, malformed("is damaged")
		}
		t = append(t, Part{GroupShard: GroupShardID(gs), Epoch: Epoch(epoch)})
		rest = rest[n+m:]
	}
	ascending := true
	for i := 1; i < len(t); i++ {
		ascending = ascending && t[i-1].GroupShard < t[i].GroupShard
	}
	if len(t) == 0 || !ascending || t.String() != text {
		return nil, malformed("is damaged")
	}
	return t, nil
}

func malformed(detail string) error {
	return invalid.New(invalid.TokenMalformed, "lease_token", "%s", detail)
}
