package server

import (
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/cespare/xxhash/v2"

	"postrider.dev/services/dispatcher/internal/domain/invalid"
	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/queue"
	"postrider.dev/services/dispatcher/internal/store"
)

const (
	tokenVersion  = 1
	tokenCheck    = 8
	maxTokenBytes = 1 << 10 // of text; the longest cursor is a name
)

// listing says what a page token belongs to: the call, the tenant and everything that chooses and orders the rows. A token of one listing is refused by
// another, so that a client's mix-up is an error and never a page of something else.
type listing []string

// next returns the token of the page after cursor. It is opaque to clients. Its check sum tells damage and mix-ups; it is no secret, for the cursor gives
// nobody a right: tenant and queue come from the request.
func (l listing) next(cursor string) string {
	b := append(make([]byte, 0, 1+tokenCheck+len(cursor)), tokenVersion)
	b = binary.BigEndian.AppendUint64(b, l.sum(cursor))
	return base64.RawURLEncoding.EncodeToString(append(b, cursor...))
}

// cursor returns what next was given; the empty token is the first page. Anything that next of this very listing did not return is an *invalid.Error.
func (l listing) cursor(token string) (string, error) {
	if token == "" {
		return "", nil
	}
	if len(token) > maxTokenBytes {
		return "", badToken("is too long")
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(token)
	if err != nil || len(b) <= 1+tokenCheck || b[0] != tokenVersion {
		return "", badToken("was not made by this service")
	}
	cursor := string(b[1+tokenCheck:])
	if binary.BigEndian.Uint64(b[1:]) != l.sum(cursor) {
		return "", badToken("belongs to another listing, or is damaged")
	}
	return cursor, nil
}

// nameCursor is cursor for a listing by name: what no name can be is refused too, for the check sum is no secret.
func (l listing) nameCursor(token string) (string, error) {
	name, err := l.cursor(token)
	if err == nil && queue.CheckOptionalName("page_token", name) != nil {
		return "", badToken("is damaged")
	}
	return name, err
}

// partitionCursor is where a listing of partitions goes on behind one: its name, which has no NUL, a NUL, and its shard.
func partitionCursor(p store.Partition) string { return fmt.Sprintf("%s\x00%d", p.Name, p.Shard) }

// partitionCursor reads what partitionCursor made. Where there is a name alone, which is how it was made before there were lanes, no shard is left of it.
func (l listing) partitionCursor(token string) (name string, shard message.ShardID, err error) {
	cursor, err := l.cursor(token)
	if err != nil {
		return "", 0, err
	}
	name, number, ok := strings.Cut(cursor, "\x00")
	shard = math.MaxInt64
	if ok {
		var n int64
		n, err = strconv.ParseInt(number, 10, 64)
		shard = message.ShardID(n)
	}
	if err != nil || queue.CheckOptionalName("page_token", name) != nil {
		return "", 0, badToken("is damaged")
	}
	return name, shard, nil
}

func (l listing) sum(cursor string) uint64 {
	h := xxhash.New()
	for _, part := range append(l[:len(l):len(l)], cursor) {
		var size [8]byte
		binary.BigEndian.PutUint64(size[:], uint64(len(part)))
		_, _ = h.Write(size[:])
		_, _ = strings.NewReader(part).WriteTo(h)
	}
	return h.Sum64()
}

func badToken(detail string) error {
	return invalid.New(invalid.TokenMalformed, "page_token", "%s", detail)
}
