package message

import (
	"encoding/binary"
	"errors"
)

// ErrCorrupt says that stored bytes are not what this code wrote.
var ErrCorrupt = errors.New("corrupt message bytes")

// MaxHeaders bounds how many headers a decoder accepts; the rule for producers is narrower.
const MaxHeaders = 1 << 10

// AppendMeta appends content type and headers, for where a message is kept as columns (dead letters).
func AppendMeta(dst []byte, m *Message) []byte {
	dst = appendText(dst, m.ContentType)
	dst = binary.AppendUvarint(dst, uint64(len(m.Headers)))
	for _, h := range m.Headers {
		dst = appendText(dst, h.Name)
		dst = appendText(dst, h.Value)
	}
	return dst
}

// ParseMeta reads what AppendMeta wrote into m and returns what follows it. Strings are copies.
func ParseMeta(b []byte, m *Message) ([]byte, error) {
	var ok bool
	if m.ContentType, b, ok = text(b); !ok {
		return nil, ErrCorrupt
	}
	count, n := binary.Uvarint(b)
	if n <= 0 || count > MaxHeaders || count > uint64(len(b)) {
		return nil, ErrCorrupt
	}
	b, m.Headers = b[n:], nil
	if count > 0 {
		m.Headers = make([]Header, count)
	}
	for i := range m.Headers {
		if m.Headers[i].Name, b, ok = text(b); !ok {
			return nil, ErrCorrupt
		}
		if m.Headers[i].Value, b, ok = text(b); !ok {
			return nil, ErrCorrupt
		}
	}
	return b, nil
}

func appendText(dst []byte, s string) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(s))), s...)
}

func text(b []byte) (s string, rest []byte, ok bool) {
	size, n := binary.Uvarint(b)
	if n <= 0 || size > uint64(len(b)-n) {
		return "", nil, false
	}
	return string(b[n : n+int(size)]), b[n+int(size):], true
}
