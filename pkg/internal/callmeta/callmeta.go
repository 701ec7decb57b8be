// Package callmeta is the gRPC metadata that calls between services carry: the cluster secret and who the call is made for.
// grpcclient writes it and grpcserver reads it; no one else needs to know the keys.
package callmeta

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"google.golang.org/grpc/metadata"

	"postrider.dev/pkg/tenant"
)

// The metadata keys.
const (
	Prefix = "postrider-"
	Secret = "postrider-cluster-secret" //nolint:gosec // G101: the name of a key, not a secret.
	Tenant = "postrider-tenant"
	Actor  = "postrider-actor"
	Role   = "postrider-role"
)

// maxActor bounds the encoded actor, in bytes.
const maxActor = 4096

// Put makes md carry c. The actor is percent-encoded, because metadata holds printable ASCII only.
func Put(md metadata.MD, c tenant.Caller) {
	md[Tenant] = []string{string(c.Tenant)}
	if c.Actor != "" {
		md[Actor] = []string{url.QueryEscape(c.Actor)}
	}
	if c.Role != tenant.NoRole {
		md[Role] = []string{c.Role.String()}
	}
}

// Caller returns the Caller that md carries; false means it carries none. Only metadata of an authenticated peer may be read.
func Caller(md metadata.MD) (tenant.Caller, bool, error) {
	var c tenant.Caller
	values := md.Get(Tenant)
	if len(values) == 0 {
		return c, false, nil
	}
	id, err := one(md, Tenant)
	if err != nil {
		return c, false, err
	}
	if c.Tenant, err = tenant.Parse(id); err != nil {
		return c, false, err
	}
	actor, err := one(md, Actor)
	if err != nil {
		return c, false, err
	}
	if len(actor) > maxActor {
		return c, false, fmt.Errorf("%s: has %d bytes, at most %d are allowed", Actor, len(actor), maxActor)
	}
	if c.Actor, err = url.QueryUnescape(actor); err != nil {
		return c, false, fmt.Errorf("%s: %w", Actor, err)
	}
	role, err := one(md, Role)
	if err != nil {
		return c, false, err
	}
	if role != "" {
		if c.Role, err = tenant.ParseRole(role); err != nil {
			return c, false, err
		}
	}
	return c, true, nil
}

// ErrAmbiguous is matched by the error for a key that came more than once: which value counts must never depend on who reads it.
var ErrAmbiguous = errors.New("more than one value")

func one(md metadata.MD, key string) (string, error) {
	switch values := md.Get(key); len(values) {
	case 0:
		return "", nil
	case 1:
		return values[0], nil
	default:
		return "", fmt.Errorf("%s: %w", key, ErrAmbiguous)
	}
}

// Strip returns md without the keys of this package, for peers that have no right to them. md itself is not changed.
func Strip(md metadata.MD) metadata.MD {
	clean := make(metadata.MD, len(md))
	for k, v := range md {
		if !strings.HasPrefix(k, Prefix) {
			clean[k] = v
		}
	}
	return clean
}

// Verifier compares secrets in constant time.
type Verifier struct{ digest [sha256.Size]byte }

// NewVerifier returns a Verifier for secret.
func NewVerifier(secret string) Verifier { return Verifier{sha256.Sum256([]byte(secret))} }

// Match reports whether given is the secret; neither its content nor its length shows in the time taken.
func (v Verifier) Match(given string) bool {
	digest := sha256.Sum256([]byte(given))
	return subtle.ConstantTimeCompare(v.digest[:], digest[:]) == 1
}

// MatchMD reports whether md carries the secret, once.
func (v Verifier) MatchMD(md metadata.MD) bool {
	given, err := one(md, Secret)
	return err == nil && v.Match(given)
}

// Carrier lets a propagator read and write trace contexts in metadata.
type Carrier metadata.MD

// Get returns the first value of key.
func (c Carrier) Get(key string) string {
	if values := metadata.MD(c).Get(key); len(values) > 0 {
		return values[0]
	}
	return ""
}

// Set replaces the values of key.
func (c Carrier) Set(key, value string) { metadata.MD(c).Set(key, value) }

// Keys returns the keys.
func (c Carrier) Keys() []string { return slices.Collect(maps.Keys(c)) }
