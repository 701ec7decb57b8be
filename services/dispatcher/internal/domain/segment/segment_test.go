package segment_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/placement"
	"postrider.dev/services/dispatcher/internal/domain/segment"
)

func frameOf(m message.Message) segment.Frame {
	return segment.Frame{Hash: placement.Hash(m.Partition), Bytes: message.AppendFrame(nil, &m)}
}

func drawMessage(t *rapid.T) message.Message {
	m := message.Message{
		Partition:   rapid.StringN(1, 20, 60).Draw(t, "partition"),
		ClientID:    rapid.SampledFrom([]string{"", "client-1", "\u00e9"}).Draw(t, "client id"),
		ContentType: rapid.SampledFrom([]string{"", "application/json", "text/plain; charset=utf-8"}).Draw(t, "content type"),
		Payload:     rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(t, "payload"),
	}
	for range rapid.IntRange(0, 3).Draw(t, "headers") {
		m.Headers = append(m.Headers, message.Header{Name: rapid.String().Draw(t, "name"), Value: rapid.String().Draw(t, "value")})
	}
	return m
}

func TestSegmentComesBackAsItWasBuilt(t *testing.T) {
	t.Parallel()
	enc, dec := newCodec(t)
	rapid.Check(t, func(t *rapid.T) {
		messages := rapid.SliceOfN(rapid.Custom(drawMessage), 0, 40).Draw(t, "messages")
		frames := make([]segment.Frame, len(messages))
		for i, m := range messages {
			frames[i] = frameOf(m)
			require.Len(t, frames[i].Bytes, message.FrameSize(&m))
		}

		out, dir, err := enc.Build(frames)
		require.NoError(t, err)
		read, err := segment.DecodeDirectory(7, out.Count, out.Partitions, out.Sizes)
		require.NoError(t, err)
		body, err := dec.Body(read, out.Codec, out.Body)
		require.NoError(t, err)

		require.Equal(t, dir.Hashes, read.Hashes)
		require.Equal(t, dir.Sizes, read.Sizes)
		require.EqualValues(t, 7+len(messages), read.End())
		require.Equal(t, len(messages), body.Len())
		for i, want := range messages {
			got, err := body.Message(i)
			require.NoError(t, err)
			require.Equal(t, want.Partition, got.Partition)
			require.Equal(t, want.ClientID, got.ClientID)
			require.Equal(t, want.ContentType, got.ContentType)
			require.Equal(t, want.Headers, got.Headers)
			require.True(t, bytes.Equal(want.Payload, got.Payload))
			require.Equal(t, placement.Hash(want.Partition), read.Hashes[i])
		}
	})
}

func TestIncompressibleAndTinyBodiesStayRaw(t *testing.T) {
	t.Parallel()
	enc, _ := newCodec(t)
	random := make([]byte, 4096)
	rnd := rand.NewChaCha8([32]byte{1})
	_, err := rnd.Read(random)
	require.NoError(t, err)

	tiny, _, err := enc.Build([]segment.Frame{frameOf(message.Message{Partition: "p", Payload: []byte("{}")})})
	require.NoError(t, err)
	noise, _, err := enc.Build([]segment.Frame{frameOf(message.Message{Partition: "p", Payload: random})})
	require.NoError(t, err)
	text, _, err := enc.Build([]segment.Frame{frameOf(message.Message{Partition: "p", Payload: bytes.Repeat([]byte("abc "), 1000)})})
	require.NoError(t, err)

	require.Equal(t, segment.CodecRaw, tiny.Codec)
	require.Equal(t, segment.CodecRaw, noise.Codec)
	require.Equal(t, segment.CodecZstd, text.Codec)
	require.Less(t, len(text.Body), 400)
}

func TestBuildRefusesWhatDecodersWouldNotBelieve(t *testing.T) {
	t.Parallel()
	enc, _ := newCodec(t)

	_, _, err := enc.Build(make([]segment.Frame, segment.MaxMessages+1))
	require.ErrorIs(t, err, segment.ErrTooLarge)
	_, _, err = enc.Build([]segment.Frame{{Bytes: make([]byte, segment.MaxFrameBytes+1)}})
	require.ErrorIs(t, err, segment.ErrTooLarge)
}

func TestBodyOfAnotherSizeIsCorrupt(t *testing.T) {
	t.Parallel()
	enc, dec := newCodec(t)
	out, dir, err := enc.Build([]segment.Frame{frameOf(message.Message{Partition: "p", Payload: bytes.Repeat([]byte("x"), 9000)})})
	require.NoError(t, err)

	for _, size := range []uint32{0, 10, dir.Sizes[0] - 1, dir.Sizes[0] + 1} {
		_, err := dec.Body(segment.Directory{Hashes: dir.Hashes, Sizes: []uint32{size}}, out.Codec, out.Body)
		require.ErrorIs(t, err, segment.ErrCorrupt)
	}
	_, err = dec.Body(dir, segment.CodecRaw, out.Body)
	require.ErrorIs(t, err, segment.ErrCorrupt)
	_, err = dec.Body(dir, 77, out.Body)
	require.ErrorIs(t, err, segment.ErrCorrupt)
}

func FuzzDecodeDirectory(f *testing.F) {
	f.Add(1, []byte("12345678"), []byte{5})
	f.Add(2, []byte("1234567812345678"), []byte{0x80, 1, 3})
	f.Fuzz(func(t *testing.T, count int, partitions, sizes []byte) {
		d, err := segment.DecodeDirectory(0, count, partitions, sizes)
		if err == nil && (d.Len() != count || d.Bytes() != 12*count) {
			t.Fatalf("directory of %d messages read as %d", count, d.Len())
		}
	})
}

func FuzzDecodeBody(f *testing.F) {
	enc, dec := newCodec(f)
	out, dir, err := enc.Build([]segment.Frame{frameOf(message.Message{Partition: "p", Payload: bytes.Repeat([]byte("ab"), 600)})})
	require.NoError(f, err)
	f.Add(int16(out.Codec), dir.Sizes[0], out.Body)
	f.Add(int16(0), uint32(3), []byte("abc"))
	f.Fuzz(func(t *testing.T, codec int16, size uint32, raw []byte) {
		d := segment.Directory{Hashes: []uint64{1}, Sizes: []uint32{size % (1 << 16)}}
		body, err := dec.Body(d, segment.Codec(codec), raw)
		if err != nil {
			return
		}
		if frame, ok := body.Frame(0); !ok || len(frame) != int(d.Sizes[0]) {
			t.Fatalf("frame of %d bytes, want %d", len(frame), d.Sizes[0])
		}
		if m, err := body.Message(0); err == nil {
			again, err := message.ParseFrame(message.AppendFrame(nil, &m))
			require.NoError(t, err)
			require.Equal(t, m.Headers, again.Headers)
		}
	})
}

func BenchmarkBuild1000x256(b *testing.B) {
	for _, kind := range []string{"random", "json"} {
		b.Run(kind, func(b *testing.B) {
			enc, _ := newCodec(b)
			rnd := rand.NewChaCha8([32]byte{2})
			frames := make([]segment.Frame, 1000)
			for i := range frames {
				payload := make([]byte, 256)
				if _, err := rnd.Read(payload); err != nil {
					b.Fatal(err)
				}
				if kind == "json" {
					payload = fmt.Appendf(nil, `{"id":%d,"customer":"c-%x","items":[{"sku":"A-%d","qty":2},{"sku":"B-%d","qty":1}],"note":"%64x"}`,
						i, payload[:12], payload[20], payload[21], payload[24:56])
				}
				frames[i] = frameOf(message.Message{Partition: fmt.Sprintf("p-%d", i%100), ContentType: "application/json", Payload: payload})
			}
			b.ReportAllocs()
			for b.Loop() {
				if _, _, err := enc.Build(frames); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkDecode1000x256(b *testing.B) {
	enc, dec := newCodec(b)
	frames := make([]segment.Frame, 1000)
	for i := range frames {
		frames[i] = frameOf(message.Message{Partition: fmt.Sprintf("p-%d", i%100), Payload: bytes.Repeat([]byte(strconv.Itoa(i)), 64)})
	}
	out, _, err := enc.Build(frames)
	require.NoError(b, err)
	b.ReportAllocs()
	for b.Loop() {
		d, err := segment.DecodeDirectory(0, out.Count, out.Partitions, out.Sizes)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := dec.Body(d, out.Codec, out.Body); err != nil {
			b.Fatal(err)
		}
	}
}

func newCodec(t testing.TB) (*segment.Encoder, *segment.Decoder) {
	t.Helper()
	enc, err := segment.NewEncoder(2)
	require.NoError(t, err)
	dec, err := segment.NewDecoder(2)
	require.NoError(t, err)
	t.Cleanup(dec.Close)
	return enc, dec
}
