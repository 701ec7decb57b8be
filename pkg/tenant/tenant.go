// Package tenant carries who a request speaks for: a validated tenant ID, the actor inside it and the actor's role.
//
// An ID obtained from Parse matches ^[a-z0-9][a-z0-9_-]{0,62}$, so it may be used in SQL arguments, cache keys and log fields without escaping.
// The Caller in a context was put there by a server that authenticated its peer; nothing else may put one there.
// The package depends on the standard library alone, because pure domain code imports it.
package tenant

import (
	"context"
	"errors"
	"fmt"
)

// ID names one tenant. The zero value names none.
type ID string

// Default is the tenant of installations that never create another one.
const Default ID = "default"

// MaxLen is the length in bytes of the longest ID.
const MaxLen = 63

// ErrInvalid is matched by every error that Parse returns.
var ErrInvalid = errors.New("invalid tenant id")

// Parse returns s as an ID, or an error matching ErrInvalid that says what is wrong with it.
func Parse(s string) (ID, error) {
	switch {
	case s == "":
		return "", fmt.Errorf("%w: empty", ErrInvalid)
	case len(s) > MaxLen:
		return "", fmt.Errorf("%w: %d bytes, at most %d are allowed", ErrInvalid, len(s), MaxLen)
	}
	for i := range len(s) {
		if !allowed(s[i], i == 0) {
			return "", fmt.Errorf("%w: byte %q at %d; lower-case letters and digits are allowed, after the first also '_' and '-'", ErrInvalid, s[i], i)
		}
	}
	return ID(s), nil
}

func allowed(c byte, first bool) bool {
	switch {
	case c >= 'a' && c <= 'z', c >= '0' && c <= '9':
		return true
	case c == '_', c == '-':
		return !first
	}
	return false
}

// String returns the ID as text.
func (id ID) String() string { return string(id) }

// Valid reports whether Parse would return id unchanged.
func (id ID) Valid() bool {
	_, err := Parse(string(id))
	return err == nil
}

// Caller is an authenticated party: a tenant, the actor inside it (a key's name, a token's subject, a service) and what it may do.
type Caller struct {
	Tenant ID
	Actor  string
	Role   Role
}

type callerKey struct{}

// NewContext returns a context that carries c. Only code that has authenticated the peer, or that acts for the process itself, may call it.
func NewContext(ctx context.Context, c Caller) context.Context {
	return context.WithValue(ctx, callerKey{}, c)
}

// CallerFrom returns the Caller that ctx carries; false means the request was not authenticated.
func CallerFrom(ctx context.Context) (Caller, bool) {
	c, ok := ctx.Value(callerKey{}).(Caller)
	return c, ok
}

// FromContext returns the tenant of the Caller that ctx carries; false means there is none, and the request must be refused.
func FromContext(ctx context.Context) (ID, bool) {
	c, ok := CallerFrom(ctx)
	return c.Tenant, ok && c.Tenant != ""
}
