package segcache_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/segment"
	"postrider.dev/services/dispatcher/internal/engine/segcache"
)

func directory(base message.Offset, count int) segment.Directory {
	d := segment.Directory{Base: base, Hashes: make([]uint64, count), Sizes: make([]uint32, count)}
	for i := range d.Hashes {
		d.Hashes[i], d.Sizes[i] = uint64(base)+uint64(i), 10
	}
	return d
}

func TestADirectoryIsFoundByAnyOfItsOffsets(t *testing.T) {
	t.Parallel()
	c := segcache.New(1<<20, 1<<20)
	c.PutDirectory(1, directory(0, 3))
	c.PutDirectory(1, directory(10, 5))

	for at, base := range map[message.Offset]message.Offset{0: 0, 2: 0, 10: 10, 14: 10} {
		d, ok := c.Directory(1, at)
		require.True(t, ok)
		require.Equal(t, base, d.Base)
	}
	for _, at := range []message.Offset{3, 9, 15} {
		_, ok := c.Directory(1, at)
		require.False(t, ok, at)
	}
	_, ok := c.Directory(2, 0)
	require.False(t, ok)
}

func TestTheHalvesStayInTheirBoundsAndKeepWhatIsUsed(t *testing.T) {
	t.Parallel()
	c := segcache.New(10_000, 10_000)
	for i := range 1000 {
		c.PutDirectory(1, directory(message.Offset(i*10), 10))
		c.PutBody(1, segcache.NewBody(directory(message.Offset(i*10), 10), time.Time{}, segment.CodecRaw, make([]byte, 100)))
		_, ok := c.Directory(1, 0)
		require.True(t, ok, "the first one is used all the time")
		directories, bodies := c.Bytes()
		require.LessOrEqual(t, directories, int64(10_000))
		require.LessOrEqual(t, bodies, int64(10_000))
	}
	_, ok := c.Directory(1, 10)
	require.False(t, ok)

	c.Clear()
	_, ok = c.Directory(1, 0)
	require.False(t, ok)
}

func TestABodyOpensOnce(t *testing.T) {
	t.Parallel()
	enc, err := segment.NewEncoder(1)
	require.NoError(t, err)
	dec, err := segment.NewDecoder(1)
	require.NoError(t, err)
	defer dec.Close()
	frame := message.AppendFrame(nil, &message.Message{Partition: "p", Payload: make([]byte, 4096)})
	built, d, err := enc.Build([]segment.Frame{{Hash: 1, Bytes: frame}})
	require.NoError(t, err)
	require.Equal(t, segment.CodecZstd, built.Codec)
	b := segcache.NewBody(d, time.Time{}, built.Codec, built.Body)

	for range 2 {
		opened, err := b.Open(dec)
		require.NoError(t, err)
		m, err := opened.Message(0)
		require.NoError(t, err)
		require.Equal(t, "p", m.Partition)
	}
}

// TestWhatIsFoundIsWhatWasPut compares with a plain map under any order of puts.
func TestWhatIsFoundIsWhatWasPut(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		c := segcache.New(20_000, 1)
		put := map[message.Offset]bool{}
		for range rapid.IntRange(0, 200).Draw(t, "puts") {
			base := message.Offset(rapid.IntRange(0, 99).Draw(t, "segment")) * 8
			c.PutDirectory(7, directory(base, 8))
			put[base] = true
			at := message.Offset(rapid.IntRange(0, 800).Draw(t, "at"))
			if d, ok := c.Directory(7, at); ok && (!put[d.Base] || d.Base != at/8*8) {
				t.Fatal(fmt.Sprintf("%d: found %d", at, d.Base))
			}
		}
	})
}
