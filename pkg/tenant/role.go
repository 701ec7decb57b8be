package tenant

import (
	"errors"
	"fmt"
)

// Role is what a caller may do. Roles are ordered: admin includes write, write includes read; the zero value includes nothing.
type Role uint8

// The roles, weakest first.
const (
	NoRole Role = iota
	Read
	Write
	Admin
)

// ErrInvalidRole is matched by every error that ParseRole returns.
var ErrInvalidRole = errors.New("invalid role")

// ParseRole returns the role named "read", "write" or "admin".
func ParseRole(s string) (Role, error) {
	switch s {
	case "read":
		return Read, nil
	case "write":
		return Write, nil
	case "admin":
		return Admin, nil
	}
	return NoRole, fmt.Errorf("%w: %q is none of read, write, admin", ErrInvalidRole, s)
}

// String returns the word that ParseRole reads, or "none".
func (r Role) String() string {
	switch r {
	case Read:
		return "read"
	case Write:
		return "write"
	case Admin:
		return "admin"
	case NoRole:
		return "none"
	}
	return fmt.Sprintf("Role(%d)", uint8(r))
}

// Allows reports whether a caller with role r may do what needs role need. NoRole allows nothing, not even what needs NoRole.
func (r Role) Allows(need Role) bool {
	return r != NoRole && r <= Admin && r >= need
}
