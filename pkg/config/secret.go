package config

import (
	"fmt"
	"io"
)

const redacted = "***"

// Secret is text that prints as *** (as nothing when empty) in every format: fmt with any verb, JSON, text and zap. Reveal is the only way to its
// content, so a reader of the code finds every use. Keep it in exported fields, since fmt cannot call the methods of a field it may not read, and out of
// map keys, which encoding/json writes by their kind.
type Secret string

// Reveal returns the content.
func (s Secret) Reveal() string { return string(s) }

// IsSet reports whether there is any content.
func (s Secret) IsSet() bool { return s != "" }

// String returns *** or nothing.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return redacted
}

// Format prints *** or nothing whatever the verb.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, s.String()) }

// MarshalText returns *** or nothing; encoding/json, zap and yaml use it.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText takes the content as it is.
func (s *Secret) UnmarshalText(text []byte) error {
	*s = Secret(text)
	return nil
}
