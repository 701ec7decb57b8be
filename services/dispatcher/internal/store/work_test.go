package store_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"postrider.dev/services/dispatcher/internal/domain/lease"
	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/settled"
	"postrider.dev/services/dispatcher/internal/domain/window"
	"postrider.dev/services/dispatcher/internal/store"
)

func known(gs lease.GroupShardID, v window.Version) map[window.GroupShardID]window.Version {
	return map[window.GroupShardID]window.Version{gs: v}
}

// everything is a change with every part, of a group-shard at version 1.
func everything(gs lease.GroupShardID) window.Change {
	c := window.Change{
		ID: gs, From: 1, To: 2, Low: 5, UnsettledBelow: 3, LeaseLow: 2,
		ChunkUpserts: []settled.Chunk{{No: 7, Encoding: settled.EncodingList, Data: []byte{1, 0}}, {No: 9, Encoding: settled.EncodingNone}},
		LeaseInserts: []window.LeaseInsert{
			{Epoch: lease.MakeEpoch(2, 0), Lease: 30 * time.Second, Holder: "c1", Entries: []byte("e1")},
			{Epoch: lease.MakeEpoch(2, 1), Lease: time.Millisecond, Holder: "c\x00\xff2", Entries: []byte("e2")},
		},
		RetryUpserts: []window.RetryUpsert{
			{Offset: 11, PartitionHash: 1 << 63, Failures: 1, Deliveries: 2, After: time.Second, AloneThrough: -1, LastError: "broken \x00 \xff"},
			{Offset: 12, PartitionHash: 5, AvailableAt: 1_700_000_000_000_001, AloneThrough: 40},
		},
		DeadLetters: []window.DeadLetter{
			{
				ID: uuid.New(), Offset: 4, PartitionHash: 8, Failures: 5, Deliveries: 6, Reason: window.DeadAttempts, LastError: "why",
				Snapshot: &message.Message{Partition: "p", ClientID: "mine", ContentType: "text/plain", Payload: []byte{0, 1}, Headers: []message.Header{{Name: "a", Value: "b\x00"}, {Name: "", Value: ""}}},
			},
			{ID: uuid.New(), Offset: 3, Reason: window.DeadRejected},
		},
	}
	c.Hot.Chunk, c.Hot.Bits[0], c.Hot.Bits[settled.HotBytes-1] = 10, 0xFF, 0x80
	return c
}

func apply(b *bench, changes ...window.Change) []store.WorkResult {
	b.t.Helper()
	results, err := b.store.Work(b.t.Context(), changes)
	require.NoError(b.t, err)
	return results
}

func TestChangeIsWrittenWholeWithOneInstant(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	gs := b.groupShard(b.shard())
	change := everything(gs)

	results := apply(b, change)
	state, err := b.store.Snapshot(t.Context(), gs)
	require.NoError(t, err)

	at := results[0].Stamp.At
	require.True(t, results[0].Applied)
	require.Equal(t, window.Row{
		ID: gs, Version: 2, Shard: state.Row.Shard, Hot: change.Hot, Low: 5, UnsettledBelow: 3, LeaseLow: 2,
	}, state.Row)
	require.Equal(t, []settled.Chunk{{No: 7, Encoding: settled.EncodingList, Data: []byte{1, 0}}, {No: 9, Encoding: settled.EncodingNone, Data: []byte{}}}, state.Chunks)
	require.Equal(t, []window.LeaseRow{
		{Epoch: lease.MakeEpoch(2, 0), ExpiresAt: at.Add(30 * time.Second), Holder: "c1", Entries: []byte("e1")},
		{Epoch: lease.MakeEpoch(2, 1), ExpiresAt: at.Add(time.Millisecond), Holder: "c\uFFFD\uFFFD2", Entries: []byte("e2")},
	}, state.Leases)
	require.Equal(t, []window.RetryRow{
		{Offset: 11, PartitionHash: 1 << 63, Failures: 1, Deliveries: 2, AvailableAt: at.Add(time.Second), AloneThrough: -1, LastError: "broken \uFFFD \uFFFD"},
		{Offset: 12, PartitionHash: 5, AvailableAt: 1_700_000_000_000_001, AloneThrough: 40},
	}, state.Retries)
	require.Equal(t, 2, scan[int](b, "SELECT count(*) FROM dispatcher.dead_letters WHERE failed_at = $1", at.Time()))
	headers, err := store.DecodeHeaders(scan[[]byte](b, `SELECT headers FROM dispatcher.dead_letters WHERE "offset" = 4 AND partition = 'p'
		AND client_id = 'mine' AND content_type = 'text/plain' AND payload = '\x0001' AND deliveries = 6 AND failures = 5 AND reason = 'attempts'`))
	require.NoError(t, err)
	require.Equal(t, change.DeadLetters[0].Snapshot.Headers, headers)
	require.True(t, scan[bool](b, `SELECT payload IS NULL AND partition IS NULL FROM dispatcher.dead_letters WHERE "offset" = 3`))
}

func TestLaterChangeUpdatesAndDeletesWhatTheFirstWrote(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	gs := b.groupShard(b.shard())
	first := apply(b, everything(gs))[0]
	c := window.Change{
		ID: gs, From: 2, To: 3, LeaseLow: 2,
		ChunkUpserts: []settled.Chunk{{No: 9, Encoding: settled.EncodingList, Data: []byte{5, 5}}},
		ChunkDeletes: []settled.ChunkNo{7},
		LeaseUpdates: []window.LeaseUpdate{{Epoch: lease.MakeEpoch(2, 0), Extend: time.Second}, {Epoch: lease.MakeEpoch(2, 1), Entries: []byte("less"), Extend: time.Hour}},
		RetryUpserts: []window.RetryUpsert{{Offset: 12, PartitionHash: 6, After: time.Minute}},
		RetryDeletes: []window.Offset{11},
	}

	second := apply(b, c)[0]
	state, err := b.store.Snapshot(t.Context(), gs)
	require.NoError(t, err)

	require.Equal(t, []settled.Chunk{{No: 9, Encoding: settled.EncodingList, Data: []byte{5, 5}}}, state.Chunks)
	require.Equal(t, []window.RetryRow{{Offset: 12, PartitionHash: 6, AvailableAt: second.Stamp.At.Add(time.Minute)}}, state.Retries)
	require.Equal(t, []window.LeaseRow{
		{Epoch: lease.MakeEpoch(2, 0), ExpiresAt: first.Stamp.At.Add(30 * time.Second), Holder: "c1", Entries: []byte("e1")},
		{Epoch: lease.MakeEpoch(2, 1), ExpiresAt: second.Stamp.At.Add(time.Hour), Holder: "c\uFFFD\uFFFD2", Entries: []byte("less")},
	}, state.Leases, "a renewal never shortens")

	apply(b, window.Change{ID: gs, From: 3, To: 4, LeaseDeletes: []window.Epoch{lease.MakeEpoch(2, 0)}})
	state, err = b.store.Snapshot(t.Context(), gs)
	require.NoError(t, err)
	require.Len(t, state.Leases, 1)
}

// dump is every row a change could touch.
func dump(b *bench) string {
	return scan[string](b, `SELECT concat_ws(E'\n', (SELECT string_agg(x::text, E'\n' ORDER BY x::text) FROM dispatcher.group_shards x),
		(SELECT string_agg(x::text, E'\n' ORDER BY x::text) FROM dispatcher.settled_chunks x),
		(SELECT string_agg(x::text, E'\n' ORDER BY x::text) FROM dispatcher.leases x),
		(SELECT string_agg(x::text, E'\n' ORDER BY x::text) FROM dispatcher.retries x),
		(SELECT string_agg(x::text, E'\n' ORDER BY x::text) FROM dispatcher.dead_letters x))`)
}

func TestLostRaceChangesNothingAndHarmsNoOther(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	shard := b.shard()
	lost, won := b.groupShard(shard), b.groupShard(shard)
	apply(b, everything(lost))
	before := dump(b)
	stale := everything(lost)
	stale.ChunkDeletes, stale.LeaseDeletes = []settled.ChunkNo{7}, []window.Epoch{lease.MakeEpoch(2, 0)}
	stale.RetryDeletes, stale.LeaseInserts = []window.Offset{12}, nil
	stale.LeaseUpdates = []window.LeaseUpdate{{Epoch: lease.MakeEpoch(2, 1), Extend: time.Hour}}

	result := apply(b, stale)[0]
	gone := apply(b, window.Change{ID: 999, From: 1, To: 2})[0]
	require.Equal(t, before, dump(b))
	both := apply(b, window.Change{ID: won, From: 1, To: 2}, stale)

	require.False(t, result.Applied)
	require.False(t, result.Early(&stale))
	require.False(t, gone.Applied)
	require.True(t, both[0].Applied)
	require.False(t, both[1].Applied)
}

func TestChangeWaitsForItsTime(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	gs := b.groupShard(b.shard())
	clock := freezeClock(b, time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))
	change := everything(gs)
	change.NotBefore = window.DBTimeOf(clock.at).Add(time.Second)
	before := dump(b)

	clock.advance(time.Second - time.Microsecond)
	early := apply(b, change)[0]
	require.Equal(t, before, dump(b))
	clock.advance(time.Microsecond)
	due := apply(b, change)[0]

	require.False(t, early.Applied)
	require.True(t, early.Early(&change))
	require.True(t, due.Applied)
	require.Equal(t, change.NotBefore, due.Stamp.At)
}

// The clock goes on while a statement runs: each look at it here is a microsecond later than the one before.
func TestAChangeThatIsHardlyTooEarlyIsNotTakenForALostRace(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	gs := b.groupShard(b.shard())
	b.exec("CREATE SEQUENCE dispatcher.ticks")
	b.exec(`CREATE OR REPLACE FUNCTION dispatcher.clock() RETURNS timestamptz LANGUAGE sql VOLATILE AS
		$$SELECT '2026-03-01T12:00:00Z'::timestamptz + nextval('dispatcher.ticks') * interval '1 microsecond'$$`)
	change := everything(gs)
	change.NotBefore = window.DBTimeOf(time.Date(2026, 3, 1, 12, 0, 0, 2000, time.UTC)) // the second look

	early := apply(b, change)[0]
	due := apply(b, change)[0]

	require.False(t, early.Applied)
	require.True(t, early.Early(&change), "judged at %d, told %d, not before %d", change.NotBefore-1, early.Now, change.NotBefore)
	require.True(t, due.Applied)
}

func TestDroppedGroupShardLeavesNothing(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	shard := b.shard()
	before, gone, after := b.groupShard(shard), b.groupShard(shard), b.groupShard(shard)
	apply(b, everything(before), everything(gone), everything(after))

	stale := apply(b, window.Change{ID: gone, From: 1, To: 2, Drop: true})[0]
	dropped := apply(b, window.Change{ID: gone, From: 2, To: 3, Drop: true})[0]
	_, err := b.store.Snapshot(t.Context(), gone)

	require.False(t, stale.Applied)
	require.True(t, dropped.Applied)
	require.ErrorIs(t, err, store.ErrGone)
	for _, gs := range []lease.GroupShardID{before, after} {
		state, err := b.store.Snapshot(t.Context(), gs)
		require.NoError(t, err)
		require.Len(t, state.Leases, 2)
		require.Len(t, state.Chunks, 2)
		require.Len(t, state.Retries, 2)
	}
	require.Equal(t, 4, scan[int](b, "SELECT count(*) FROM dispatcher.leases"))
	require.Equal(t, 6, scan[int](b, "SELECT count(*) FROM dispatcher.dead_letters"), "they outlive their group")
}

func TestDeadLetterIsNamedAfterItsGroupAndQueue(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	shard := b.shard()
	gs := b.groupShard(shard)
	b.exec(`WITH q AS (INSERT INTO dispatcher.queues (tenant_id, name, shard_ids) VALUES ('acme', 'orders', '{}') RETURNING id),
		g AS (INSERT INTO dispatcher.groups (queue_id, name, mode, on_failure, start, group_shard_ids)
			SELECT id, 'workers', 'ordered', 'block', 'earliest', '{}' FROM q RETURNING id)
		UPDATE dispatcher.group_shards SET group_id = (SELECT id FROM g) WHERE id = $1`, gs)

	apply(b, everything(gs))

	require.Equal(t, 2, scan[int](b, `SELECT count(*) FROM dispatcher.dead_letters d JOIN dispatcher.groups g ON g.id = d.group_id
		WHERE d.tenant_id = 'acme' AND d.group_name = 'workers' AND d.queue_id = g.queue_id AND d.shard_id = $1`, shard))
}

func TestWorkRefusesWhatCannotBeOneTransaction(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	gs := b.groupShard(b.shard())
	unnamed := everything(gs)
	unnamed.DeadLetters[0].ID = [16]byte{}

	for _, changes := range [][]window.Change{
		{{ID: gs, From: 1, To: 2}, {ID: gs, From: 2, To: 3}},
		make([]window.Change, store.MaxWork+1),
		{unnamed},
	} {
		_, err := b.store.Work(t.Context(), changes)
		require.Error(t, err)
	}

	require.EqualValues(t, 1, scan[int64](b, "SELECT version FROM dispatcher.group_shards"))
}

func TestRefreshReadsWhatIsNewAndWhetherTheKnownIsStillThere(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	gs := b.groupShard(b.shard())
	apply(b, everything(gs))
	apply(b, window.Change{
		ID: gs, From: 2, To: 3, LeaseLow: 2, LeaseDeletes: []window.Epoch{lease.MakeEpoch(2, 0)},
		LeaseInserts: []window.LeaseInsert{{Epoch: lease.MakeEpoch(3, 0), Lease: time.Second}},
	})

	full, err := b.store.Snapshot(t.Context(), gs)
	require.NoError(t, err)
	refreshed, err := b.store.Refresh(t.Context(), gs, window.Known{Version: 2, Leases: []window.Epoch{lease.MakeEpoch(2, 0), lease.MakeEpoch(2, 1)}})
	require.NoError(t, err)
	restored, err := b.store.Refresh(t.Context(), gs, window.Known{Version: 50, Leases: []window.Epoch{lease.MakeEpoch(49, 1)}})
	require.NoError(t, err)

	require.Equal(t, window.Snapshot{Row: full.Row, Leases: full.Leases, ChunksKept: true, RetriesKept: true}, refreshed.Snapshot)
	require.Equal(t, full.Snapshot, restored.Snapshot, "the database is an earlier one")
	for _, c := range []window.Change{{ChunkDeletes: []settled.ChunkNo{9}}, {RetryDeletes: []window.Offset{11}}} {
		c.ID, c.From, c.To = gs, full.Row.Version, full.Row.Version+1
		apply(b, c)
		changed, err := b.store.Refresh(t.Context(), gs, window.Known{Version: full.Row.Version})
		require.NoError(t, err)
		require.Equal(t, len(c.ChunkDeletes) == 0, changed.ChunksKept)
		require.Equal(t, len(c.RetryDeletes) == 0, changed.RetriesKept)
		full, err = b.store.Snapshot(t.Context(), gs)
		require.NoError(t, err)
		require.Len(t, full.Chunks, 1)
	}
	require.Len(t, full.Retries, 1)
}

func TestExpiredLeasesAreFoundByGroupShard(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	clock := freezeClock(b, time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))
	shard := b.shard()
	late, later, never := b.groupShard(shard), b.groupShard(shard), b.groupShard(shard)
	insert := func(gs lease.GroupShardID, leases ...time.Duration) {
		c := window.Change{ID: gs, From: 1, To: 2}
		for i, d := range leases {
			c.LeaseInserts = append(c.LeaseInserts, window.LeaseInsert{Epoch: lease.MakeEpoch(2, uint16(i)), Lease: d})
		}
		apply(b, c)
	}
	insert(later, 2*time.Second, time.Hour)
	insert(late, time.Second, 3*time.Second)
	insert(never, time.Hour)

	clock.advance(3 * time.Second)
	all, err := b.store.ExpiredLeases(t.Context(), 10)
	require.NoError(t, err)
	one, err := b.store.ExpiredLeases(t.Context(), 1)
	require.NoError(t, err)

	began := window.DBTimeOf(clock.at.Add(-3 * time.Second))
	require.Equal(t, []store.Expired{
		{GroupShard: late, Shard: shard, Leases: 2, Since: began.Add(time.Second)},
		{GroupShard: later, Shard: shard, Leases: 1, Since: began.Add(2 * time.Second)},
	}, all)
	require.Equal(t, all[:1], one)
}

// Sweeps look only at what ran out lately, and now and then at everything: a lease may be committed after its own end.
func TestLeaseThatWasMissedIsFoundByALaterSweep(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	clock := freezeClock(b, time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))
	gs := b.groupShard(b.shard())
	sweep := func() int {
		found, err := b.store.ExpiredLeases(t.Context(), 10)
		require.NoError(t, err)
		return len(found)
	}

	require.Zero(t, sweep())
	apply(b, window.Change{ID: gs, From: 1, To: 2, LeaseInserts: []window.LeaseInsert{{Epoch: lease.MakeEpoch(2, 0), Lease: -20 * time.Second}}})
	require.Zero(t, sweep())
	clock.advance(time.Minute)
	sweep()
	require.Equal(t, 1, sweep())
	clock.advance(time.Second)
	require.Equal(t, 1, sweep(), "it is still there")
}

// The leases of a deleted group stay until they are purged, and may be many.
func TestLeasesOfDeletedGroupsHideNoOthers(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	clock := freezeClock(b, time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))
	gs := b.groupShard(b.shard())
	apply(b, window.Change{ID: gs, From: 1, To: 2, LeaseInserts: []window.LeaseInsert{{Epoch: lease.MakeEpoch(2, 0), Lease: 10 * time.Second}}})
	b.exec(`INSERT INTO dispatcher.leases (key, expires_at, holder, entries)
		SELECT encode(int8send(999999) || int8send(n), 'hex')::uuid, dispatcher.now() + n * interval '400 microseconds', '', ''
		FROM generate_series(1, 25000) n`)
	clock.advance(time.Minute)

	found, err := b.store.ExpiredLeases(t.Context(), 10)
	require.NoError(t, err)
	again, err := b.store.ExpiredLeases(t.Context(), 10)
	require.NoError(t, err)

	require.Len(t, found, 1)
	require.Equal(t, gs, found[0].GroupShard)
	require.Equal(t, found, again)
}
