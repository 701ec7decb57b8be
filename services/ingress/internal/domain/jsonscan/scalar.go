package jsonscan

import (
	"encoding/binary"
	"math/bits"
)

func (s *Scanner) skipNumber() error {
	if s.in[s.pos] == '-' {
		s.pos++
	}
	switch first := s.at(); {
	case first == '0':
		s.pos++
	case first >= '1' && first <= '9':
		s.digits()
	default:
		return s.unexpected("a digit is expected here")
	}
	if s.at() == '.' {
		s.pos++
		if s.digits() == 0 {
			return s.unexpected("a digit is expected after the point")
		}
	}
	if c := s.at(); c == 'e' || c == 'E' {
		s.pos++
		if c := s.at(); c == '+' || c == '-' {
			s.pos++
		}
		if s.digits() == 0 {
			return s.unexpected("a digit is expected in the exponent")
		}
	}
	return nil
}

// at returns the next byte, or 0 at the end; a 0 in the input is no part of any number.
func (s *Scanner) at() byte {
	if s.pos < len(s.in) {
		return s.in[s.pos]
	}
	return 0
}

func (s *Scanner) digits() int {
	start := s.pos
	for s.pos < len(s.in) && s.in[s.pos]-'0' <= 9 {
		s.pos++
	}
	return s.pos - start
}

const (
	ones  = 0x0101010101010101
	highs = 0x8080808080808080
)

// special has a high bit set if one of the eight bytes of w is a quote, a backslash or below 0x20 (Hacker's Delight: zero-byte test). It may
// also mark bytes above a marked one wrongly, never below.
func special(w uint64) uint64 {
	quote := w ^ (ones * '"')
	back := w ^ (ones * '\\')
	return ((quote-ones)&^quote | (back-ones)&^back | (w-ones*0x20)&^w) & highs
}

// skipString reads a string that begins here. The body is known to be UTF-8, so only quotes, escapes and control characters matter.
func (s *Scanner) skipString() error {
	s.pos++
	for {
		s.plain()
		if s.pos >= len(s.in) {
			return s.truncated()
		}
		switch c := s.in[s.pos]; {
		case c == '"':
			s.pos++
			return nil
		case c == '\\':
			if err := s.skipEscape(); err != nil {
				return err
			}
		case c < 0x20:
			return s.syntax("a raw control character inside a string; it must be escaped")
		default:
			s.pos++ // one of the last bytes of the input
		}
	}
}

// plain moves over bytes that mean nothing inside a string, eight at a time.
func (s *Scanner) plain() {
	pos := s.pos
	for pos+8 <= len(s.in) {
		mark := special(binary.LittleEndian.Uint64(s.in[pos:]))
		if mark != 0 {
			pos += bits.TrailingZeros64(mark) >> 3 // the lowest mark is a true one
			break
		}
		pos += 8
	}
	s.pos = pos
}

func (s *Scanner) skipEscape() error {
	s.pos++
	if s.pos == len(s.in) {
		return s.truncated()
	}
	c := s.in[s.pos]
	switch c {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		s.pos++
		return nil
	case 'u':
	default:
		return s.syntax("an unknown escape in a string")
	}
	s.pos++
	for range 4 {
		if s.pos == len(s.in) {
			return s.truncated()
		}
		if _, ok := hex(s.in[s.pos]); !ok {
			return s.syntax("four hexadecimal digits are expected in the escape")
		}
		s.pos++
	}
	return nil
}

func hex(c byte) (rune, bool) {
	switch {
	case c >= '0' && c <= '9':
		return rune(c - '0'), true
	case c >= 'a' && c <= 'f':
		return rune(c-'a') + 10, true
	case c >= 'A' && c <= 'F':
		return rune(c-'A') + 10, true
	}
	return 0, false
}
