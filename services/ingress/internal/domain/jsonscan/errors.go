package jsonscan

import (
	"errors"
	"fmt"
)

// Codes that an Error carries; they go to the client as they are.
const (
	CodeInvalidJSON   = "INVALID_JSON"
	CodeTruncated     = "TRUNCATED_JSON"
	CodeInvalidUTF8   = "INVALID_UTF8"
	CodeTooDeep       = "JSON_TOO_DEEP"
	CodeUnknownField  = "UNKNOWN_FIELD"
	CodeDuplicate     = "DUPLICATE_FIELD"
	CodeWrongType     = "WRONG_TYPE"
	CodeInvalidBase64 = "INVALID_BASE64"
	CodeTooMany       = "TOO_MANY_ITEMS"
	CodeMissing       = "MISSING_FIELD"
	CodeConflict      = "CONFLICTING_FIELDS"
	CodeOutOfRange    = "OUT_OF_RANGE"
	CodeDuration      = "INVALID_DURATION"
	CodeTime          = "INVALID_TIME"
)

// Error says where and why a body was refused.
type Error struct {
	Code   string
	Offset int    // of the byte at fault; at the end of a truncated body
	Field  string // path of the envelope field, where there is one
	Detail string
}

// Error returns the detail with its place.
func (e *Error) Error() string {
	if e.Field != "" {
		return fmt.Sprintf("%s: %s (byte %d)", e.Field, e.Detail, e.Offset)
	}
	return fmt.Sprintf("%s (byte %d)", e.Detail, e.Offset)
}

func (s *Scanner) syntax(detail string) error {
	return &Error{Code: CodeInvalidJSON, Offset: s.pos, Detail: detail}
}

func (s *Scanner) truncated() error {
	return &Error{Code: CodeTruncated, Offset: len(s.in), Detail: "the body ends inside a value"}
}

// unexpected is truncated at the end of the input and a syntax error elsewhere.
func (s *Scanner) unexpected(detail string) error {
	if s.pos == len(s.in) {
		return s.truncated()
	}
	return s.syntax(detail)
}

// Fail returns an error about field at offset at.
func Fail(code string, at int, field, detail string) error {
	return &Error{Code: code, Offset: at, Field: field, Detail: detail}
}

// Under returns err, if it is an *Error, with its field placed under path: "payload" under "items[3]" is "items[3].payload". Where the grammar itself
// is broken the offset says everything and no field is named.
func Under(path string, err error) error {
	e, ok := errors.AsType[*Error](err)
	if !ok || e.Code == CodeInvalidJSON || e.Code == CodeTruncated {
		return err
	}
	c := *e
	if c.Field == "" {
		c.Field = path
	} else {
		c.Field = path + "." + c.Field
	}
	return &c
}
