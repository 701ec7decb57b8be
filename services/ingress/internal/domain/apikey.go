package domain

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"postrider.dev/pkg/tenant"
)

// A key as a client sends it is prk_<id>_<secret>: the id finds the record, the secret proves the right. Both are base62.
const (
	keyPrefix      = "prk_"
	keyIDBytes     = 12 // 71 bit: unique without coordination
	keySecretBytes = 32 // 190 bit: no search will find it, so a plain SHA-256 protects it at rest
	minSecretBytes = 22 // 130 bit: the least a key from the configuration may have
	maxKeyBytes    = 256
)

const base62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

// ErrMalformedKey is matched when text is no API key at all; nothing need be looked up then.
var ErrMalformedKey = errors.New("malformed API key")

// KeyID names an API key; it is no secret.
type KeyID string

// KeyHash is what is kept of a secret.
type KeyHash [sha256.Size]byte

// Key is the parsed form of what a client sends.
type Key struct {
	ID   KeyID
	hash KeyHash
}

// NewKey draws a key from random, which must be a cryptographic source, and returns the text that the client gets once and we never keep.
func NewKey(random io.Reader) (Key, string, error) {
	id, err := draw(random, keyIDBytes)
	if err != nil {
		return Key{}, "", err
	}
	secret, err := draw(random, keySecretBytes)
	if err != nil {
		return Key{}, "", err
	}
	text := keyPrefix + id + "_" + secret
	key, err := ParseKey(text)
	return key, text, err
}

// draw returns n base62 digits, each equally likely.
func draw(random io.Reader, n int) (string, error) {
	out := make([]byte, 0, n)
	var buf [64]byte
	for len(out) < n {
		if _, err := io.ReadFull(random, buf[:]); err != nil {
			return "", fmt.Errorf("draw a key: %w", err)
		}
		for _, b := range buf {
			if b < 248 && len(out) < n { // 4 * 62: the rest would favour the first digits
				out = append(out, base62[b%62])
			}
		}
	}
	return string(out), nil
}

// Random is the source NewKey takes outside tests.
func Random() io.Reader { return rand.Reader }

// ParseKey reads what a client sent; the error matches ErrMalformedKey and never repeats the text.
func ParseKey(text string) (Key, error) {
	if len(text) > maxKeyBytes {
		return Key{}, fmt.Errorf("%w: too long", ErrMalformedKey)
	}
	rest, ok := strings.CutPrefix(text, keyPrefix)
	if !ok {
		return Key{}, fmt.Errorf("%w: it begins with %s", ErrMalformedKey, keyPrefix)
	}
	id, secret, ok := strings.Cut(rest, "_")
	if !ok || !isBase62(id) || !isBase62(secret) {
		return Key{}, fmt.Errorf("%w: it is %s<id>_<secret> in letters and digits", ErrMalformedKey, keyPrefix)
	}
	if len(secret) < minSecretBytes {
		return Key{}, fmt.Errorf("%w: the secret has fewer than %d digits", ErrMalformedKey, minSecretBytes)
	}
	return Key{ID: KeyID(id), hash: sha256.Sum256([]byte(secret))}, nil
}

func isBase62(s string) bool {
	for i := range len(s) {
		if strings.IndexByte(base62, s[i]) < 0 {
			return false
		}
	}
	return s != ""
}

// Hash is what the store keeps.
func (k Key) Hash() KeyHash { return k.hash }

// Matches compares in constant time.
func (k Key) Matches(h KeyHash) bool { return subtle.ConstantTimeCompare(k.hash[:], h[:]) == 1 }

// APIKey is a key's record.
type APIKey struct {
	ID        KeyID
	Tenant    tenant.ID
	Name      string
	Role      tenant.Role
	Hash      KeyHash
	CreatedAt time.Time
	ExpiresAt time.Time // zero: never
	RevokedAt time.Time // zero: live
	// Left is how long the key is still valid by the database's clock when it was read: 0 or less is over; Forever has no end.
	Left time.Duration
}

// Forever is APIKey.Left of a key without an end.
const Forever = time.Duration(1<<63 - 1)

// Live reports whether the key was neither revoked nor expired when it was read, and elapsed later still is not.
func (k APIKey) Live(elapsed time.Duration) bool { return k.RevokedAt.IsZero() && k.Left > elapsed }

// Caller is who a request with this key speaks for.
func (k APIKey) Caller() tenant.Caller {
	return tenant.Caller{Tenant: k.Tenant, Actor: "key:" + string(k.ID), Role: k.Role}
}

// Tenant is an isolation unit of customers.
type Tenant struct {
	ID        tenant.ID
	CreatedAt time.Time
}

// Node is one service process as the directory shows it.
type Node struct {
	ID, Host, Zone, Service, State, Version string
	Addresses                               map[string]string
	StartedAt, HeartbeatAt                  time.Time
}

// Errors of the store that callers decide on.
var (
	ErrNotFound = errors.New("not found")
	ErrExists   = errors.New("exists already")
	// ErrAway says that the database cannot be reached now: what is cached may still be honoured.
	ErrAway = errors.New("database is away")
)
