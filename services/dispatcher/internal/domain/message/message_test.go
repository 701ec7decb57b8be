package message_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"postrider.dev/services/dispatcher/internal/domain/invalid"
	"postrider.dev/services/dispatcher/internal/domain/message"
)

func TestIDComesBackAndHasOneText(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		id := message.ID{
			Shard:  message.ShardID(rapid.Int64Range(0, math.MaxInt64).Draw(t, "shard")),
			Offset: message.Offset(rapid.Int64Range(0, math.MaxInt64).Draw(t, "offset")),
		}

		got, err := message.ParseID(id.String())

		require.NoError(t, err)
		require.Equal(t, id, got)
		require.LessOrEqual(t, len(id.String()), 22)
	})
}

func TestIDTextsThatNameNoMessageAreRefused(t *testing.T) {
	t.Parallel()
	long := message.ID{Shard: math.MaxInt64, Offset: math.MaxInt64}.String()
	for _, text := range []string{"", "0", "l", "abc!", "11", "1" + long, "zzzzzzzzzzzzzzzzzzzzzz", long + "z", "\x00", "é"} {
		_, err := message.ParseID(text)
		require.ErrorIs(t, err, &invalid.Error{Code: invalid.IDMalformed}, "%q", text)
	}
}

func FuzzParseID(f *testing.F) {
	for _, s := range []string{"1", "2", "zzzz", message.ID{Shard: 7, Offset: 1 << 40}.String(), message.ID{Shard: math.MaxInt64, Offset: math.MaxInt64}.String()} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		id, err := message.ParseID(text)
		if err != nil {
			return
		}
		require.Equal(t, text, id.String())
		require.True(t, id.Shard >= 0 && id.Offset >= 0)
	})
}

func FuzzParseFrame(f *testing.F) {
	m := message.Message{
		Partition: "p", ClientID: "c", ContentType: "application/json",
		Headers: []message.Header{{Name: "traceparent", Value: "00-1-2-01"}, {Name: "b", Value: ""}}, Payload: []byte(`{"a":1}`),
	}
	f.Add(message.AppendFrame(nil, &m))
	f.Add([]byte{1, 0, 0, 0, 255, 255, 255, 255, 15})
	f.Fuzz(func(t *testing.T, raw []byte) {
		m, err := message.ParseFrame(raw)
		if err != nil {
			require.ErrorIs(t, err, message.ErrCorrupt)
			return
		}
		again, err := message.ParseFrame(message.AppendFrame(nil, &m))
		require.NoError(t, err)
		require.Equal(t, m, again)
		name, err := message.FramePartition(raw)
		require.NoError(t, err)
		require.Equal(t, m.Partition, string(name))
		require.Len(t, message.AppendFrame(nil, &m), message.FrameSize(&m))
	})
}

func TestMetaComesBack(t *testing.T) {
	t.Parallel()
	for _, m := range []message.Message{
		{}, {ContentType: "text/plain"}, {ContentType: "x", Headers: []message.Header{{Name: "a", Value: "1"}, {Name: "a", Value: "\x00\xff"}}},
	} {
		var got message.Message
		rest, err := message.ParseMeta(append(message.AppendMeta(nil, &m), "rest"...), &got)
		require.NoError(t, err)
		require.Equal(t, m, got)
		require.Equal(t, "rest", string(rest))
	}
}

func TestHeaderFindsTheFirst(t *testing.T) {
	t.Parallel()
	m := message.Message{Headers: []message.Header{{Name: "a", Value: "1"}, {Name: "a", Value: "2"}}}
	value, ok := m.Header("a")
	_, none := m.Header("b")
	require.True(t, ok)
	require.Equal(t, "1", value)
	require.False(t, none)
}

func TestDedupeKeysOfDifferentScopesDiffer(t *testing.T) {
	t.Parallel()
	keys := map[[16]byte]string{}
	for name, key := range map[string][16]byte{
		"plain":           message.DedupeKey(1, message.KeyOfMessage, "p", "k"),
		"other shard":     message.DedupeKey(2, message.KeyOfMessage, "p", "k"),
		"other kind":      message.DedupeKey(1, message.KeyOfRequest, "p", "k"),
		"other partition": message.DedupeKey(1, message.KeyOfMessage, "q", "k"),
		"shifted":         message.DedupeKey(1, message.KeyOfMessage, "pk", ""),
		"empty partition": message.DedupeKey(1, message.KeyOfMessage, "", "pk"),
	} {
		require.NotContains(t, keys, key, name)
		keys[key] = name
	}
	require.Equal(t, "plain", keys[message.DedupeKey(1, message.KeyOfMessage, "p", "k")])
}

func TestBodyHashTellsBodiesApartAndIgnoresTheTrace(t *testing.T) {
	t.Parallel()
	base := message.Message{Partition: "p", ContentType: "a/b", Headers: []message.Header{{Name: "h", Value: "1"}}, Payload: []byte("x")}
	traced := base
	traced.Headers = append([]message.Header{{Name: "traceparent", Value: "00-1"}}, base.Headers...)
	payload, header, kind := base, base, base
	payload.Payload = []byte("y")
	header.Headers = []message.Header{{Name: "h", Value: "2"}}
	kind.ContentType = "a/c"

	require.Equal(t, base.BodyHash(), traced.BodyHash())
	for _, other := range []message.Message{payload, header, kind} {
		require.NotEqual(t, base.BodyHash(), other.BodyHash())
	}
}

func TestAPushThatIsRepeatedByAnotherProcessHasTheSameBody(t *testing.T) {
	t.Parallel()
	m := message.Message{Partition: "p", Payload: []byte("x"), Headers: []message.Header{{Name: "a", Value: "1"}, {Name: message.OriginHeader, Value: "one"}}}
	other := m
	other.Headers = []message.Header{{Name: "a", Value: "1"}, {Name: message.OriginHeader, Value: "another"}}

	require.Equal(t, m.BodyHash(), other.BodyHash())
}
