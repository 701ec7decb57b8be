// Package jsonscan reads JSON without decoding what it need not look at.
//
// A Scanner walks a body field by field; a value that is only carried, such as a message's payload, is checked (grammar, UTF-8, control characters,
// depth) and returned as the very bytes of the input, white space included, so that integers beyond 2^53, duplicate keys and \u0000 escapes
// survive. Field names and duplicates are checked on envelope objects only: inside a payload they are the producer's own affair.
package jsonscan

import (
	"unicode/utf8"
)

// MaxDepth is the deepest nesting of a payload: 128 levels of arrays and objects.
const MaxDepth = 128

// Kind is the type of a JSON value, told by its first byte.
type Kind uint8

// The kinds of values. None means that the input ends or holds something that begins no value.
const (
	None Kind = iota
	Object
	Array
	String
	Number
	Bool
	Null
)

// String names k for messages to people.
func (k Kind) String() string {
	switch k {
	case Object:
		return "an object"
	case Array:
		return "an array"
	case String:
		return "a string"
	case Number:
		return "a number"
	case Bool:
		return "a boolean"
	case Null:
		return "null"
	case None:
	}
	return "nothing"
}

// Scanner is a position in a body. Make it with New; methods advance it and fail with *Error.
type Scanner struct {
	in  []byte
	pos int
}

// New returns a scanner of body, which is not copied: what Raw returns points into it. It fails if body is not UTF-8 throughout.
func New(body []byte) (*Scanner, error) {
	if !utf8.Valid(body) {
		return nil, &Error{Code: CodeInvalidUTF8, Offset: firstInvalid(body), Detail: "invalid UTF-8"}
	}
	return &Scanner{in: body}, nil
}

func firstInvalid(b []byte) int {
	for i := 0; i < len(b); {
		r, n := utf8.DecodeRune(b[i:])
		if r == utf8.RuneError && n <= 1 {
			return i
		}
		i += n
	}
	return len(b)
}

// Valid returns nil if body is exactly one JSON value, with white space around it, of at most MaxDepth levels.
func Valid(body []byte) error {
	s, err := New(body)
	if err != nil {
		return err
	}
	_, depth, err := s.Raw()
	if err != nil {
		return err
	}
	if depth > MaxDepth {
		return Fail(CodeTooDeep, 0, "", "nested deeper than 128 levels")
	}
	return s.End()
}

// Offset is the index of the next byte to be read.
func (s *Scanner) Offset() int { return s.pos }

// Peek skips white space and returns the kind of the value that begins there, without reading it.
func (s *Scanner) Peek() Kind {
	s.space()
	if s.pos == len(s.in) {
		return None
	}
	switch c := s.in[s.pos]; {
	case c == '{':
		return Object
	case c == '[':
		return Array
	case c == '"':
		return String
	case c == '-' || c >= '0' && c <= '9':
		return Number
	case c == 't' || c == 'f':
		return Bool
	case c == 'n':
		return Null
	}
	return None
}

// End fails unless only white space is left.
func (s *Scanner) End() error {
	s.space()
	if s.pos != len(s.in) {
		return s.syntax("unexpected data after the value")
	}
	return nil
}

// Raw checks the next value and returns its bytes as they are in the input, without the white space around it, and its depth: 0 for a scalar, one
// more for each level of arrays and objects. Whether that is too deep is the caller's to say, since one deep value need not spoil its neighbours.
func (s *Scanner) Raw() ([]byte, int, error) {
	s.space()
	start := s.pos
	depth, err := s.skip()
	if err != nil {
		return nil, 0, err
	}
	return s.in[start:s.pos:s.pos], depth, nil
}

func (s *Scanner) space() {
	for s.pos < len(s.in) {
		switch s.in[s.pos] {
		case ' ', '\n', '\r', '\t':
			s.pos++
		default:
			return
		}
	}
}

// stack remembers for each open level whether it is an object: one bit a level, so hostile nesting costs an eighth of its own bytes at most.
type stack struct {
	small   [MaxDepth / 64]uint64
	large   []uint64 // levels past MaxDepth
	depth   int
	deepest int
}

func (t *stack) word(level int) *uint64 {
	i := level >> 6
	if i < len(t.small) {
		return &t.small[i]
	}
	if i -= len(t.small); i == len(t.large) {
		t.large = append(t.large, 0)
	}
	return &t.large[i]
}

func (t *stack) push(object bool) {
	w, mask := t.word(t.depth), uint64(1)<<(t.depth&63)
	if object {
		*w |= mask
	} else {
		*w &^= mask
	}
	t.depth++
	t.deepest = max(t.deepest, t.depth)
}

func (t *stack) inObject() bool {
	d := t.depth - 1
	return *t.word(d)&(1<<(d&63)) != 0
}

// skip reads one value, iteratively, and returns how deep it is nested.
func (s *Scanner) skip() (int, error) {
	var open stack
	for {
		opened, err := s.begin(&open)
		if err != nil {
			return 0, err
		}
		if opened {
			continue // the first value of what was opened is next
		}
		more, err := s.next(&open)
		if err != nil || !more {
			return open.deepest, err
		}
	}
}

// begin reads a scalar, an empty container, or the opening of one that has a first value (then it returns true).
func (s *Scanner) begin(open *stack) (bool, error) {
	s.space()
	if s.pos == len(s.in) {
		return false, s.truncated()
	}
	switch c := s.in[s.pos]; c {
	case '{':
		return s.open(open, true, '}')
	case '[':
		return s.open(open, false, ']')
	case '"':
		return false, s.skipString()
	case 't':
		return false, s.literal("true")
	case 'f':
		return false, s.literal("false")
	case 'n':
		return false, s.literal("null")
	default:
		if c == '-' || c >= '0' && c <= '9' {
			return false, s.skipNumber()
		}
	}
	return false, s.syntax("a value is expected here")
}

func (s *Scanner) open(open *stack, object bool, end byte) (bool, error) {
	open.push(object)
	s.pos++
	s.space()
	if s.pos < len(s.in) && s.in[s.pos] == end {
		s.pos++
		open.depth--
		return false, nil
	}
	if object {
		return true, s.skipKey()
	}
	return true, nil
}

// next reads what follows a value: closings, then a comma (true: another value is next) or the end of the outermost value.
func (s *Scanner) next(open *stack) (bool, error) {
	for open.depth > 0 {
		s.space()
		if s.pos == len(s.in) {
			return false, s.truncated()
		}
		object := open.inObject()
		switch c := s.in[s.pos]; {
		case c == ',':
			s.pos++
			if object {
				return true, s.skipKey()
			}
			return true, nil
		case c == '}' && object, c == ']' && !object:
			s.pos++
			open.depth--
		default:
			return false, s.syntax("a comma or the end of an object or array is expected here")
		}
	}
	return false, nil
}

func (s *Scanner) skipKey() error {
	s.space()
	if s.pos == len(s.in) {
		return s.truncated()
	}
	if s.in[s.pos] != '"' {
		return s.syntax("a field name in quotes is expected here")
	}
	if err := s.skipString(); err != nil {
		return err
	}
	return s.colon()
}

func (s *Scanner) colon() error {
	s.space()
	if s.pos == len(s.in) {
		return s.truncated()
	}
	if s.in[s.pos] != ':' {
		return s.syntax("a colon is expected here")
	}
	s.pos++
	return nil
}

func (s *Scanner) literal(word string) error {
	rest := s.in[s.pos:]
	for i := range len(word) {
		if i == len(rest) {
			s.pos += i
			return s.truncated()
		}
		if rest[i] != word[i] {
			s.pos += i
			return s.syntax("a value is expected here")
		}
	}
	s.pos += len(word)
	return nil
}
