package message_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"postrider.dev/services/dispatcher/internal/domain/invalid"
	"postrider.dev/services/dispatcher/internal/domain/message"
)

func TestPendingIDComesBackAndIsNoMessageID(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var id message.PendingID
		copy(id[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "id"))

		got, err := message.ParsePendingID(id.String())
		_, other := message.ParseID(id.String())

		require.NoError(t, err)
		require.Equal(t, id, got)
		require.True(t, message.IsPendingID(id.String()))
		require.ErrorIs(t, other, &invalid.Error{Code: invalid.IDMalformed})
	})
}

func TestPendingTextsThatNameNoMessageAreRefused(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "p_", "p", "p_0", "p_11", "P_2", "2", "p_zzzzzzzzzzzzzzzzzzzzzz", "p_2 ", "p_\x00"} {
		_, err := message.ParsePendingID(text)
		require.ErrorIs(t, err, &invalid.Error{Code: invalid.IDMalformed}, "%q", text)
	}
}

func TestPendingComesBack(t *testing.T) {
	t.Parallel()
	p := message.Pending{ID: message.PendingID{1, 2, 15: 9}, AvailableAt: time.Date(2030, 1, 2, 3, 4, 5, 6_000, time.UTC)}

	got, rest, err := message.ParsePending(append(p.Append(nil), "rest"...))
	_, _, short := message.ParsePending(p.Append(nil)[:23])

	require.NoError(t, err)
	require.Equal(t, p, got)
	require.Equal(t, "rest", string(rest))
	require.ErrorIs(t, short, message.ErrCorrupt)
}
