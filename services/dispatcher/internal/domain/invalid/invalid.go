// Package invalid is the one typed error for input that breaks a named rule.
//
// Every limit of the queue area ends in an *Error with a stable code and the field at fault, so that the server translates it
// without reading its text.
package invalid

import "fmt"

// Code names a broken rule. Codes are part of the public contract and never change their meaning.
type Code string

// The codes of the queue area.
const (
	NameEmpty       Code = "NAME_EMPTY"
	NameTooLong     Code = "NAME_TOO_LONG"
	NameNotUTF8     Code = "NAME_NOT_UTF8"
	NameHasNUL      Code = "NAME_HAS_NUL"
	OptionUnknown   Code = "OPTION_UNKNOWN"
	OptionType      Code = "OPTION_TYPE"
	OptionFixed     Code = "OPTION_FIXED" // may be given at creation only
	OutOfRange      Code = "OUT_OF_RANGE"
	EnumUnknown     Code = "ENUM_UNKNOWN"
	TooManyHeaders  Code = "TOO_MANY_HEADERS"
	HeadersTooLarge Code = "HEADERS_TOO_LARGE"
	HeaderRepeated  Code = "HEADER_REPEATED"
	TextInvalid     Code = "TEXT_INVALID" // a value that is not UTF-8 or holds NUL
	MessageTooLarge Code = "MESSAGE_TOO_LARGE"
	TokenMalformed  Code = "TOKEN_MALFORMED" //nolint:gosec // a code, not a credential
	IDMalformed     Code = "ID_MALFORMED"
	NoEncryptionKey Code = "ENCRYPTION_NOT_CONFIGURED" // an encrypted queue where no key is configured
	LaneUnknown     Code = "LANE_UNKNOWN"              // the queue has no lane for the priority
	GroupMismatch   Code = "GROUP_MISMATCH"            // an existing group was asked for with other fixed settings
)

// Error says which field broke which rule. Detail is for people; it names limits and sizes, never payload bytes.
type Error struct {
	Code   Code
	Field  string
	Detail string
}

// New builds an Error with a formatted detail.
func New(code Code, field, format string, args ...any) *Error {
	return &Error{Code: code, Field: field, Detail: fmt.Sprintf(format, args...)}
}

// Error implements error.
func (e *Error) Error() string { return fmt.Sprintf("%s: %s (%s)", e.Field, e.Detail, e.Code) }

// Is makes errors.Is match on code (and on field, where the target names one).
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Code == e.Code && (t.Field == "" || t.Field == e.Field)
}
