package domain_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"postrider.dev/services/ingress/internal/domain"
)

func TestATokenComesBackAsThePlaceItWasMadeOf(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		queue := rapid.Int64Range(1, 1<<62).Draw(t, "queue")
		offsets := rapid.SliceOfN(rapid.Int64Range(0, 1<<62), 1, 64).Draw(t, "offsets")
		shard := rapid.IntRange(0, len(offsets)-1).Draw(t, "shard")
		at := rapid.Int64Range(0, 1<<62).Draw(t, "at")

		p, err := domain.ParseResume(string(domain.AppendResume(nil, queue, offsets, shard, at)))

		require.NoError(t, err)
		offsets[shard] = at
		require.Equal(t, domain.Position{Queue: queue, Offsets: offsets}, p)
	})
}

func TestAPlaceIsReadStrictly(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]domain.Position{
		"": {Named: "latest"}, "latest": {Named: "latest"}, "earliest": {Named: "earliest"}, "2030-01-02T03:04:05Z": {Named: "2030-01-02T03:04:05Z"},
		"0": {Offsets: []int64{0}}, "17,4,0": {Offsets: []int64{17, 4, 0}},
	} {
		got, err := domain.ParseFrom(text)
		require.NoError(t, err, text)
		require.Equal(t, want, got)
	}
	for _, text := range []string{"-1", "1,", ",", "1, 2", "1.5", "0x1", "yesterday", "9223372036854775808", "2030-01-02"} {
		_, err := domain.ParseFrom(text)
		require.Error(t, err, text)
	}
}

func FuzzParseResume(f *testing.F) {
	f.Add(string(domain.AppendResume(nil, 5, []int64{1, 2, 300}, -1, 0)))
	f.Add("AQUA")
	f.Add("")
	f.Fuzz(func(t *testing.T, text string) {
		p, err := domain.ParseResume(text)
		if err == nil && string(domain.AppendResume(nil, p.Queue, p.Offsets, -1, 0)) != text {
			t.Fatalf("%q is not the only token of its place", text)
		}
	})
}
