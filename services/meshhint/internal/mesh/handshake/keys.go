package handshake

import (
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
)

// Labels keep apart what is derived from one secret.
const (
	labelSession  = "postrider mesh v1 session"
	labelAuth     = "postrider mesh v1 handshake"
	labelDialler  = "dialler"
	labelListener = "listener"
)

// transcript is what both sides know at the end of the handshake.
type transcript struct {
	listener, dialler               Identity
	listenerVersion, diallerVersion int
	listenerNonce, diallerNonce     []byte
	binding                         []byte
}

// bytes are the same for two transcripts if they say the same: every part is preceded by its length.
func (t transcript) bytes() []byte {
	var b []byte
	for _, part := range [][]byte{
		number(t.listenerVersion), []byte(t.listener.ServerID), []byte(t.listener.Host), t.listenerNonce,
		number(t.diallerVersion), []byte(t.dialler.ServerID), []byte(t.dialler.Host), t.diallerNonce, t.binding,
	} {
		b = binary.BigEndian.AppendUint32(b, uint32(len(part)))
		b = append(b, part...)
	}
	return b
}

func number(v int) []byte { return binary.BigEndian.AppendUint64(nil, uint64(v)) }

// keys are what the secret and the transcript give. In an open mesh all are empty.
type keys struct {
	dialler, listener []byte // the MAC that each side has to say
	session           []byte
}

func deriveKeys(secret Secret, t transcript) keys {
	if len(secret) == 0 {
		return keys{}
	}
	facts := t.bytes()
	auth := derive(secret, nil, labelAuth)
	return keys{
		dialler:  mac(auth, labelDialler, facts),
		listener: mac(auth, labelListener, facts),
		session:  derive(secret, append(append([]byte{}, t.listenerNonce...), t.diallerNonce...), labelSession+string(facts)),
	}
}

// verify compares in constant time. In an open mesh nothing is to be proven; a MAC that somebody says nevertheless proves that he has a secret, and is
// refused, so that both sides agree on what they are.
func (keys) verify(want []byte, said string) bool {
	got, err := hex.DecodeString(said)
	return err == nil && hmac.Equal(want, got)
}

func derive(secret, salt []byte, label string) []byte {
	key, err := hkdf.Key(sha256.New, secret, salt, label, sha256.Size)
	if err != nil {
		panic(err) // only a length that SHA-256 cannot give
	}
	return key
}

func mac(key []byte, label string, facts []byte) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(label))
	h.Write(facts)
	return h.Sum(nil)
}
