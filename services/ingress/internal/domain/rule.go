// Package domain holds what the front door decides: who may call what (Policies), what a request may hold (Rules), and what a key looks like.
// It is pure: no I/O, no clock, no protobuf.
package domain

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"postrider.dev/pkg/tenant"
)

// Codes of violations; they go to the client as they are, and mean the same where a dispatcher gives them.
const (
	CodeMissing     = "MISSING_FIELD"
	CodeNameEmpty   = "NAME_EMPTY"
	CodeNameTooLong = "NAME_TOO_LONG"
	CodeNameUTF8    = "NAME_NOT_UTF8"
	CodeNameNUL     = "NAME_HAS_NUL"
	CodeTextTooLong = "TEXT_TOO_LONG"
	CodeTextInvalid = "TEXT_INVALID"    // not UTF-8, or holds NUL
	CodeToken       = "TOKEN_MALFORMED" //nolint:gosec // G101: a code, not a credential.
	CodeOutOfRange  = "OUT_OF_RANGE"
	CodeEnum        = "ENUM_UNKNOWN"
	CodeTooMany     = "TOO_MANY_ITEMS"
	CodeHeaderCount = "TOO_MANY_HEADERS"
	CodeHeaderBytes = "HEADERS_TOO_LARGE"
	CodeTooLarge    = "MESSAGE_TOO_LARGE"
	CodeMediaType   = "INVALID_CONTENT_TYPE"
	CodeStart       = "INVALID_START"
	CodeTime        = "INVALID_TIME"
	CodeTenant      = "INVALID_TENANT"
	CodeConflict    = "CONFLICTING_FIELDS"
	CodeOption      = "UNKNOWN_OPTION"
	CodeNotJSON     = "PAYLOAD_NOT_JSON"
)

// Check is the kind of test a Rule makes.
type Check uint8

// The kinds of tests.
const (
	Free      Check = iota // anything the type can say, such as a flag or a caller's own number
	Name                   // Min to Max bytes of UTF-8 without NUL
	Text                   // up to Max bytes of UTF-8 without NUL, for people
	Token                  // text we made and get back: printable ASCII, up to Max bytes
	Count                  // a number from Min to Max; where it may be left out, 0 is left out
	Span                   // a duration from Min to Max
	Instant                // a timestamp that exists
	Enum                   // a value the contract names
	List                   // Min to Max elements
	Headers                // up to Max pairs, HeaderBytes together
	Payload                // up to Max bytes
	MediaType              // a media type, up to Max bytes
	Start                  // earliest, latest or an RFC 3339 time
	From                   // the same, or offsets
	Place                  // earliest, latest or an offset
	TenantID               // a tenant's id
	ModeName               // the name of a mode of the fleet
	Flag                   // true or false, and it must be said
	Nested                 // a message with rules of its own
)

// Rule limits one field of the surface, over REST and gRPC alike.
type Rule struct {
	Message  string // the contract's message, such as PopRequest
	Field    string // its field, such as batch
	Check    Check
	Required bool
	Min, Max int64 // bytes, elements, numbers or nanoseconds, as Check says
	// Elements is what the elements of a List of text are tested by: Name, or else Token.
	Elements Check
}

// Name is unique among the rules: PopRequest.batch.
func (r Rule) Name() string { return r.Message + "." + r.Field }

// Fault returns a violation of r with the given code, for rules over several fields.
func (r Rule) Fault(code, detail string) *Violation { return r.fault(code, "%s", detail) }

// Violation is what is wrong with a value.
type Violation struct {
	Rule   string
	Field  string
	Code   string
	Detail string
	// Size and Limit are set where a size is at fault.
	Size, Limit int64
}

func (r Rule) fault(code, format string, args ...any) *Violation {
	return &Violation{Rule: r.Name(), Field: r.Field, Code: code, Detail: fmt.Sprintf(format, args...)}
}

// Missing returns the violation for an absent value, or nil if it may be absent.
func (r Rule) Missing() *Violation {
	if !r.Required {
		return nil
	}
	code := CodeMissing
	if r.Check == Name {
		code = CodeNameEmpty
	}
	return r.fault(code, "%s is needed", r.Field)
}

// String tests a text field; nil means good.
func (r Rule) String(v string) *Violation {
	if v == "" {
		return r.Missing()
	}
	if int64(len(v)) > r.Max {
		f := r.fault(r.either(CodeNameTooLong, CodeTextTooLong), "%s has %d bytes, at most %d are allowed", r.Field, len(v), r.Max)
		f.Size, f.Limit = int64(len(v)), r.Max
		return f
	}
	if !utf8.ValidString(v) {
		return r.fault(r.either(CodeNameUTF8, CodeTextInvalid), "%s is not UTF-8", r.Field)
	}
	return r.content(v)
}

// either returns the first code for a name and the second for other text.
func (r Rule) either(forName, forText string) string {
	if r.Check == Name {
		return forName
	}
	return forText
}

func (r Rule) content(v string) *Violation {
	switch r.Check {
	case Name, Text:
		if strings.IndexByte(v, 0) >= 0 {
			return r.fault(r.either(CodeNameNUL, CodeTextInvalid), "%s holds a NUL", r.Field)
		}
	case Token:
		if !printable(v) {
			return r.fault(CodeToken, "%s holds something other than printable ASCII", r.Field)
		}
	case MediaType:
		if !isMediaType(v) {
			return r.fault(CodeMediaType, "%s is not a media type such as application/json", r.Field)
		}
	case Start:
		if _, err := time.Parse(time.RFC3339, v); err != nil && v != "earliest" && v != "latest" {
			return r.fault(CodeStart, "%s is earliest, latest or an RFC 3339 time", r.Field)
		}
	case From:
		if _, err := ParseFrom(v); err != nil {
			return r.fault(CodeStart, "%v", err)
		}
	case Place:
		if n, err := strconv.ParseInt(v, 10, 64); v != "earliest" && v != "latest" && (err != nil || strconv.FormatInt(n, 10) != v || n < 0) {
			return r.fault(CodeStart, "%s is earliest, latest or an offset", r.Field)
		}
	case TenantID:
		if _, err := tenant.Parse(v); err != nil {
			return r.fault(CodeTenant, "%v", err)
		}
	case ModeName:
		if !slices.Contains(ModeNames(), v) {
			return r.fault(CodeEnum, "%s is none of %s", r.Field, strings.Join(ModeNames(), ", "))
		}
	default:
	}
	return nil
}

func printable(v string) bool {
	for i := range len(v) {
		if v[i] <= ' ' || v[i] > '~' {
			return false
		}
	}
	return true
}

// Number tests a count.
func (r Rule) Number(v int64) *Violation {
	if v >= r.Min && v <= r.Max {
		return nil
	}
	return r.fault(CodeOutOfRange, "%s is %d, from %d to %d is allowed", r.Field, v, r.Min, r.Max)
}

// Duration tests a span; ok tells whether the value is a duration at all.
func (r Rule) Duration(d time.Duration, ok bool) *Violation {
	low, high := time.Duration(r.Min), time.Duration(r.Max)
	if ok && d >= low && d <= high {
		return nil
	}
	return r.fault(CodeOutOfRange, "%s is out of range, from %s to %s is allowed", r.Field, low, high)
}

// Time tests a timestamp; ok tells whether it exists.
func (r Rule) Time(ok bool) *Violation {
	if ok {
		return nil
	}
	return r.fault(CodeTime, "%s is no valid time", r.Field)
}

// Known tests an enum; known tells whether the contract names the value.
func (r Rule) Known(known bool) *Violation {
	if known {
		return nil
	}
	return r.fault(CodeEnum, "%s has a value that is not known", r.Field)
}

// Len tests the number of elements.
func (r Rule) Len(n int) *Violation {
	switch {
	case n == 0 && r.Min > 0:
		return r.fault(CodeMissing, "%s is needed", r.Field)
	case int64(n) > r.Max:
		f := r.fault(CodeTooMany, "%s has %d elements, at most %d are allowed", r.Field, n, r.Max)
		f.Size, f.Limit = int64(n), r.Max
		return f
	}
	return nil
}

// Bytes tests the size of a payload.
func (r Rule) Bytes(n int) *Violation {
	if int64(n) <= r.Max {
		return nil
	}
	f := r.fault(CodeTooLarge, "%s has %d bytes, at most %d are allowed", r.Field, n, r.Max)
	f.Size, f.Limit = int64(n), r.Max
	return f
}

// Pairs tests headers.
func (r Rule) Pairs(h map[string]string) *Violation {
	if int64(len(h)) > r.Max {
		f := r.fault(CodeHeaderCount, "%s has %d entries, at most %d are allowed", r.Field, len(h), r.Max)
		f.Size, f.Limit = int64(len(h)), r.Max
		return f
	}
	size := 0
	for k, v := range h {
		size += len(k) + len(v)
		switch {
		case k == "":
			return r.fault(CodeNameEmpty, "%s has an empty name", r.Field)
		case !utf8.ValidString(k), !utf8.ValidString(v):
			return r.fault(CodeTextInvalid, "%s hold something other than UTF-8", r.Field)
		case strings.IndexByte(k, 0) >= 0, strings.IndexByte(v, 0) >= 0:
			return r.fault(CodeTextInvalid, "%s hold a NUL", r.Field)
		}
	}
	if size > HeaderBytes {
		f := r.fault(CodeHeaderBytes, "%s have %d bytes together, at most %d are allowed", r.Field, size, HeaderBytes)
		f.Size, f.Limit = int64(size), HeaderBytes
		return f
	}
	return nil
}
