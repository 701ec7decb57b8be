package message

import "encoding/binary"

// frameVersion is the first byte of a frame. A reader refuses what it does not know.
const frameVersion = 1

// AppendFrame appends the stored form of m: version, partition, client id, content type and headers, and the payload to the end.
func AppendFrame(dst []byte, m *Message) []byte {
	dst = append(dst, frameVersion)
	dst = appendText(dst, m.Partition)
	dst = appendText(dst, m.ClientID)
	dst = AppendMeta(dst, m)
	return append(dst, m.Payload...)
}

// FrameSize is the number of bytes AppendFrame appends.
func FrameSize(m *Message) int {
	n := 1 + textSize(m.Partition) + textSize(m.ClientID) + textSize(m.ContentType) + uvarintSize(len(m.Headers)) + len(m.Payload)
	for _, h := range m.Headers {
		n += textSize(h.Name) + textSize(h.Value)
	}
	return n
}

// ParseFrame reads what AppendFrame wrote. The payload aliases b; the strings are copies.
func ParseFrame(b []byte) (Message, error) {
	var m Message
	var ok bool
	if len(b) == 0 || b[0] != frameVersion {
		return Message{}, ErrCorrupt
	}
	if m.Partition, b, ok = text(b[1:]); !ok {
		return Message{}, ErrCorrupt
	}
	if m.ClientID, b, ok = text(b); !ok {
		return Message{}, ErrCorrupt
	}
	b, err := ParseMeta(b, &m)
	if err != nil {
		return Message{}, err
	}
	m.Payload = b
	return m, nil
}

// FramePartition reads the partition's name alone, aliasing b, to tell apart names that share a hash.
func FramePartition(b []byte) ([]byte, error) {
	if len(b) == 0 || b[0] != frameVersion {
		return nil, ErrCorrupt
	}
	size, n := binary.Uvarint(b[1:])
	if n <= 0 || size > uint64(len(b)-1-n) {
		return nil, ErrCorrupt
	}
	return b[1+n : 1+n+int(size)], nil
}

func textSize(s string) int { return uvarintSize(len(s)) + len(s) }

func uvarintSize(n int) int {
	size := 1
	for n >= 0x80 {
		n >>= 7
		size++
	}
	return size
}
