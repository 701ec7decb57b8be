package handshake

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"io"

	"postrider.dev/services/meshhint/internal/mesh/frame"
)

// ErrForged is the error of a frame that its sender did not send, or not as this one of the stream: it was made up, altered, repeated, left out or moved.
// The connection is of no use any more.
var ErrForged = errors.New("frame is not the sender's next one")

// session authenticates the frames of one connection in one direction. Behind each frame there is the MAC of its number in the stream and of all its
// bytes; the length does not count it. Without a key there is none.
type session struct {
	mac    hash.Hash // nil in an open mesh
	number uint64
}

func newSession(key []byte) session {
	if key == nil {
		return session{}
	}
	return session{mac: hmac.New(sha256.New, key)}
}

// next returns the MAC of the bytes of the next frame.
func (s *session) next(bytes []byte) []byte {
	var number [8]byte
	binary.BigEndian.PutUint64(number[:], s.number)
	s.number++
	s.mac.Reset()
	s.mac.Write(number[:])
	s.mac.Write(bytes)
	return s.mac.Sum(nil)
}

// Sealer makes a connection's frames. It is not safe for concurrent use.
type Sealer struct{ session session }

// Append writes the next frame of the connection behind b.
func (s *Sealer) Append(b []byte, f frame.Frame) []byte {
	begin := len(b)
	b = f.Append(b)
	if s.session.mac == nil {
		return b
	}
	return append(b, s.session.next(b[begin:])...)
}

// Opener takes a connection's frames. It is not safe for concurrent use.
type Opener struct{ session session }

// Read takes the next frame. It returns ErrForged, and nothing of the frame, unless the frame is the next one that the sender sealed.
func (o *Opener) Read(r io.Reader) (frame.Frame, error) {
	f, err := frame.Read(r, frame.MaxLength)
	if err != nil || o.session.mac == nil {
		return f, err
	}
	var said [sha256.Size]byte
	if _, err := io.ReadFull(r, said[:]); err != nil {
		return frame.Frame{}, fmt.Errorf("read MAC: %w", err)
	}
	if !hmac.Equal(said[:], o.session.next(f.Append(nil))) {
		return frame.Frame{}, ErrForged
	}
	return f, nil
}
