package lease_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"postrider.dev/services/dispatcher/internal/domain/invalid"
	"postrider.dev/services/dispatcher/internal/domain/lease"
)

func TestTokenComesBackAndHasOneText(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var token lease.Token
		gs := lease.GroupShardID(0)
		for range rapid.IntRange(1, 70).Draw(t, "parts") {
			gs += lease.GroupShardID(rapid.Int64Range(1, 1<<50).Draw(t, "step"))
			token = append(token, lease.Part{GroupShard: gs, Epoch: lease.Epoch(rapid.Uint64().Draw(t, "epoch"))})
		}

		got, err := lease.ParseToken(token.String())

		require.NoError(t, err)
		require.Equal(t, token, got)
	})
}

func TestMangledTokensAreRefused(t *testing.T) {
	t.Parallel()
	good := lease.Token{{GroupShard: 5, Epoch: lease.MakeEpoch(77, 1)}, {GroupShard: 9, Epoch: lease.MakeEpoch(1, 0)}}
	unordered := lease.Token{good[1], good[0]}
	twice := lease.Token{good[0], good[0]}
	texts := []string{
		"", "A", "not base64!", good.String() + "A", good.String() + "=", good.String()[1:], strings.ToLower(good.String()),
		lease.Token{}.String(), unordered.String(), twice.String(), strings.Repeat("A", lease.MaxTokenText+1), "\x00",
	}
	for i := range good.String() {
		flipped := []byte(good.String())
		flipped[i] ^= 1
		texts = append(texts, string(flipped))
	}
	for _, text := range texts {
		_, err := lease.ParseToken(text)
		require.ErrorIs(t, err, &invalid.Error{Code: invalid.TokenMalformed, Field: "lease_token"}, "%q", text)
	}
}

func FuzzParseToken(f *testing.F) {
	f.Add(lease.Token{{GroupShard: 1, Epoch: 1}}.String())
	f.Add(lease.Token{{GroupShard: 1, Epoch: 1}, {GroupShard: 1 << 62, Epoch: 1 << 63}}.String())
	f.Fuzz(func(t *testing.T, text string) {
		token, err := lease.ParseToken(text)
		if err != nil {
			return
		}
		require.Equal(t, text, token.String())
		require.LessOrEqual(t, len(token), lease.MaxParts)
	})
}
