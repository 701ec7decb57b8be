package window_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"postrider.dev/services/dispatcher/internal/domain/queue"
	"postrider.dev/services/dispatcher/internal/domain/window"
)

// TestStuckKeyNeitherStopsOthersNorGrows: one partition with 300,000 messages is held by a lease, others go on between its messages.
func TestStuckKeyNeitherStopsOthersNorGrows(t *testing.T) {
	t.Parallel()
	s := newSim(t, queue.Ordered, queue.Block)
	for base := range 300 {
		hashes := ofKeyOne(1000)
		for i := 500; i < 510; i++ {
			hashes[i] = uint64(2 + (base*10+i)%50)
		}
		s.log.Append(hashes...)
	}
	stuck := s.popKey(1, 1)
	others := 0

	for {
		out := s.pop(100)
		if out.Result != window.Done {
			break
		}
		others += len(out.Messages)
		require.False(t, slices.ContainsFunc(out.Messages, func(m window.Message) bool { return m.Hash == 1 }))
		s.ackAll(out.Epoch)
		require.LessOrEqual(t, s.v.Key(1).Listed, window.MaxListed)
	}
	require.Equal(t, 3000, others)
	require.EqualValues(t, 0, s.v.Low())
	require.EqualValues(t, 297_000, s.v.Depth(s.log.Head()))

	s.reload() // a cold start
	s.ackAll(stuck.Epoch)
	next, got := window.Offset(1), 0
	for {
		out := s.pop(700)
		if out.Result != window.Done {
			break
		}
		for _, m := range out.Messages { // very many: a plain comparison
			if m.Offset < next || m.Hash != 1 {
				t.Fatalf("offset %d of key %d where %d of key 1 is next", m.Offset, m.Hash, next)
			}
			next = m.Offset + 1
			got++
		}
		s.ackAll(out.Epoch)
	}
	require.Equal(t, 296_999, got)
	require.EqualValues(t, 0, s.v.Depth(s.log.Head()))
}

func TestFrontierStopsWhenTooManyKeysAreBlockedAndGoesOnAfter(t *testing.T) {
	t.Parallel()
	s := newSim(t, queue.Ordered, queue.Block)
	const keys = window.MaxBlocked + 40_000
	for base := 0; base < keys; base += 1000 {
		hashes := make([]uint64, 1000)
		for i := range hashes {
			hashes[i] = uint64(base+i) + 1
		}
		s.log.Append(hashes...)
	}
	failed := 0

	for {
		out := s.pop(1000)
		if out.Result != window.Done {
			require.Equal(t, window.StopBlocked, out.Stop)
			break
		}
		failed += len(out.Messages)
		s.settle(out.Epoch, window.Item{Offset: window.MaxOffset, Through: true, Verdict: window.Nack, HasDelay: true, Delay: time.Hour})
	}
	require.GreaterOrEqual(t, failed, window.MaxBlocked)
	require.LessOrEqual(t, failed, window.MaxBlocked+window.MaxAdmitted)

	s.wait(2 * time.Hour)
	s.reload()
	for s.v.Depth(keys) > 0 {
		out := s.pop(1000)
		require.Equal(t, window.Done, out.Result)
		s.ackAll(out.Epoch)
	}
}

func TestLeasesAreBounded(t *testing.T) {
	t.Parallel()
	s := newSim(t, queue.Shared, queue.Block)
	window.SetLeaseLimits(s.v, 5, 12)
	s.log.Append(ofKeyOne(100)...)

	for range 5 {
		require.Equal(t, window.Done, s.pop(2).Result)
	}
	sixth := s.pop(1)
	window.SetLeaseLimits(s.v, 50, 12)
	rest := s.pop(10)
	full := s.pop(1)

	require.Equal(t, window.Refused, sixth.Result)
	require.Equal(t, window.StopLeases, sixth.Stop)
	require.Len(t, rest.Messages, 2)
	require.Equal(t, window.StopLeases, full.Stop)
}

func TestNamedPopFindsRoomWhenTheViewIsFull(t *testing.T) {
	t.Parallel()
	s := newSim(t, queue.Ordered, queue.Block)
	for base := 0; base < 40_000; base += 1000 {
		hashes := make([]uint64, 1000)
		for i := range hashes {
			hashes[i] = uint64(base+i) + 1
		}
		s.log.Append(hashes...)
	}
	for { // nobody takes what is listed
		need, ok := s.v.Need(s.log.Head())
		if !ok {
			break
		}
		s.log.Feed(s.v, need)
	}
	require.Equal(t, window.StopAdmitted, s.v.Stopped())

	out := s.popKey(39_000, 1)

	require.Equal(t, at(38_999), offsets(out))
	require.NoError(t, window.Audit(s.v, s.log.Head(), s.log.Hash))
}

func TestANamedPopOfMoreThanThereIsRoomForGetsWhatFits(t *testing.T) {
	t.Parallel()
	s := newSim(t, queue.Ordered, queue.Block)
	window.SetLimits(s.v, 3, 10, 100, 10)
	for range 5 {
		s.log.Append(7)
	}

	out := s.popKey(7, 5)
	s.ackAll(out.Epoch)
	rest := s.popKey(7, 5)

	require.Equal(t, at(0, 1, 2), offsets(out))
	require.Equal(t, at(3, 4), offsets(rest))
}

// TestEveryReadyMessageIsOfferedInTurn is property (d): within as many pops as there are ready keys.
func TestEveryReadyMessageIsOfferedInTurn(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		s := newSim(t, rapid.SampledFrom([]queue.Mode{queue.Ordered, queue.Shared}).Draw(rt, "mode"), queue.Block)
		keys := rapid.IntRange(1, 12).Draw(rt, "keys")
		hashes := []uint64{}
		for range rapid.IntRange(1, 200).Draw(rt, "messages") {
			hashes = append(hashes, uint64(rapid.IntRange(1, keys).Draw(rt, "key")))
		}
		s.log.Append(hashes...)
		batch := rapid.IntRange(1, 5).Draw(rt, "batch")
		if rapid.Bool().Draw(rt, "suspects") {
			s.pop(batch * 3)
			s.wait(time.Minute)
			s.do(&window.Reclaim{})
			s.wait(time.Minute) // past any backoff
			window.Advance(s.v, s.mem.Now())
		}
		for need, ok := s.v.Need(s.log.Head()); ok; need, ok = s.v.Need(s.log.Head()) {
			s.log.Feed(s.v, need)
		}
		fronts := map[window.Offset]bool{}
		lowest := map[uint64]window.Offset{}
		for off := len(hashes) - 1; off >= 0; off-- {
			lowest[hashes[off]] = window.Offset(off)
		}
		for _, off := range lowest {
			fronts[off] = true
		}

		ready, _ := s.v.Ready()
		for range ready {
			pops := []window.Request{}
			for range rapid.IntRange(1, 2).Draw(rt, "pops together") {
				pops = append(pops, &window.Pop{MaxMessages: batch, Lease: time.Hour})
			}
			for _, out := range s.do(pops...) {
				for _, m := range out.Messages {
					delete(fronts, m.Offset)
				}
			}
		}

		require.Empty(rt, fronts)
		require.NoError(rt, window.Audit(s.v, s.log.Head(), s.log.Hash))
	})
}

func TestEntriesComeBackAsTheyWere(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var entries []window.Entry
		off := window.Offset(0)
		for range rapid.IntRange(0, 30).Draw(t, "entries") {
			off += window.Offset(rapid.Int64Range(1, 1<<40).Draw(t, "distance"))
			entries = append(entries, window.Entry{Offset: off, Hash: rapid.SampledFrom([]uint64{0, 1, 1 << 63}).Draw(t, "hash"), Size: rapid.Uint32().Draw(t, "size")})
		}
		alone := rapid.Bool().Draw(t, "alone")

		gotAlone, got, err := window.DecodeEntries(window.EncodeEntries(nil, alone, entries))

		require.NoError(t, err)
		require.Equal(t, alone, gotAlone)
		require.Len(t, got, len(entries))
		for i := range entries {
			require.Equal(t, entries[i], got[i])
		}
	})
}

func FuzzDecodeEntries(f *testing.F) {
	f.Add(window.EncodeEntries(nil, true, []window.Entry{{Offset: 7, Hash: 9, Size: 300}}))
	f.Add(window.EncodeEntries(nil, false, []window.Entry{{Offset: 0, Hash: 9, Size: 1}, {Offset: 5, Hash: 9, Size: 2}, {Offset: 6, Hash: 1, Size: 3}}))
	f.Fuzz(func(t *testing.T, raw []byte) {
		alone, entries, err := window.DecodeEntries(raw)
		if err != nil {
			require.ErrorIs(t, err, window.ErrCorrupt)
			return
		}
		for i := 1; i < len(entries); i++ {
			require.Greater(t, entries[i].Offset, entries[i-1].Offset)
		}
		_, again, err := window.DecodeEntries(window.EncodeEntries(nil, alone, entries))
		require.NoError(t, err)
		require.Len(t, again, len(entries))
	})
}

func TestRowsThatDoNotFitTogetherAreRefused(t *testing.T) {
	t.Parallel()
	s := newSim(t, queue.Ordered, queue.Block)
	s.log.Append(1, 1, 2)
	s.pop(1)
	good, err := s.mem.Read()
	require.NoError(t, err)

	twice := good
	twice.Leases = append([]window.LeaseRow{{Epoch: 99, Entries: good.Leases[0].Entries}}, good.Leases...)
	empty := good
	empty.Leases = []window.LeaseRow{{Epoch: 5, Entries: window.EncodeEntries(nil, false, nil)}}
	broken := good
	broken.Leases = []window.LeaseRow{{Epoch: 5, Entries: []byte("x")}}
	settledTo := good
	settledTo.Row.Hot.Bits[0] = 0xff

	for _, rows := range []window.Snapshot{twice, empty, broken, settledTo} {
		_, err := window.Load(rows, s.p)
		require.ErrorIs(t, err, window.ErrCorrupt)
	}
}

func TestCommitOfAnotherChangeIsABug(t *testing.T) {
	t.Parallel()
	s := newSim(t, queue.Ordered, queue.Block)
	s.log.Append(1, 1)
	pop := []window.Request{&window.Pop{MaxMessages: 1, Lease: time.Second}}
	s.log.Supply(s.v, &window.Pop{MaxMessages: 2})
	first, _ := s.v.Plan(s.mem.Now(), half, pop)
	second, _ := s.v.Plan(s.mem.Now(), half, pop)

	require.Panics(t, func() { s.v.Commit(first, window.Stamp{At: s.mem.Now()}) })
	s.v.Commit(second, window.Stamp{At: s.mem.Now()})
	require.Panics(t, func() { s.v.Commit(second, window.Stamp{At: s.mem.Now()}) })
}
