package server

import (
	"encoding/base64"
	"encoding/binary"
	"strings"

	"github.com/cespare/xxhash/v2"

	"postrider.dev/services/dispatcher/internal/domain/invalid"
	"postrider.dev/services/dispatcher/internal/domain/queue"
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
