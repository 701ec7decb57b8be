package mesh_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"postrider.dev/pkg/memnet"
	"postrider.dev/services/meshhint/internal/mesh/frame"
	"postrider.dev/services/meshhint/internal/mesh/handshake"
)

func asNet(err error, into *net.Error) bool { return errors.As(err, into) }

// wire is a machine on the way from a dialler to a node: it sees and changes what the dialler sends.
type wire struct {
	lis    net.Listener
	to     *node
	attack func(n int, f []byte) [][]byte // n counts the sealed frames of a connection; nil: pass on

	mu    sync.Mutex // guards the rest
	seen  [][]byte   // what a dialler sent, frame by frame, of the first connection
	conns []net.Conn
	count int
	wg    sync.WaitGroup
}

const macBytes = 32

func tap(t *testing.T, to *node, attack func(int, []byte) [][]byte) *wire {
	t.Helper()
	lis, err := memnet.ListenTCP(t.Context(), "127.0.0.1:0")
	require.NoError(t, err)
	w := &wire{lis: lis, to: to, attack: attack}
	w.wg.Go(w.run)
	t.Cleanup(func() {
		_ = lis.Close()
		w.mu.Lock()
		for _, c := range w.conns {
			_ = c.Close()
		}
		w.mu.Unlock()
		w.wg.Wait()
	})
	return w
}

func (w *wire) run() {
	for {
		in, err := w.lis.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial("tcp", w.to.Addr().String()) //nolint:noctx // the test closes it
		if err != nil {
			_ = in.Close()
			continue
		}
		w.mu.Lock()
		w.conns = append(w.conns, in, out)
		w.count++
		first := w.count == 1
		w.mu.Unlock()
		w.wg.Go(func() { // the listener's part of the handshake
			_, _ = io.Copy(in, out)
			_ = in.Close()
		})
		w.wg.Go(func() {
			w.forward(in, out, first)
			_ = out.Close()
			_ = in.Close()
		})
	}
}

// forward takes the dialler's frames one by one; the first is its HELLO, which has no MAC behind it.
func (w *wire) forward(in io.Reader, out io.Writer, first bool) {
	for n := -1; ; n++ {
		f, err := frame.Read(in, frame.MaxLength)
		if err != nil {
			return
		}
		b := f.Append(nil)
		if n >= 0 {
			mac := make([]byte, macBytes)
			if _, err := io.ReadFull(in, mac); err != nil {
				return
			}
			b = append(b, mac...)
		}
		if first {
			w.mu.Lock()
			w.seen = append(w.seen, b)
			w.mu.Unlock()
		}
		pass := [][]byte{b}
		if first && n >= 0 && w.attack != nil {
			pass = w.attack(n, b)
		}
		if _, err := out.Write(bytes.Join(pass, nil)); err != nil {
			return
		}
	}
}

func (w *wire) frames() [][]byte {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([][]byte(nil), w.seen...)
}

// through is a node whose only way to another is the wire.
func through(t *testing.T, id string, w *wire) *node {
	t.Helper()
	cfg := settings(id)
	cfg.Peers = parse(t, w.lis.Addr().String())
	return start(t, cfg)
}

func TestWhoSitsOnTheWireCannotMakeAHintAndHisConnectionEnds(t *testing.T) {
	t.Parallel()
	forged := frame.Frame{Tag: frame.MaintenanceChanged, Payload: []byte(`{}`)}.Append(nil)
	var held []byte
	for name, attack := range map[string]func(n int, f []byte) [][]byte{
		"a frame is injected":            func(n int, f []byte) [][]byte { return pick(n == 2, f, forged, make([]byte, macBytes), f) },
		"with a MAC that was seen":       func(n int, f []byte) [][]byte { return pick(n == 2, f, forged, f[len(f)-macBytes:], f) },
		"a frame is repeated":            func(n int, f []byte) [][]byte { return pick(n == 2, f, f, f) },
		"a frame is altered":             func(n int, f []byte) [][]byte { return pick(n == 2, f, altered(f)) },
		"a frame is left out":            func(n int, f []byte) [][]byte { return pick(n == 2, f) },
		"a frame is made four gigabytes": func(n int, f []byte) [][]byte { return pick(n == 2, f, []byte{0xff, 0xff, 0xff, 0xff}) },
		"two frames change their places": func(n int, f []byte) [][]byte {
			if n == 2 {
				held = f
				return nil
			}
			return pick(n == 3, f, f, held)
		},
	} {
		victim := start(t, settings("victim"))
		w := tap(t, victim, attack)
		bystander := start(t, dialling(t, "bystander", victim))
		bystander.awaitConnected(t, 1)
		honest := through(t, "honest", w)

		eventually(t, name+": is refused", func() bool { return victim.metric(t, "frames_refused_total") == 1 })
		eventually(t, name+": the honest one comes again", func() bool { return victim.everything.Load() == 3 && honest.connected() == 1 })
		reaches(t, honest, victim, "after")
		reaches(t, bystander, victim, "undisturbed")

		require.Zero(t, victim.metric(t, "handshake_failures_total"), name)
		require.Empty(t, victim.hints, "%s: more was taken", name)
		honest.stop()
		bystander.stop()
		victim.stop()
	}
}

func pick(attack bool, f []byte, instead ...[]byte) [][]byte {
	if attack {
		return instead
	}
	return [][]byte{f}
}

func altered(f []byte) []byte {
	out := bytes.Clone(f)
	out[4] = byte(frame.PopMaintenanceChanged) // a heartbeat becomes the flip of a mode
	return out
}

func TestACapturedConnectionPlayedAgainIsRefusedAndCounted(t *testing.T) {
	t.Parallel()
	victim := start(t, settings("victim"))
	w := tap(t, victim, nil)
	honest := through(t, "honest", w)
	honest.awaitConnected(t, 1)
	honest.Publish(flip())
	victim.next(t)

	conn := knock(t, victim)
	_, err := conn.Write(bytes.Join(w.frames(), nil))
	require.NoError(t, err)

	closed(t, conn)
	eventually(t, "it is counted", func() bool {
		return victim.metric(t, "handshake_failures_total", "side=accepted", "reason=secret") == 1
	})
	require.EqualValues(t, 1, victim.Stats().HandshakeFailures)
	reaches(t, honest, victim, "undisturbed")
	require.Empty(t, victim.hints)
}

func TestAPeerWithAnotherSecretIsRefusedOnBothSides(t *testing.T) {
	t.Parallel()
	victim := start(t, settings("victim"))
	honest := start(t, dialling(t, "honest", victim))
	cfg := dialling(t, "stranger", victim)
	cfg.Secret = handshake.Secret("another secret, of another fleet")

	stranger := start(t, cfg)
	stranger.Publish(flip())

	eventually(t, "the listener counts it", func() bool { return victim.metric(t, "handshake_failures_total", "side=accepted", "reason=secret") > 0 })
	eventually(t, "the dialler counts it", func() bool {
		return stranger.metric(t, "handshake_failures_total", "side=dialled", "reason=refused") > 0
	})
	honest.awaitConnected(t, 1)
	reaches(t, honest, victim, "undisturbed")
	require.Zero(t, stranger.connected())
	require.Empty(t, victim.hints)
	require.Equal(t, 1, victim.Stats().Alive)
}

func TestWhatIsNoPeerIsRefusedAndCounted(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		said   []byte
		reason string
	}{
		"a length of four gigabytes": {[]byte{0xff, 0xff, 0xff, 0xff, byte(frame.Hello)}, "malformed"},
		"a frame before the hello":   {frame.Frame{Tag: frame.MaintenanceChanged, Payload: []byte(`{}`)}.Append(nil), "malformed"},
		"a web browser":              {[]byte("GET / HTTP/1.1\r\nHost: mesh\r\n\r\n"), "malformed"},
		"half a hello":               {append(binary.BigEndian.AppendUint32(nil, 100), byte(frame.Hello), '{'), "cut_off"},
		"a hello without a version":  {frame.Frame{Tag: frame.Hello, Payload: []byte(`{"server_id":"x","host":"h"}`)}.Append(nil), "version"},
	} {
		victim := start(t, settings("victim"))
		conn := knock(t, victim)
		_, err := conn.Write(c.said)
		require.NoError(t, err, name)
		if c.reason == "cut_off" {
			require.NoError(t, conn.(*net.TCPConn).CloseWrite(), name)
		}

		closed(t, conn)

		eventually(t, name, func() bool {
			return victim.metric(t, "handshake_failures_total", "side=accepted", "reason="+c.reason) == 1
		})
		require.Zero(t, victim.everything.Load(), name)
	}
}

func TestAProbeThatSaysNothingIsNoFailure(t *testing.T) {
	t.Parallel()
	victim := start(t, settings("victim"))
	conn := knock(t, victim)
	_, err := io.ReadFull(conn, make([]byte, 5))
	require.NoError(t, err)
	require.NoError(t, conn.Close())
	honest := start(t, dialling(t, "honest", victim))
	honest.awaitConnected(t, 1)

	reaches(t, honest, victim, "after")

	require.Zero(t, victim.Stats().HandshakeFailures)
}

func TestAHandshakeDrippedByteByByteIsEndedAtItsDeadline(t *testing.T) {
	t.Parallel()
	victim := start(t, settings("victim"))
	conn := knock(t, victim)
	dripped := make(chan error, 1)
	go func() { // a byte at a time, for as long as it is let
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for _, b := range append(binary.BigEndian.AppendUint32(nil, 4000), make([]byte, 4000)...) {
			if _, err := conn.Write([]byte{b}); err != nil {
				dripped <- err
				return
			}
			<-tick.C
		}
		dripped <- nil
	}()
	honest := start(t, dialling(t, "honest", victim))
	honest.awaitConnected(t, 1)
	reaches(t, honest, victim, "meanwhile")

	closed(t, conn)

	require.Error(t, <-dripped)
	eventually(t, "it is counted", func() bool {
		return victim.metric(t, "handshake_failures_total", "side=accepted", "reason=timeout") == 1
	})
}

func TestAThousandConnectionsKeepNobodyOutAndTakeBoundedRoom(t *testing.T) {
	t.Parallel()
	victim := start(t, settings("victim"))
	early := start(t, dialling(t, "early", victim))
	early.awaitConnected(t, 1)
	conns := make([]net.Conn, 1000)
	for i := range conns {
		conns[i] = knock(t, victim)
	}

	eventually(t, "all but sixty-four are pushed out", func() bool {
		return victim.metric(t, "handshake_failures_total", "side=accepted", "reason=crowded") >= 1000-64
	})
	late := start(t, dialling(t, "late", victim))
	late.awaitConnected(t, 1)

	reaches(t, early, victim, "of one that was there")
	reaches(t, late, victim, "of one that came later")
	for _, c := range conns {
		closed(t, c)
	}
	require.Equal(t, 2, victim.Stats().Alive)
	require.EqualValues(t, 2, victim.everything.Load())
}
