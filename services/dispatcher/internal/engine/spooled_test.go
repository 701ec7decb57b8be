package engine

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/seal"
	"postrider.dev/services/dispatcher/internal/spool"
	"postrider.dev/services/dispatcher/internal/store"
)

func aSpooledPush() *spooledPush {
	return &spooledPush{
		tenant: "acme", at: time.UnixMicro(1_700_000_000_000_001), keyed: true, hash: 1 << 63, accepted: []int{0, 2},
		sought: []store.Sought{{Shard: 7, Known: 1 << 40, FlushID: store.FlushID{1, 2, 3}, Pending: []message.PendingID{{4}, {5}}}},
		req: &queuev1.PushRequest{Queue: "q", IdempotencyKey: "k", Items: []*queuev1.PushItem{
			{Partition: "a", Payload: []byte("x"), Headers: map[string]string{"h": "v"}}, {Payload: []byte("poison")}, {IdempotencyKey: "i"},
		}},
	}
}

func TestARecordOfTheSpoolComesBackWithoutWhatWasRefused(t *testing.T) {
	t.Parallel()
	want := aSpooledPush()

	raw, err := want.encode()
	require.NoError(t, err)
	got, err := parseSpooled(raw)

	require.NoError(t, err)
	require.NotContains(t, string(raw), "poison")
	require.Equal(t, []any{want.tenant, want.at.UnixMicro(), want.keyed, want.hash, want.accepted, want.sought},
		[]any{got.tenant, got.at.UnixMicro(), got.keyed, got.hash, got.accepted, got.sought})
	for _, i := range want.accepted {
		require.True(t, proto.Equal(want.req.GetItems()[i], got.req.GetItems()[i]))
	}
	require.Equal(t, want.hashes(), got.hashes())
}

func FuzzParseSpooled(f *testing.F) {
	raw, err := aSpooledPush().encode()
	require.NoError(f, err)
	f.Add(raw)
	f.Add([]byte{1, 0, 0, 0})
	key, err := seal.NewKey(1, 2, make([]byte, seal.KeyBytes))
	require.NoError(f, err)
	sealed, err := aSpooledPush().encodeSealed(spool.ID{}, key, []uint64{1})
	require.NoError(f, err)
	f.Add(sealed)
	f.Fuzz(func(t *testing.T, raw []byte) {
		s, err := parseSpooled(raw)
		if err != nil {
			require.ErrorIs(t, err, errSpooled)
			return
		}
		again, err := s.encode()
		require.NoError(t, err)
		_, err = parseSpooled(again)
		require.NoError(t, err)
		require.NoError(t, NewBacklog().Visit(spool.Entry{Seq: 1, Payload: raw}))
	})
}

func TestTheBacklogTellsPartitionsApartUntilThereAreTooMany(t *testing.T) {
	t.Parallel()
	b := NewBacklog()
	name := queueName{"acme", "q"}
	pushTo := func(hash uint64) *push {
		p := &push{tenant: "acme", name: "q", items: make([]pushItem, 1)}
		p.items[0].frame.Hash = hash
		return p
	}
	b.add(name, []uint64{1, 2}, 10)
	b.add(name, []uint64{2}, 10)
	require.True(t, b.holds(pushTo(1)))
	require.False(t, b.holds(pushTo(3)))
	b.remove(name, []uint64{1, 2}, 10)
	require.False(t, b.holds(pushTo(1)))
	require.True(t, b.holds(pushTo(2)))

	many := make([]uint64, maxHeld+1)
	for i := range many {
		many[i] = uint64(i + 10)
	}
	b.add(name, many, 10)
	require.True(t, b.holds(pushTo(5)), "all of the queue is held now")
	b.remove(name, many, 10)
	b.remove(name, []uint64{2}, 10)
	require.False(t, b.holds(pushTo(5)))
	require.Zero(t, b.records.Load()+b.bytes.Load()+int64(b.held))
}

func TestASealedRecordShowsNothingAndOpensInItsSpoolWithItsKeyOnly(t *testing.T) {
	t.Parallel()
	keyOf := func(id int32) *seal.Key {
		k, err := seal.NewKey(1, id, make([]byte, seal.KeyBytes))
		require.NoError(t, err)
		return k
	}
	in := spool.ID{1}
	rapid.Check(t, func(t *rapid.T) {
		want := aSpooledPush()
		want.req.Items[0].Payload = []byte("giraffe" + rapid.String().Draw(t, "payload"))
		raw, err := want.encodeSealed(in, keyOf(7), []uint64{11, 12})
		require.NoError(t, err)
		require.NotContains(t, string(raw), "giraffe")
		s, err := parseSpooled(raw)
		require.NoError(t, err)
		require.Equal(t, []uint64{11, 12}, s.hashes())
		require.Equal(t, want.at.UnixMicro(), s.at.UnixMicro())
		again, err := s.encode()
		require.NoError(t, err)
		require.Equal(t, raw, again)

		got, err := s.open(in, keyOf(7))
		require.NoError(t, err)
		require.Equal(t, []uint64{11, 12}, got.hashes())
		require.True(t, proto.Equal(want.req.GetItems()[0], got.req.GetItems()[0]))
		_, err = s.open(spool.ID{2}, keyOf(7))
		require.ErrorIs(t, err, seal.ErrAltered)
		_, err = s.open(in, keyOf(8))
		require.ErrorIs(t, err, seal.ErrAltered)

		altered := bytes.Clone(raw)
		altered[rapid.IntRange(1, len(raw)-1).Draw(t, "at")] ^= byte(rapid.IntRange(1, 255).Draw(t, "by"))
		if s, err = parseSpooled(altered); err == nil {
			_, err = s.open(in, keyOf(7))
			require.ErrorIs(t, err, seal.ErrAltered)
			return
		}
		require.ErrorIs(t, err, errSpooled)
	})
}
