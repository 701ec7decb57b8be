package seal

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
)

// ErrNoMaster says that the master key which wrapped a key is not configured here, or is another one under the same id.
var ErrNoMaster = errors.New("the master key is not configured")

// maxMasterID bounds the id of a master key.
const maxMasterID = 64

// Masters are the configured master keys. The first wraps, all unwrap.
type Masters struct{ list []master }

type master struct {
	id     string
	secret []byte
}

// ParseMasters reads "id:base64,id:base64". Ids are unique, 1 to 64 letters, digits, ".", "_" or "-"; keys are 32 bytes, in either base64 alphabet. Errors
// name ids and never show a key.
func ParseMasters(text string) (Masters, error) {
	var m Masters
	if text == "" {
		return m, nil
	}
	for i, one := range strings.Split(text, ",") {
		id, encoded, ok := strings.Cut(strings.TrimSpace(one), ":")
		if !ok {
			return Masters{}, fmt.Errorf("key %d is not written as id:base64", i+1)
		}
		if !validID(id) {
			return Masters{}, fmt.Errorf("key %d: the id must be 1 to %d letters, digits, '.', '_' or '-'", i+1, maxMasterID)
		}
		if m.find(id) != nil {
			return Masters{}, fmt.Errorf("the id %q is given twice", id)
		}
		secret, err := decode(encoded)
		if err != nil {
			return Masters{}, fmt.Errorf("key %q is no base64", id)
		}
		if len(secret) != KeyBytes {
			return Masters{}, fmt.Errorf("key %q has %d bytes, must have %d", id, len(secret), KeyBytes)
		}
		m.list = append(m.list, master{id, secret})
	}
	return m, nil
}

func validID(id string) bool {
	letter := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '_' || r == '-'
	}
	return id != "" && len(id) <= maxMasterID && strings.IndexFunc(id, func(r rune) bool { return !letter(r) }) < 0
}

func decode(text string) ([]byte, error) {
	text = strings.NewReplacer("-", "+", "_", "/").Replace(strings.TrimRight(text, "="))
	return base64.RawStdEncoding.DecodeString(text)
}

func (m Masters) find(id string) *master {
	for i := range m.list {
		if m.list[i].id == id {
			return &m.list[i]
		}
	}
	return nil
}

// Any reports whether there is a master key.
func (m Masters) Any() bool { return len(m.list) > 0 }

// IDs are those of all keys, the first one's first.
func (m Masters) IDs() []string {
	ids := make([]string, len(m.list))
	for i := range m.list {
		ids[i] = m.list[i].id
	}
	return ids
}

// First is the id of the key that wraps; empty if there is none.
func (m Masters) First() string {
	if !m.Any() {
		return ""
	}
	return m.list[0].id
}

// Wrapped is a key of a queue as it is stored.
type Wrapped struct {
	Queue   int64
	ID      int32
	Purpose string // what the key is for
	Master  string // the id of the master key that wrapped it
	Bytes   []byte
}

// Wrap encrypts the secret of the key that w names with the first master key, and fills in the rest of w.
func (m Masters) Wrap(w *Wrapped, secret []byte) error {
	if !m.Any() {
		return ErrNoMaster
	}
	w.Master = m.list[0].id
	w.Bytes = newCipher(m.list[0].secret).Seal(nil, nil, secret, w.place()) //nolint:gosec // the cipher draws the nonce
	return nil
}

// Unwrap returns the secret of a key. The error matches ErrNoMaster.
func (m Masters) Unwrap(w Wrapped) ([]byte, error) {
	by := m.find(w.Master)
	if by == nil {
		return nil, fmt.Errorf("key %d needs the master key %q: %w", w.ID, w.Master, ErrNoMaster)
	}
	secret, err := newCipher(by.secret).Open(nil, nil, w.Bytes, w.place())
	if err != nil {
		return nil, fmt.Errorf("key %d was wrapped by another master key %q: %w", w.ID, w.Master, ErrNoMaster)
	}
	return secret, nil
}

func (w *Wrapped) place() []byte {
	b := binary.BigEndian.AppendUint64([]byte("postrider key"), uint64(w.Queue))
	b = binary.BigEndian.AppendUint32(b, uint32(w.ID))
	b = append(b, byte(len(w.Purpose)))
	return append(append(b, w.Purpose...), w.Master...)
}
