package handshake_test

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"postrider.dev/services/meshhint/internal/mesh/frame"
	"postrider.dev/services/meshhint/internal/mesh/handshake"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const secret = "sixteen bytes and more"

func listener() handshake.Identity {
	return handshake.Identity{ServerID: "listener-id", Host: "host-l"}
}

func dialler() handshake.Identity { return handshake.Identity{ServerID: "dialler-id", Host: "host-d"} }

func anybody(handshake.Identity) error { return nil }

// side is one side's result.
type side struct {
	peer   handshake.Identity
	opener *handshake.Opener
	sealer *handshake.Sealer
	err    error
}

// meet runs both sides over a pipe. between, unless nil, changes each frame on its way; it is told who sent it.
func meet(t *testing.T, l, d handshake.Secret, bindL, bindD string, between func(from string, f *frame.Frame)) (listening, dialling side) {
	t.Helper()
	la, lb := net.Pipe()
	da, db := net.Pipe()
	done := make(chan side, 2)
	go func() {
		var s side
		s.peer, s.opener, s.err = handshake.Accept(la, listener(), l, []byte(bindL))
		_ = la.Close()
		done <- s
	}()
	go carry(lb, db, "listener", between)
	carried := make(chan struct{})
	go func() { carry(db, lb, "dialler", between); close(carried) }()
	dialling.peer, dialling.sealer, dialling.err = handshake.Dial(da, dialler(), d, []byte(bindD), anybody)
	_ = da.Close()
	listening = <-done
	<-carried
	return listening, dialling
}

func carry(from, to net.Conn, who string, change func(string, *frame.Frame)) {
	defer from.Close() //nolint:errcheck // the test ends
	defer to.Close()   //nolint:errcheck // the test ends
	for {
		f, err := frame.Read(from, frame.MaxLength)
		if err != nil {
			return
		}
		if change != nil {
			change(who, &f)
		}
		if _, err := to.Write(f.Append(nil)); err != nil {
			return
		}
	}
}

func TestWhoSharesTheSecretGetsToKnowTheOther(t *testing.T) {
	t.Parallel()
	for name, s := range map[string]handshake.Secret{"a secret": handshake.Secret(secret), "an open mesh": nil} {
		l, d := meet(t, s, s, "", "", nil)

		require.NoError(t, l.err, name)
		require.NoError(t, d.err, name)
		require.Equal(t, dialler(), l.peer, name)
		require.Equal(t, listener(), d.peer, name)
	}
}

func TestWhoHasAnotherSecretOrNoneIsRefused(t *testing.T) {
	t.Parallel()
	for name, s := range map[string][2]handshake.Secret{
		"another":            {handshake.Secret(secret), handshake.Secret("another secret of the fleet")},
		"none of a dialler":  {handshake.Secret(secret), nil},
		"none of a listener": {nil, handshake.Secret(secret)},
	} {
		l, d := meet(t, s[0], s[1], "", "", nil)

		require.ErrorIs(t, l.err, handshake.ErrSecret, name)
		require.Error(t, d.err, name)
		require.Nil(t, l.opener, name)
		require.Nil(t, d.sealer, name)
	}
}

func TestAListenerThatCannotProveItselfGetsNoFrames(t *testing.T) {
	t.Parallel()
	theirs, ours := net.Pipe()
	go func() { // it accepts whatever it is told
		_, _ = theirs.Write(encode(frame.Challenge, map[string]any{"version": 1, "server_id": "x", "host": "h", "nonce": strings.Repeat("00", 32)}))
		_, _ = frame.Read(theirs, frame.MaxLength)
		_, _ = theirs.Write(encode(frame.Hello, map[string]any{"version": 1, "server_id": "x", "host": "h", "mac": strings.Repeat("00", 32)}))
		_ = theirs.Close()
	}()

	_, sealer, err := handshake.Dial(ours, dialler(), handshake.Secret(secret), nil, anybody)

	require.ErrorIs(t, err, handshake.ErrSecret)
	require.Nil(t, sealer)
}

func TestAHandshakeOfAnotherTLSChannelIsRefused(t *testing.T) {
	t.Parallel()
	l, d := meet(t, handshake.Secret(secret), handshake.Secret(secret), "channel 1", "channel 2", nil)

	require.ErrorIs(t, l.err, handshake.ErrSecret)
	require.Error(t, d.err)
}

func TestWhatIsSaidInAHandshakeCannotBeAltered(t *testing.T) {
	t.Parallel()
	for _, who := range []string{"listener", "dialler"} {
		for field, value := range map[string]any{
			"server_id": "somebody", "host": "elsewhere", "nonce": strings.Repeat("ab", 32), "version": 7, "mac": strings.Repeat("ab", 32),
		} {
			changed := false
			l, d := meet(t, handshake.Secret(secret), handshake.Secret(secret), "", "", func(from string, f *frame.Frame) {
				said := map[string]any{}
				require.NoError(t, json.Unmarshal(f.Payload, &said))
				if _, ok := said[field]; !ok || from != who || changed {
					return
				}
				changed, said[field] = true, value
				f.Payload, _ = json.Marshal(said)
			})

			require.True(t, changed, "%s of the %s", field, who)
			require.Error(t, errors.Join(l.err, d.err), "%s of the %s", field, who)
			require.Nil(t, d.sealer, "%s of the %s", field, who)
		}
	}
}

// recorded is a connection of which what was written to it is kept.
type recorded struct {
	io.ReadWriter

	written bytes.Buffer
}

func (r *recorded) Write(b []byte) (int, error) {
	r.written.Write(b)
	return r.ReadWriter.Write(b)
}

func TestACapturedHelloIsOfNoUse(t *testing.T) {
	t.Parallel()
	theirs, ours := net.Pipe()
	go func() { _, _, _ = handshake.Accept(theirs, listener(), handshake.Secret(secret), nil) }()
	tap := &recorded{ReadWriter: ours}
	_, _, err := handshake.Dial(tap, dialler(), handshake.Secret(secret), nil, anybody)
	require.NoError(t, err)

	_, opener, err := handshake.Accept(&script{in: bytes.NewReader(tap.written.Bytes())}, listener(), handshake.Secret(secret), nil)

	require.ErrorIs(t, err, handshake.ErrSecret)
	require.Nil(t, opener)
}

// script says what it has to whatever it is told.
type script struct{ in io.Reader }

func (s *script) Read(b []byte) (int, error) { return s.in.Read(b) }
func (*script) Write(b []byte) (int, error)  { return len(b), nil }

func encode(tag frame.Tag, payload any) []byte {
	b, err := json.Marshal(payload)
	if err != nil {
		panic(err)
	}
	return frame.Frame{Tag: tag, Payload: b}.Append(nil)
}

func TestWhatIsNoHandshakeIsRefusedWithoutMemoryForIt(t *testing.T) {
	t.Parallel()
	good := map[string]any{"version": 1, "server_id": "x", "host": "h", "nonce": strings.Repeat("00", 32)}
	with := func(field string, value any) []byte {
		changed := map[string]any{}
		for k, v := range good {
			changed[k] = v
		}
		changed[field] = value
		return encode(frame.Hello, changed)
	}
	for name, c := range map[string]struct {
		bytes []byte
		want  error
	}{
		"four gigabytes":    {[]byte{0xff, 0xff, 0xff, 0xff, 4}, handshake.ErrMalformed},
		"too long":          {encode(frame.Hello, strings.Repeat("x", 5000)), handshake.ErrMalformed},
		"no length":         {[]byte{0, 0, 0, 0}, handshake.ErrMalformed},
		"another frame":     {encode(frame.MessageAvailable, good), handshake.ErrMalformed},
		"a web browser":     {[]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), handshake.ErrMalformed},
		"no JSON":           {frame.Frame{Tag: frame.Hello, Payload: []byte("hi")}.Append(nil), handshake.ErrMalformed},
		"no id":             {with("server_id", ""), handshake.ErrMalformed},
		"a long host":       {with("host", strings.Repeat("h", 256)), handshake.ErrMalformed},
		"a short nonce":     {with("nonce", "00"), handshake.ErrMalformed},
		"no nonce":          {with("nonce", strings.Repeat("zz", 32)), handshake.ErrMalformed},
		"no version":        {with("version", 0), handshake.ErrVersion},
		"no mac":            {encode(frame.Hello, good), handshake.ErrSecret},
		"cut off":           {with("version", 1)[:20], io.ErrUnexpectedEOF},
		"nothing":           {nil, io.EOF},
		"a mac of the open": {with("mac", ""), handshake.ErrSecret},
	} {
		_, opener, err := handshake.Accept(&script{in: bytes.NewReader(c.bytes)}, listener(), handshake.Secret(secret), nil)
		require.ErrorIs(t, err, c.want, name)
		require.Nil(t, opener, name)
	}
}

func TestALaterVersionIsSpokenWithAndItsFieldsAreIgnored(t *testing.T) {
	t.Parallel()
	_, opener, err := handshake.Accept(&script{in: bytes.NewReader(encode(frame.Hello, map[string]any{
		"version": 2, "server_id": "x", "host": "h", "nonce": strings.Repeat("00", 32), "colour": "red",
	}))}, listener(), nil, nil)

	require.NoError(t, err)
	require.NotNil(t, opener)
}

func TestWhoIsNotWantedIsToldNothing(t *testing.T) {
	t.Parallel()
	unwanted := errors.New("unwanted")
	tap := &recorded{ReadWriter: &script{in: bytes.NewReader(encode(frame.Challenge, map[string]any{
		"version": 1, "server_id": "x", "host": "h", "nonce": strings.Repeat("00", 32),
	}))}}

	id, _, err := handshake.Dial(tap, dialler(), handshake.Secret(secret), nil, func(handshake.Identity) error { return unwanted })

	require.ErrorIs(t, err, unwanted)
	require.Equal(t, "x", id.ServerID)
	require.Zero(t, tap.written.Len())
}

// session returns the two ends of a connection after its handshake.
func session(t *testing.T) (*handshake.Sealer, *handshake.Opener) {
	t.Helper()
	l, d := meet(t, handshake.Secret(secret), handshake.Secret(secret), "", "", nil)
	require.NoError(t, errors.Join(l.err, d.err))
	return d.sealer, l.opener
}

func TestAnySequenceOfSealedFramesIsOpened(t *testing.T) {
	t.Parallel()
	sealer, opener := session(t)
	rapid.Check(t, func(t *rapid.T) {
		frames := rapid.SliceOf(rapid.Custom(func(t *rapid.T) frame.Frame {
			return frame.Frame{Tag: frame.Tag(rapid.Byte().Draw(t, "tag")), Payload: rapid.SliceOf(rapid.Byte()).Draw(t, "payload")}
		})).Draw(t, "frames")
		var wire []byte
		for _, f := range frames {
			wire = sealer.Append(wire, f)
		}
		in := bytes.NewReader(wire)
		for _, want := range frames {
			got, err := opener.Read(in)
			if err != nil || got.Tag != want.Tag || !bytes.Equal(got.Payload, want.Payload) {
				t.Fatalf("%v: got %v, not %v", err, got, want)
			}
		}
		if in.Len() > 0 {
			t.Fatalf("%d bytes are left", in.Len())
		}
	})
}

func flip() frame.Frame { return frame.Frame{Tag: frame.MaintenanceChanged, Payload: []byte(`{}`)} }
func wake() frame.Frame {
	return frame.Frame{Tag: frame.MessageAvailable, Payload: []byte(`{"queue":"q"}`)}
}

// openAll returns how many frames were taken before the connection was given up, and why it was.
func openAll(opener *handshake.Opener, wire []byte) (taken int, err error) {
	for in := bytes.NewReader(wire); ; taken++ {
		if _, err := opener.Read(in); err != nil {
			return taken, err
		}
	}
}

func TestAFrameIsNeitherInjectedNorRepeatedNorMovedNorLeftOut(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		wire  func(one, two, three []byte) [][]byte
		taken int
	}{
		"injected without a MAC":      {func(one, _, _ []byte) [][]byte { return [][]byte{one, flip().Append(nil), make([]byte, 32)} }, 1},
		"injected with another's MAC": {func(one, two, _ []byte) [][]byte { return [][]byte{one, flip().Append(nil), two[len(two)-32:]} }, 1},
		"repeated":                    {func(one, _, _ []byte) [][]byte { return [][]byte{one, one} }, 1},
		"reordered":                   {func(one, two, three []byte) [][]byte { return [][]byte{one, three, two} }, 1},
		"left out":                    {func(one, _, three []byte) [][]byte { return [][]byte{one, three} }, 1},
		"begun anew":                  {func(one, two, three []byte) [][]byte { return [][]byte{one, two, three, one} }, 3},
	} {
		sealer, opener := session(t)
		one, two, three := sealer.Append(nil, wake()), sealer.Append(nil, wake()), sealer.Append(nil, flip())

		taken, err := openAll(opener, bytes.Join(c.wire(one, two, three), nil))

		require.ErrorIs(t, err, handshake.ErrForged, name)
		require.Equal(t, c.taken, taken, name)
	}
}

func TestNoByteOfAFrameCanBeAltered(t *testing.T) {
	t.Parallel()
	sealer, _ := session(t)
	length := len(sealer.Append(nil, wake()))
	for i := range length {
		sealer, opener := session(t)
		wire := append(sealer.Append(nil, wake()), sealer.Append(nil, wake())...)
		wire[i] ^= 1

		taken, err := openAll(opener, wire)

		require.Error(t, err, "byte %d", i)
		require.NotErrorIs(t, err, io.EOF, "byte %d", i)
		require.Zero(t, taken, "byte %d", i)
	}
}

func TestAFrameOfAnotherConnectionIsForged(t *testing.T) {
	t.Parallel()
	sealer, _ := session(t)
	_, opener := session(t)

	_, err := openAll(opener, sealer.Append(nil, wake()))

	require.ErrorIs(t, err, handshake.ErrForged)
}

func FuzzAccept(f *testing.F) {
	f.Add(encode(frame.Hello, map[string]any{"version": 1, "server_id": "x", "host": "h", "nonce": strings.Repeat("00", 32), "mac": hex.EncodeToString(make([]byte, 32))}))
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 4})
	f.Fuzz(func(t *testing.T, said []byte) {
		if _, opener, err := handshake.Accept(&script{in: bytes.NewReader(said)}, listener(), handshake.Secret(secret), nil); err == nil || opener != nil {
			t.Fatalf("%q was taken for a peer", said)
		}
		_, _, _ = handshake.Accept(&script{in: bytes.NewReader(said)}, listener(), nil, nil) // nothing is proven there; it must not fail otherwise
	})
}

func FuzzDial(f *testing.F) {
	f.Add(append(encode(frame.Challenge, map[string]any{"version": 1, "server_id": "x", "host": "h", "nonce": strings.Repeat("00", 32)}),
		encode(frame.Hello, map[string]any{"version": 1, "server_id": "x", "host": "h", "mac": hex.EncodeToString(make([]byte, 32))})...))
	f.Add([]byte("HTTP/1.1 400 Bad Request\r\n\r\n"))
	f.Fuzz(func(t *testing.T, said []byte) {
		if _, sealer, err := handshake.Dial(&script{in: bytes.NewReader(said)}, dialler(), handshake.Secret(secret), nil, anybody); err == nil || sealer != nil {
			t.Fatalf("%q was taken for a listener", said)
		}
	})
}
