// Package handshake is how two sidecars get to know one another, once a connection, before any other frame.
//
//	listener ── CHALLENGE {version, server_id, host, nonce} ──▶ dialler
//	dialler  ── HELLO     {version, server_id, host, nonce, mac} ──▶ listener
//	listener ── HELLO     {version, server_id, host, mac} ──▶ dialler          from here on the dialler alone sends
//
// Both MACs are over both versions, both ids, both hosts, both nonces and the TLS channel, where there is one; each side's has its own label. The nonces
// are fresh, so a captured handshake is of no use. The session key comes from the secret and the same facts; it authenticates each later frame with its
// place in the stream (Seal, Open).
//
// Without a secret the mesh is open: the same frames without MACs, which tell the ids and prove nothing. A side that has a secret refuses one that has
// none.
package handshake

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"

	"postrider.dev/services/meshhint/internal/mesh/frame"
)

// Version is what this package speaks. A newer one is spoken with as with this one: what it adds, this one ignores.
const Version = 1

const (
	// maxLength bounds the frames of a handshake: whoever is not known yet is not trusted with memory.
	maxLength  = 4 << 10
	nonceBytes = 32
	maxText    = 255
)

// Errors of a handshake that the other side is to blame for.
var (
	ErrSecret    = errors.New("the other side does not share the secret")
	ErrMalformed = errors.New("the other side does not speak the mesh")
	ErrVersion   = errors.New("the other side speaks no version of the mesh")
)

// Identity is what a sidecar says of itself.
type Identity struct {
	// ServerID is another at each start of a sidecar.
	ServerID string
	Host     string
}

// Secret is what the sidecars of a fleet share; empty means open.
type Secret []byte

type challenge struct {
	Version  int    `json:"version"`
	ServerID string `json:"server_id"`
	Host     string `json:"host"`
	Nonce    string `json:"nonce"`
}

type hello struct {
	Version  int    `json:"version"`
	ServerID string `json:"server_id"`
	Host     string `json:"host"`
	Nonce    string `json:"nonce,omitempty"`
	MAC      string `json:"mac,omitempty"`
}

// Accept is the listener's side. binding names the TLS channel. The returned Opener takes the frames that follow.
//
// An io.EOF means that the dialler left without a word.
func Accept(conn io.ReadWriter, self Identity, secret Secret, binding []byte) (Identity, *Opener, error) {
	t := transcript{listener: self, listenerVersion: Version, listenerNonce: newNonce(), binding: binding}
	if err := send(conn, frame.Challenge, challenge{
		Version: Version, ServerID: self.ServerID, Host: self.Host, Nonce: hex.EncodeToString(t.listenerNonce),
	}); err != nil {
		return Identity{}, nil, err
	}
	var h hello
	if err := receive(conn, frame.Hello, &h); err != nil {
		return Identity{}, nil, err
	}
	var err error
	t.dialler, t.diallerVersion = Identity{ServerID: h.ServerID, Host: h.Host}, h.Version
	if t.diallerNonce, err = checkIntroduction(h.Version, t.dialler, h.Nonce); err != nil {
		return Identity{}, nil, err
	}
	k := deriveKeys(secret, t)
	if !k.verify(k.dialler, h.MAC) {
		return Identity{}, nil, ErrSecret
	}
	if err := send(conn, frame.Hello, hello{Version: Version, ServerID: self.ServerID, Host: self.Host, MAC: hex.EncodeToString(k.listener)}); err != nil {
		return Identity{}, nil, err
	}
	return t.dialler, &Opener{session: newSession(k.session)}, nil
}

// Dial is the dialler's side. admit is asked once the listener's name is known and before anything is said to it; its error ends the handshake and is
// returned. The returned Sealer is for the frames that follow.
func Dial(conn io.ReadWriter, self Identity, secret Secret, binding []byte, admit func(Identity) error) (Identity, *Sealer, error) {
	var c challenge
	if err := receive(conn, frame.Challenge, &c); err != nil {
		return Identity{}, nil, err
	}
	t := transcript{
		listener: Identity{ServerID: c.ServerID, Host: c.Host}, listenerVersion: c.Version,
		dialler: self, diallerVersion: Version, diallerNonce: newNonce(), binding: binding,
	}
	var err error
	if t.listenerNonce, err = checkIntroduction(c.Version, t.listener, c.Nonce); err != nil {
		return Identity{}, nil, err
	}
	if err := admit(t.listener); err != nil {
		return t.listener, nil, err
	}
	k := deriveKeys(secret, t)
	if err := send(conn, frame.Hello, hello{
		Version: Version, ServerID: self.ServerID, Host: self.Host, Nonce: hex.EncodeToString(t.diallerNonce), MAC: hex.EncodeToString(k.dialler),
	}); err != nil {
		return t.listener, nil, err
	}
	var h hello
	if err := receive(conn, frame.Hello, &h); err != nil {
		return t.listener, nil, err
	}
	if h.ServerID != c.ServerID || !k.verify(k.listener, h.MAC) {
		return t.listener, nil, ErrSecret
	}
	return t.listener, &Sealer{session: newSession(k.session)}, nil
}

// checkIntroduction returns the nonce.
func checkIntroduction(version int, id Identity, nonce string) ([]byte, error) {
	if version < 1 {
		return nil, fmt.Errorf("%w: %d", ErrVersion, version)
	}
	for _, s := range []string{id.ServerID, id.Host} {
		if s == "" || len(s) > maxText || !utf8.ValidString(s) {
			return nil, fmt.Errorf("%w: it has no name", ErrMalformed)
		}
	}
	b, err := hex.DecodeString(nonce)
	if err != nil || len(b) != nonceBytes {
		return nil, fmt.Errorf("%w: its nonce is none", ErrMalformed)
	}
	return b, nil
}

func newNonce() []byte {
	b := make([]byte, nonceBytes)
	_, _ = rand.Read(b) // never fails
	return b
}

func send(w io.Writer, tag frame.Tag, payload any) error {
	b, err := json.Marshal(payload)
	if err != nil {
		return fmt.Errorf("encode handshake: %w", err)
	}
	if _, err := w.Write(frame.Frame{Tag: tag, Payload: b}.Append(nil)); err != nil {
		return fmt.Errorf("send handshake: %w", err)
	}
	return nil
}

// receive takes the one frame that may come now.
func receive(r io.Reader, want frame.Tag, into any) error {
	f, err := frame.Read(r, maxLength)
	switch {
	case errors.Is(err, frame.ErrTooLong), errors.Is(err, frame.ErrNoTag):
		return fmt.Errorf("%w: %w", ErrMalformed, err)
	case err != nil:
		return fmt.Errorf("read handshake: %w", err)
	case f.Tag != want:
		return fmt.Errorf("%w: frame %d instead of %d", ErrMalformed, f.Tag, want)
	}
	if err := json.Unmarshal(f.Payload, into); err != nil {
		return fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	return nil
}
