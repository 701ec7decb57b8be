// Package frame is the wire format of the mesh: what a frame is, and how hints become frames and frames hints.
//
//	u32 BE length | u8 tag | JSON object
//
// The length counts the tag and the payload. A length beyond MaxLength is refused before anything is allocated for it, and what is allocated grows with
// the bytes that came, not with those that were announced. A tag or a field that is not known is ignored and counted: it is a newer sidecar's.
package frame

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// Tag says what a frame is. 50 to 59 are kept for replication; who gets one today ignores it.
type Tag uint8

// The frame set.
const (
	MessageAvailable      Tag = 1
	MessageAvailableBatch Tag = 2
	Heartbeat             Tag = 3
	Hello                 Tag = 4
	HotlistDirtyBatch     Tag = 5
	Challenge             Tag = 6
	QueueConfigSet        Tag = 10
	QueueConfigDelete     Tag = 11
	RegistryChanged       Tag = 12
	EverythingChanged     Tag = 13
	MaintenanceChanged    Tag = 40
	PopMaintenanceChanged Tag = 41
)

// MaxLength bounds the length of a frame.
const MaxLength = 16 << 20

const (
	lengthBytes = 4
	// trusted is how much of an announced length is allocated at once.
	trusted = 64 << 10
)

// Errors of Read. Both mean that the connection is of no use any more: where the next frame begins is not known.
var (
	ErrTooLong = errors.New("frame is too long")
	ErrNoTag   = errors.New("frame has no tag")
)

// Frame is one unit of the wire.
type Frame struct {
	Tag     Tag
	Payload []byte
}

// Append writes f behind b. The payload MUST be shorter than MaxLength.
func (f Frame) Append(b []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(1+len(f.Payload)))
	b = append(b, byte(f.Tag))
	return append(b, f.Payload...)
}

// Read takes one frame from r. limit bounds its length. An io.EOF says that the sender ended between two frames, io.ErrUnexpectedEOF that it did so within
// one.
func Read(r io.Reader, limit uint32) (Frame, error) {
	var head [lengthBytes]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return Frame{}, err
	}
	length := binary.BigEndian.Uint32(head[:])
	switch {
	case length == 0:
		return Frame{}, ErrNoTag
	case length > limit:
		return Frame{}, fmt.Errorf("%w: %d bytes, at most %d", ErrTooLong, length, limit)
	}
	body, err := readBody(r, int(length))
	if err != nil {
		return Frame{}, err
	}
	return Frame{Tag: Tag(body[0]), Payload: body[1:]}, nil
}

func readBody(r io.Reader, length int) ([]byte, error) {
	if length <= trusted {
		body := make([]byte, length)
		_, err := io.ReadFull(r, body)
		return body, cutOff(err)
	}
	var body bytes.Buffer
	body.Grow(trusted)
	_, err := io.CopyN(&body, r, int64(length))
	return body.Bytes(), cutOff(err)
}

// cutOff makes an end within a frame what it is.
func cutOff(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
