package seal_test

import (
	"bytes"
	"encoding/base64"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/seal"
	"postrider.dev/services/dispatcher/internal/domain/segment"
)

func keyOf(t require.TestingT, queue int64, id int32, fill byte) *seal.Key {
	k, err := seal.NewKey(queue, id, bytes.Repeat([]byte{fill}, seal.KeyBytes))
	require.NoError(t, err)
	return k
}

func TestWhatIsSealedOpensAndAnyAlterationIsRefused(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		k := keyOf(t, 7, 3, 1)
		plain := rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(t, "plain")
		at := seal.InRecord("test", []byte("place"))
		sealed := k.Seal(at, plain)

		open, err := k.Open(at, sealed)
		require.NoError(t, err)
		require.True(t, bytes.Equal(plain, open))
		require.Len(t, sealed, len(plain)+seal.Overhead)

		altered := bytes.Clone(sealed)
		altered[rapid.IntRange(0, len(sealed)-1).Draw(t, "at")] ^= byte(rapid.IntRange(1, 255).Draw(t, "by"))
		_, err = k.Open(at, altered)
		require.ErrorIs(t, err, seal.ErrAltered)
		_, err = k.Open(at, sealed[:rapid.IntRange(0, len(sealed)-1).Draw(t, "cut")])
		require.ErrorIs(t, err, seal.ErrAltered)
	})
}

func TestASegmentOpensNowhereButInItsPlace(t *testing.T) {
	t.Parallel()
	type place struct {
		queue             int64
		key               int32
		shard             message.ShardID
		flush             [16]byte
		codec             segment.Codec
		partitions, sizes string
	}
	own := place{queue: 1, key: 2, shard: 3, flush: [16]byte{4}, codec: segment.CodecZstd, partitions: "12345678", sizes: "9"}
	at := func(p place) seal.Place {
		return seal.InSegment(p.shard, p.flush, p.codec, []byte(p.partitions), []byte(p.sizes))
	}
	sealed := keyOf(t, own.queue, own.key, 5).Seal(at(own), []byte("body"))

	for name, change := range map[string]func(*place){
		"queue":      func(p *place) { p.queue++ },
		"key":        func(p *place) { p.key++ },
		"shard":      func(p *place) { p.shard++ },
		"flush":      func(p *place) { p.flush[15]++ },
		"codec":      func(p *place) { p.codec = segment.CodecRaw },
		"partitions": func(p *place) { p.partitions = "12345679" },
		"sizes":      func(p *place) { p.sizes = "8" },
		"border":     func(p *place) { p.partitions, p.sizes = "1234567", "89" },
	} {
		other := own
		change(&other)
		_, err := keyOf(t, other.queue, other.key, 5).Open(at(other), sealed)
		require.ErrorIs(t, err, seal.ErrAltered, name)
	}
	open, err := keyOf(t, own.queue, own.key, 5).Open(at(own), sealed)
	require.NoError(t, err)
	require.Equal(t, "body", string(open))
}

func TestNoTwoPiecesShareSaltAndNonce(t *testing.T) {
	t.Parallel()
	k, at, seen := keyOf(t, 1, 1, 1), seal.InRecord("test", nil), map[string]bool{}
	for range 1000 {
		sealed := k.Seal(at, []byte("the same"))
		seen[string(sealed[:16])] = true
		seen[string(sealed[16:28])] = true
		seen[string(sealed[28:])] = true
	}
	require.Len(t, seen, 3000)
}

func TestNamesAreHashedByKey(t *testing.T) {
	t.Parallel()
	names := func(fill byte) *seal.Names {
		n, err := seal.NewNames(bytes.Repeat([]byte{fill}, seal.KeyBytes))
		require.NoError(t, err)
		return n
	}
	one, same := names(1), names(1)
	require.Equal(t, one.Hash("p"), same.Hash("p"), "placement is stable")
	require.NotEqual(t, names(1).Hash("p"), names(2).Hash("p"))
	require.Equal(t, one.Mac([]byte("b")), same.Mac([]byte("b")))
	require.NotEqual(t, names(1).Mac([]byte("b")), names(2).Mac([]byte("b")))
}

func master(id string, fill byte) string {
	return id + ":" + base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{fill}, seal.KeyBytes))
}

func masters(t *testing.T, texts ...string) seal.Masters {
	t.Helper()
	m, err := seal.ParseMasters(strings.Join(texts, ","))
	require.NoError(t, err)
	return m
}

func TestTheFirstMasterWrapsAndAllUnwrap(t *testing.T) {
	t.Parallel()
	secret := bytes.Repeat([]byte{9}, seal.KeyBytes)
	w := seal.Wrapped{Queue: 1, ID: 2, Purpose: "data"}
	require.NoError(t, masters(t, master("old", 1)).Wrap(&w, secret))
	require.Equal(t, "old", w.Master)

	got, err := masters(t, master("new", 2), master("old", 1)).Unwrap(w)
	require.NoError(t, err)
	require.Equal(t, secret, got)

	for name, other := range map[string]func() (seal.Masters, seal.Wrapped){
		"no master":       func() (seal.Masters, seal.Wrapped) { return masters(t, master("new", 2)), w },
		"another of name": func() (seal.Masters, seal.Wrapped) { return masters(t, master("old", 2)), w },
		"another queue": func() (seal.Masters, seal.Wrapped) {
			x := w
			x.Queue++
			return masters(t, master("old", 1)), x
		},
		"another purpose": func() (seal.Masters, seal.Wrapped) {
			x := w
			x.Purpose = "names"
			return masters(t, master("old", 1)), x
		},
		"another id": func() (seal.Masters, seal.Wrapped) {
			x := w
			x.ID++
			return masters(t, master("old", 1)), x
		},
	} {
		m, x := other()
		_, err := m.Unwrap(x)
		require.ErrorIs(t, err, seal.ErrNoMaster, name)
	}
}

func TestMastersSayWhatIsWrongAndShowNoKey(t *testing.T) {
	t.Parallel()
	good := base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{200}, seal.KeyBytes))
	for text, says := range map[string]string{
		"nothing":                              "id:base64",
		":" + good:                             "the id",
		"a b:" + good:                          "the id",
		strings.Repeat("x", 65) + ":" + good:   "the id",
		"a:" + good + ",a:" + good:             "twice",
		"a:???":                                "base64",
		"a:" + good[:20]:                       "32",
		"a:" + good + ",":                      "id:base64",
		master("a", 1) + "," + "b:" + good[:8]: `"b"`,
	} {
		_, err := seal.ParseMasters(text)
		require.ErrorContains(t, err, says, text)
		require.NotContains(t, err.Error(), good[:8])
	}
	m := masters(t, "a:"+base64.RawURLEncoding.EncodeToString(bytes.Repeat([]byte{251}, seal.KeyBytes)))
	require.Equal(t, "a", m.First())
	require.False(t, masters(t).Any())
}

func BenchmarkSeal(b *testing.B) {
	for _, size := range []int{1 << 10, 256 << 10} {
		b.Run(strings.Repeat("k", size>>10)[:1]+"B", func(b *testing.B) {
			k, plain := keyOf(b, 1, 1, 1), make([]byte, size)
			at := seal.InSegment(1, [16]byte{}, 0, make([]byte, 8), make([]byte, 2))
			b.SetBytes(int64(size))
			for b.Loop() {
				k.Seal(at, plain)
			}
		})
	}
}
