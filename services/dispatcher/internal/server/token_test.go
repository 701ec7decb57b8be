package server

import (
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"postrider.dev/services/dispatcher/internal/domain/invalid"
)

func TestPageTokenComesBackAsItsCursor(t *testing.T) {
	t.Parallel()
	list := listing{"queues", "a", "prefix"}
	for _, cursor := range []string{"x", "ä", "\x00\xff raw bytes", string(make([]byte, 255))} {
		got, err := list.cursor(list.next(cursor))
		require.NoError(t, err)
		require.Equal(t, cursor, got)
	}
	got, err := list.cursor("")
	require.NoError(t, err)
	require.Empty(t, got)
}

func TestPageTokenOfAnotherListingIsRefused(t *testing.T) {
	t.Parallel()
	token := listing{"queues", "a", "bc"}.next("x")
	for _, other := range []listing{{"queues", "ab", "c"}, {"queues", "a", "b"}, {"queues", "a"}, {"queues", "a", "bc", ""}, {}} {
		_, err := other.cursor(token)
		require.ErrorIs(t, err, &invalid.Error{Code: invalid.TokenMalformed})
	}
}

func TestForgedPageTokenIsRefusedBeforeItReachesTheDatabase(t *testing.T) {
	t.Parallel()
	list := listing{"queues", "a"}
	for _, cursor := range []string{"a\x00b", "a\xffb", string(make([]byte, 300))} {
		_, err := list.nameCursor(list.next(cursor))
		require.ErrorIs(t, err, &invalid.Error{Code: invalid.TokenMalformed})
	}
	name, err := list.nameCursor(list.next("ä"))
	require.NoError(t, err)
	require.Equal(t, "ä", name)
}

func FuzzPageToken(f *testing.F) {
	list := listing{"queues", "a"}
	f.Add(list.next("x"))
	f.Add(list.next(""))
	f.Add("AQAAAAAAAAAAAAAA")
	f.Add("!")
	f.Fuzz(func(t *testing.T, token string) {
		cursor, err := list.cursor(token)
		if err != nil {
			require.ErrorIs(t, err, &invalid.Error{Code: invalid.TokenMalformed})
			require.True(t, utf8.ValidString(err.Error()))
			return
		}
		if token != "" {
			require.Equal(t, token, list.next(cursor), "a cursor has one token")
		}
	})
}
