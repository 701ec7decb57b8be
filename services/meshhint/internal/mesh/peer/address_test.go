package peer_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"postrider.dev/services/meshhint/internal/mesh/peer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestAPeerIsNamedInManyWays(t *testing.T) {
	t.Parallel()
	for entry, want := range map[string]peer.Address{
		"a":                 {Host: "a", Port: 7403},
		"a:1":               {Host: "a", Port: 1},
		"  a : 1 ":          {Host: "a", Port: 1},
		"http://a":          {Host: "a", Port: 7403},
		"https://a:2":       {Host: "a", Port: 2},
		"HTTP://a:2/":       {Host: "a", Port: 2},
		" http://a:2/path ": {Host: "a", Port: 2},
		"a:mesh":            {Host: "a", Port: 7403},
		"a:":                {Host: "a", Port: 7403},
		"a:0":               {Host: "a", Port: 7403},
		"a:65536":           {Host: "a", Port: 7403},
		"a:-1":              {Host: "a", Port: 7403},
		"10.0.0.1:5":        {Host: "10.0.0.1", Port: 5},
		"::1":               {Host: "::1", Port: 7403},
		"[::1]":             {Host: "::1", Port: 7403},
		"[::1]:5":           {Host: "::1", Port: 5},
		"[fe80::1]:x":       {Host: "fe80::1", Port: 7403},
	} {
		got, ok := peer.ParseAddress(entry, 7403)
		require.True(t, ok, entry)
		require.Equal(t, want, got, entry)
	}
	for _, entry := range []string{"", "  ", "http://", ":7403", "https:///x"} {
		_, ok := peer.ParseAddress(entry, 7403)
		require.False(t, ok, entry)
	}
	require.Equal(t, []peer.Address{{Host: "a", Port: 1}, {Host: "b", Port: 7403}}, peer.ParseList([]string{" a:1", "", "b", "http://a:1"}, 7403))
}

func FuzzParseAddress(f *testing.F) {
	for _, entry := range []string{"a:1", "http://[::1]:5/x", "::1", "a:b:c", "[", "]:", "https://"} {
		f.Add(entry)
	}
	f.Fuzz(func(t *testing.T, entry string) {
		a, ok := peer.ParseAddress(entry, 7403)
		if !ok {
			return
		}
		if a.Host == "" || a.Port < 1 || a.Port > 65535 {
			t.Fatalf("%q gives %v", entry, a)
		}
	})
}

func TestRedialsComeLaterEachTimeUpToFiveSecondsAndNotInStep(t *testing.T) {
	t.Parallel()
	first, second := peer.Pauses(12), peer.Pauses(12)

	require.GreaterOrEqual(t, first[0], 250*time.Millisecond)
	span := 500 * time.Millisecond
	for i, p := range first {
		require.GreaterOrEqual(t, p, span/2, "pause %d", i)
		require.Less(t, p, span, "pause %d", i)
		span = min(2*span, 5*time.Second)
	}
	require.NotEqual(t, first, second)
}
