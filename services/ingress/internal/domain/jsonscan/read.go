package jsonscan

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// Text reads a string and returns it decoded. A surrogate escape without its partner stands for no character and is refused, since the envelope's
// strings are names that others must be able to write.
func (s *Scanner) Text(field string) (string, error) {
	if k := s.Peek(); k != String {
		return "", s.WrongType(field, "a string")
	}
	start := s.pos
	if err := s.skipString(); err != nil {
		return "", err
	}
	raw := s.in[start+1 : s.pos-1]
	if bytes.IndexByte(raw, '\\') < 0 {
		return intern(raw), nil
	}
	text, ok := unescape(raw)
	if !ok {
		return "", Fail(CodeInvalidUTF8, start, field, "a surrogate escape without its partner")
	}
	return text, nil
}

// intern returns raw as a string, without allocating for the commonest names and values of envelopes.
func intern(raw []byte) string {
	switch string(raw) {
	case "items":
		return "items"
	case "partition":
		return "partition"
	case "payload":
		return "payload"
	case "payload_base64":
		return "payload_base64"
	case "headers":
		return "headers"
	case "content_type":
		return "content_type"
	case "client_id":
		return "client_id"
	case "idempotency_key":
		return "idempotency_key"
	case "application/json":
		return "application/json"
	}
	return string(raw)
}

// unescape decodes the escapes of a checked string; false for a lone surrogate.
func unescape(raw []byte) (string, bool) {
	out := make([]byte, 0, len(raw))
	for i := 0; i < len(raw); i++ {
		if raw[i] != '\\' {
			out = append(out, raw[i])
			continue
		}
		i++
		if raw[i] != 'u' {
			out = append(out, simpleEscape(raw[i]))
			continue
		}
		r := rune4(raw[i+1:])
		i += 4
		if utf16.IsSurrogate(r) {
			if i+6 >= len(raw) || raw[i+1] != '\\' || raw[i+2] != 'u' {
				return "", false
			}
			r = utf16.DecodeRune(r, rune4(raw[i+3:]))
			if r == utf8.RuneError {
				return "", false
			}
			i += 6
		}
		out = utf8.AppendRune(out, r)
	}
	return string(out), true
}

func simpleEscape(c byte) byte {
	switch c {
	case 'b':
		return '\b'
	case 'f':
		return '\f'
	case 'n':
		return '\n'
	case 'r':
		return '\r'
	case 't':
		return '\t'
	}
	return c // quote, backslash, slash
}

func rune4(b []byte) rune {
	var r rune
	for _, c := range b[:4] {
		h, _ := hex(c)
		r = r<<4 | h
	}
	return r
}

// WrongType is the error for a value of another type than wanted at the current position; where no value begins at all it is a syntax error.
func (s *Scanner) WrongType(field, want string) error {
	k := s.Peek()
	if k == None {
		return s.unexpected("a value is expected here")
	}
	return Fail(CodeWrongType, s.pos, field, "must be "+want+", not "+k.String())
}

// Fields reads an envelope object. It calls read for each field, with the decoded name, positioned at the value, which read MUST consume. A name
// that comes twice is refused. Errors name fields relative to this object: see Under.
func (s *Scanner) Fields(read func(name string) error) error {
	if s.Peek() != Object {
		return s.WrongType("", "an object")
	}
	s.pos++
	s.space()
	if s.at() == '}' {
		s.pos++
		return nil
	}
	var room [16]string
	seen := room[:0]
	for {
		name, err := s.key(seen)
		if err != nil {
			return err
		}
		if len(seen) < maxTracked {
			seen = append(seen, name)
		}
		if err := read(name); err != nil {
			return err
		}
		more, err := s.comma('}')
		if err != nil || !more {
			return err
		}
	}
}

func (s *Scanner) key(seen []string) (string, error) {
	s.space()
	start := s.pos
	if s.at() != '"' {
		return "", s.unexpected("a field name in quotes is expected here")
	}
	name, err := s.Text("")
	if err != nil {
		return "", err
	}
	if slices.Contains(seen, name) {
		return "", Fail(CodeDuplicate, start, name, "the field comes twice")
	}
	return name, s.colon()
}

// maxTracked bounds the quadratic search for duplicates; envelopes have fewer known fields and headers than this, and unknown ones end the scan.
const maxTracked = 128

// comma reads a comma (true) or end (false).
func (s *Scanner) comma(end byte) (bool, error) {
	s.space()
	switch s.at() {
	case ',':
		s.pos++
		return true, nil
	case end:
		s.pos++
		return false, nil
	}
	return false, s.unexpected("a comma or the end of an object or array is expected here")
}

// Elements reads an array, calling read for each element, positioned at it; read MUST consume it.
func (s *Scanner) Elements(field string, read func(i int) error) error {
	if s.Peek() != Array {
		return s.WrongType(field, "an array")
	}
	s.pos++
	s.space()
	if s.at() == ']' {
		s.pos++
		return nil
	}
	for i := 0; ; i++ {
		if err := read(i); err != nil {
			return err
		}
		more, err := s.comma(']')
		if err != nil || !more {
			return err
		}
	}
}

// Null reads a null if one is next, and reports whether it did.
func (s *Scanner) Null() (bool, error) {
	if s.Peek() != Null {
		return false, nil
	}
	return true, s.literal("null")
}

// Bool reads true or false.
func (s *Scanner) Bool(field string) (bool, error) {
	if s.Peek() != Bool {
		return false, s.WrongType(field, "true or false")
	}
	if s.in[s.pos] == 't' {
		return true, s.literal("true")
	}
	return false, s.literal("false")
}

// Int reads a whole number, as a number or, as 64-bit numbers are written in JSON, in a string.
func (s *Scanner) Int(field string, bits int) (int64, error) {
	start := s.Offset()
	var digits string
	var err error
	switch s.Peek() {
	case Number:
		var raw []byte
		raw, _, err = s.Raw()
		digits = string(raw)
	case String:
		digits, err = s.Text(field)
	default:
		return 0, s.WrongType(field, "a whole number")
	}
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(digits, 10, bits)
	switch {
	case errors.Is(err, strconv.ErrRange):
		return 0, Fail(CodeOutOfRange, start, field, fmt.Sprintf("does not fit %d bits", bits))
	case err != nil:
		return 0, Fail(CodeWrongType, start, field, "must be a whole number")
	}
	return n, nil
}
