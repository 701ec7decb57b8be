package config

import (
	"cmp"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
)

// Positive returns an error unless v is above zero.
func Positive[T cmp.Ordered](name string, v T) error {
	var zero T
	if v > zero {
		return nil
	}
	return fmt.Errorf("%s: %v must be positive", name, v)
}

// Between returns an error unless low <= v <= high.
func Between[T cmp.Ordered](name string, v, low, high T) error {
	if low <= v && v <= high {
		return nil
	}
	return fmt.Errorf("%s: %v must be between %v and %v", name, v, low, high)
}

// Below returns an error unless v < limit.
func Below[T cmp.Ordered](name string, v, limit T) error {
	if v < limit {
		return nil
	}
	return fmt.Errorf("%s: %v must be below %v", name, v, limit)
}

// AtMost returns an error unless v <= limit.
func AtMost[T cmp.Ordered](name string, v, limit T) error {
	if v <= limit {
		return nil
	}
	return fmt.Errorf("%s: %v must be at most %v", name, v, limit)
}

// OneOf returns an error unless v is one of the allowed values.
func OneOf(name, v string, allowed ...string) error {
	if slices.Contains(allowed, v) {
		return nil
	}
	return fmt.Errorf("%s: %q must be one of %s", name, v, strings.Join(allowed, ", "))
}

// NotEmpty returns an error if v is empty.
func NotEmpty[S ~string](name string, v S) error {
	if v != "" {
		return nil
	}
	return fmt.Errorf("%s: must be set", name)
}

// LongSecret returns an error if s is set and shorter than minBytes.
func LongSecret(name string, s Secret, minBytes int) error {
	if !s.IsSet() || len(s) >= minBytes {
		return nil
	}
	return fmt.Errorf("%s: has %d bytes, at least %d are needed", name, len(s), minBytes)
}

// Address returns an error unless addr is "host:port" with a port number, or an in-memory "mem:NAME".
func Address(name, addr string) error {
	if rest, ok := strings.CutPrefix(addr, "mem:"); ok && rest != "" {
		return nil
	}
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return fmt.Errorf("%s: %q is not host:port", name, addr)
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return fmt.Errorf("%s: %q has no port number", name, addr)
	}
	return nil
}

// NonLoopbackNeeds returns an error if addr can be reached from other machines and the protection called need is not set. An empty addr is no
// listener and needs nothing.
func NonLoopbackNeeds(name, addr, need string, protection Secret) error {
	if addr == "" || protection.IsSet() || IsLoopback(addr) {
		return nil
	}
	return fmt.Errorf("%s: %q can be reached from other machines, so %s must be set", name, addr, need)
}

// IsLoopback reports whether a listener on addr can be reached from this machine alone. A host name other than localhost is not resolved and
// counts as reachable.
func IsLoopback(addr string) bool {
	if strings.HasPrefix(addr, "mem:") {
		return true
	}
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		host = addr
	}
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}
