package store_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"postrider.dev/services/dispatcher/internal/domain/invalid"
	"postrider.dev/services/dispatcher/internal/domain/queue"
	"postrider.dev/services/dispatcher/internal/store"
)

func TestRacingFirstPushesMakeOneQueue(t *testing.T) {
	t.Parallel()
	c := newCold(t)
	others := []*store.Control{c.control, c.another(), c.another()}
	ids := make([]int64, 24)
	made := make([]bool, len(ids))

	noErrors(t, race(len(ids), func(i int) error {
		q, created, err := others[i%len(others)].EnsureQueue(t.Context(), "a", "q")
		ids[i], made[i] = q.ID, created
		return err
	}))

	count := 0
	for i := range ids {
		require.Equal(t, ids[0], ids[i])
		if made[i] {
			count++
		}
	}
	require.Equal(t, 1, count)
	require.Equal(t, int64(1), scan[int64](c.bench, "SELECT count(*) FROM dispatcher.shards"))
	require.Empty(t, c.audited(), "first use is no control action")
}

func TestQueueHasTheShardsItWasMadeWith(t *testing.T) {
	t.Parallel()
	c := newCold(t)

	done, err := c.control.Configure(t.Context(), by("a"), "q", queue.Patch{Set: queue.Options{Shards: ptr(7)}})
	require.NoError(t, err)
	require.True(t, done.Created)
	require.Len(t, done.Queue.Shards, 7)
	require.Equal(t, int64(7), scan[int64](c.bench, "SELECT count(*) FROM dispatcher.shards WHERE queue_id = $1 AND config_version = 1", done.Queue.ID))

	_, err = c.control.Configure(t.Context(), by("a"), "q", queue.Patch{Set: queue.Options{Shards: ptr(8)}})
	require.ErrorIs(t, err, &invalid.Error{Code: invalid.OptionFixed, Field: "shards"})
	_, err = c.control.Configure(t.Context(), by("a"), "q", queue.Patch{Reset: []queue.Option{queue.OptShards}})
	require.ErrorIs(t, err, &invalid.Error{Code: invalid.OptionFixed, Field: "shards"})
	_, err = c.control.Configure(t.Context(), by("a"), "q", queue.Patch{Set: queue.Options{Shards: ptr(7), MaxAttempts: ptr(9)}})
	require.NoError(t, err, "the same value may be repeated")
}

func TestConfigureMergesAndResetRestoresTheDefault(t *testing.T) {
	t.Parallel()
	c := newCold(t)
	ctx := t.Context()

	first, err := c.control.Configure(ctx, by("a"), "q", queue.Patch{Set: queue.Options{Lease: ptr(time.Minute), MaxAttempts: ptr(9)}})
	require.NoError(t, err)
	require.Equal(t, int64(1), first.Queue.ConfigVersion)
	second, err := c.control.Configure(ctx, by("a"), "q", queue.Patch{Set: queue.Options{MaxGroups: ptr(3)}, Reset: []queue.Option{queue.OptLease}})
	require.NoError(t, err)

	require.False(t, second.Created)
	require.Equal(t, first.Queue.ID, second.Queue.ID)
	require.Equal(t, int64(2), second.Queue.ConfigVersion)
	require.Equal(t, queue.DefaultLease, second.Queue.Config.Lease)
	require.Equal(t, 9, second.Queue.Config.MaxAttempts)
	require.Equal(t, 3, second.Queue.Config.MaxGroups)
	read, err := c.control.FindQueue(ctx, "a", "q")
	require.NoError(t, err)
	require.Equal(t, second.Queue, read)
	require.JSONEq(t, `{"max_attempts": 9, "max_groups": 3}`, scan[string](c.bench, "SELECT config::text FROM dispatcher.queues"), "defaults are not stored")
}

func TestConfigureWritesTheVersionIntoTheShards(t *testing.T) {
	t.Parallel()
	c := newCold(t)
	q := c.queue("a", "q")

	done, err := c.control.Configure(t.Context(), by("a"), "q", queue.Patch{Set: queue.Options{MaxAttempts: ptr(1)}})
	require.NoError(t, err)
	c.push(q, msg("p", "x"))
	require.Equal(t, done.Queue.ConfigVersion, scan[int64](c.bench, "SELECT config_version FROM dispatcher.shards WHERE id = $1", q.Shards[0]))

	same, err := c.control.Configure(t.Context(), by("a"), "q", queue.Patch{Set: queue.Options{MaxAttempts: ptr(1)}})
	require.NoError(t, err)
	require.False(t, same.Changed)
	require.Equal(t, done.Queue.ConfigVersion, same.Queue.ConfigVersion, "what changes nothing makes no version")
}

func TestBadOptionNamesItselfAndChangesNothing(t *testing.T) {
	t.Parallel()
	c := newCold(t)
	c.queue("a", "q")
	for want, p := range map[invalid.Error]queue.Patch{
		{Code: invalid.OptionUnknown, Field: "colour"}: {Reset: []queue.Option{"colour"}},
		{Code: invalid.OutOfRange, Field: "lease"}:     {Set: queue.Options{Lease: ptr(time.Millisecond), MaxAttempts: ptr(3)}},
		{Code: invalid.OutOfRange, Field: "backoff_max"}: {
			Set: queue.Options{BackoffBase: ptr(time.Minute), BackoffCap: ptr(time.Second)},
		},
	} {
		_, err := c.control.Configure(t.Context(), by("a"), "q", p)
		require.ErrorIs(t, err, &want)
		_, err = c.control.Configure(t.Context(), by("a"), "new", p)
		require.ErrorIs(t, err, &want)
	}
	require.Equal(t, int64(1), scan[int64](c.bench, "SELECT sum(config_version)::bigint FROM dispatcher.queues"))
	require.Empty(t, c.audited())
}

func TestRacingConfigurationsAllTakeEffect(t *testing.T) {
	t.Parallel()
	c := newCold(t)
	patches := []queue.Options{
		{Lease: ptr(time.Minute)},
		{MaxAttempts: ptr(2)},
		{MaxGroups: ptr(7)},
		{MaxMessageBytes: ptr(99)},
		{BackoffBase: ptr(2 * time.Second)},
		{BackoffCap: ptr(time.Hour)},
		{IdempotencyWindow: ptr(time.Duration(0))},
		{Compression: ptr(queue.CompressionNone)},
	}

	noErrors(t, race(len(patches), func(i int) error {
		_, err := c.control.Configure(t.Context(), by("a"), "q", queue.Patch{Set: patches[i]})
		return err
	}))

	q, err := c.control.FindQueue(t.Context(), "a", "q")
	require.NoError(t, err)
	require.Equal(t, queue.Config{
		Lease: time.Minute, MaxAttempts: 2, MaxGroups: 7, MaxMessageBytes: 99, Shards: 1, Lanes: 1, Compression: queue.CompressionNone,
		Retention: queue.Retention{ExpireAfter: 7 * 24 * time.Hour},
		Backoff:   queue.Backoff{Base: 2 * time.Second, Cap: time.Hour},
	}, q.Config)
	require.Equal(t, int64(len(patches)), q.ConfigVersion)
	require.Len(t, c.audited(), len(patches))
}

func TestDeletedNameGetsANewIDAndOldShardsTakeNothing(t *testing.T) {
	t.Parallel()
	c := newCold(t)
	old := c.queue("a", "q")
	g := c.group(old, "g", store.GroupOptions{})
	c.push(old, msg("p", "x"))

	_, err := c.control.DeleteQueue(t.Context(), by("a"), "q", false)
	require.NoError(t, err)

	_, err = c.control.FindQueue(t.Context(), "a", "q")
	require.ErrorIs(t, err, store.ErrQueueNotFound)
	done, err := c.store.Flush(t.Context(), []store.Append{appendOf(old.Shards[0], 1)})
	require.NoError(t, err)
	require.Equal(t, store.StatusSealed, done[0].Status)
	require.Zero(t, scan[int64](c.bench, "SELECT count(*) FROM dispatcher.group_shards WHERE id = $1", g.Shards[0]), "leases are fenced")
	_, _, err = c.control.EnsureGroup(t.Context(), old, "h", store.GroupOptions{})
	require.ErrorIs(t, err, store.ErrQueueNotFound)

	again := c.queue("a", "q")
	require.NotEqual(t, old.ID, again.ID)
	require.NotEqual(t, old.Shards, again.Shards)
	_, err = c.control.DeleteQueue(t.Context(), by("a"), "nobody", false)
	require.ErrorIs(t, err, store.ErrQueueNotFound)
}

func TestDeleteIsRefusedWhileLeasedUnlessForced(t *testing.T) {
	t.Parallel()
	c := newCold(t)
	q := c.queue("a", "q")
	g := c.group(q, "g", store.GroupOptions{})
	c.lease(int64(g.Shards[0]), 1, "1 hour")

	_, err := c.control.DeleteQueue(t.Context(), by("a"), "q", false)
	require.ErrorIs(t, err, store.ErrQueueLeased)
	require.Empty(t, c.audited())
	c.push(q, msg("p", "still takes messages"))

	_, err = c.control.DeleteQueue(t.Context(), by("a"), "q", true)
	require.NoError(t, err)
	require.Equal(t, []string{"a ann queue.delete queue/q"}, c.audited())
}

func TestLeaseThatRanOutDoesNotHoldADelete(t *testing.T) {
	t.Parallel()
	c := newCold(t)
	q := c.queue("a", "q")
	g := c.group(q, "g", store.GroupOptions{})
	neighbour := c.group(c.queue("a", "other"), "g", store.GroupOptions{})
	c.lease(int64(g.Shards[0]), 1, "-1 second")
	c.lease(int64(neighbour.Shards[0]), 1, "1 hour")

	_, err := c.control.DeleteQueue(t.Context(), by("a"), "q", false)
	require.NoError(t, err)
}

func TestPurgeFreesWhatADeleteLeftAndNothingElse(t *testing.T) {
	t.Parallel()
	c := newCold(t)
	gone, kept := c.queue("a", "gone"), c.queue("a", "kept")
	for _, q := range []store.Queue{gone, kept} {
		g := c.group(q, "g", store.GroupOptions{})
		for i := range 450 {
			c.push(q, msg("p", string(rune('a'+i%26))))
		}
		c.exec(`INSERT INTO dispatcher.leases SELECT encode(int8send($1) || int8send(i), 'hex')::uuid, now() - interval '1 h', '', ''
			FROM generate_series(1, 4500) i`, int64(g.Shards[0]))
		c.exec(`INSERT INTO dispatcher.retries SELECT encode(int8send($1) || int8send(i), 'hex')::uuid, 1, 1, 1, now(), -1, ''
			FROM generate_series(1, 2000) i`, int64(g.Shards[0]))
		c.exec(`INSERT INTO dispatcher.settled_chunks SELECT encode(int8send($1) || int8send(i), 'hex')::uuid, 3, '' FROM generate_series(1, 10) i`, int64(g.Shards[0]))
		c.exec(`INSERT INTO dispatcher.idempotency_keys SELECT gen_random_uuid(), $1, i, 1, NULL, now() FROM generate_series(1, 3000) i`, q.Shards[0])
		c.exec(`INSERT INTO dispatcher.partitions SELECT $1, 'p' || i, $2, 0, 1, now() FROM generate_series(1, 4100) i`, q.ID, q.Shards[0])
		c.exec(`INSERT INTO dispatcher.tombstones SELECT $1, i FROM generate_series(1, 4200) i`, q.Shards[0])
	}
	count := func() (out []int64) {
		for _, table := range []string{"segments", "leases", "retries", "settled_chunks", "idempotency_keys", "partitions", "tombstones", "catalogued", "shards", "groups", "group_shards", "queues", "garbage"} {
			out = append(out, scan[int64](c.bench, "SELECT count(*) FROM dispatcher."+table))
		}
		return out
	}
	require.Equal(t, []int64{900, 9000, 4000, 20, 6000, 8200, 8400, 2, 2, 2, 2, 2, 0}, count())

	_, err := c.control.DeleteQueue(t.Context(), by("a"), "gone", true)
	require.NoError(t, err)
	c.purgeAll()

	require.Equal(t, []int64{450, 4500, 2000, 10, 3000, 4100, 4200, 1, 1, 1, 1, 1, 0}, count())
	_, err = c.control.FindQueue(t.Context(), "a", "kept")
	require.NoError(t, err)
}

func TestPurgersShareTheWorkAndSurviveEachOther(t *testing.T) {
	t.Parallel()
	c := newCold(t)
	for _, name := range []string{"q1", "q2", "q3", "q4"} {
		q := c.queue("a", name)
		for range 250 {
			c.push(q, msg("p", "x"))
		}
		c.exec(`INSERT INTO dispatcher.idempotency_keys SELECT gen_random_uuid(), $1, i, 1, NULL, now() FROM generate_series(1, 500) i`, q.Shards[0])
		_, err := c.control.DeleteQueue(t.Context(), by("a"), name, false)
		require.NoError(t, err)
	}
	noErrors(t, race(4, func(int) error {
		control := c.another()
		for {
			more, err := control.Purge(t.Context())
			if !more || err != nil {
				return err
			}
		}
	}))
	c.purgeAll()
	require.Zero(t, scan[int64](c.bench, `SELECT (SELECT count(*) FROM dispatcher.segments) + (SELECT count(*) FROM dispatcher.queues)
		+ (SELECT count(*) FROM dispatcher.idempotency_keys) + (SELECT count(*) FROM dispatcher.shards) + (SELECT count(*) FROM dispatcher.garbage)`))
}

func TestQueuesAreListedByNameWithinTheirPrefixAndTenant(t *testing.T) {
	t.Parallel()
	c := newCold(t)
	for _, name := range []string{"a", "ab", "abc", "b", "ä", "ab\U0010FFFF", "ab\U0010FFFFx", "B", "ac"} {
		c.queue("a", name)
	}
	c.queue("b", "abd")
	names := func(prefix, after string, limit int) []string {
		queues, err := c.control.ListQueues(t.Context(), "a", prefix, after, limit)
		require.NoError(t, err)
		out := []string{}
		for _, q := range queues {
			out = append(out, q.Name)
		}
		return out
	}
	require.Equal(t, []string{"B", "a", "ab", "abc", "ab\U0010FFFF", "ab\U0010FFFFx", "ac", "b", "ä"}, names("", "", 100))
	require.Equal(t, []string{"ab", "abc", "ab\U0010FFFF", "ab\U0010FFFFx"}, names("ab", "", 100))
	require.Equal(t, []string{"ab\U0010FFFF", "ab\U0010FFFFx"}, names("ab\U0010FFFF", "", 100))
	require.Equal(t, []string{"abc", "ab\U0010FFFF"}, names("ab", "ab", 2))
	require.Empty(t, names("zz", "", 100))
}

func TestStoreKeepsTenantsApart(t *testing.T) {
	t.Parallel()
	c := newCold(t)
	ctx := t.Context()
	q := c.queue("a", "q")
	c.group(q, "g", store.GroupOptions{})
	id := c.deadLetter(q, "g", "p", "secret")
	other := by("b")

	for name, do := range map[string]func() error{
		"find queue":   func() error { _, err := c.control.FindQueue(ctx, "b", "q"); return err },
		"delete queue": func() error { _, err := c.control.DeleteQueue(ctx, other, "q", true); return err },
		"create group": func() error {
			_, _, err := c.control.CreateGroup(ctx, other, "q", "h", store.GroupOptions{})
			return err
		},
		"delete group": func() error { _, err := c.control.DeleteGroup(ctx, other, "q", "g"); return err },
		"dead letters": func() error {
			_, err := c.control.ListDeadLetters(ctx, "b", "q", store.DeadLetterFilter{Limit: 9})
			return err
		},
		"dead letter": func() error { _, err := c.control.GetDeadLetter(ctx, "b", "q", id); return err },
		"redrive": func() error {
			_, err := c.control.Redrive(ctx, other, "q", store.RedriveRequest{IDs: []store.DeadLetterID{id}})
			return err
		},
	} {
		require.ErrorIs(t, do(), store.ErrQueueNotFound, name)
	}

	c.queue("b", "q") // a queue of the same name opens nothing
	_, err := c.control.GetDeadLetter(ctx, "b", "q", id)
	require.ErrorIs(t, err, store.ErrDeadLetterNotFound)
	done, err := c.control.Redrive(ctx, other, "q", store.RedriveRequest{IDs: []store.DeadLetterID{id}})
	require.NoError(t, err)
	require.Equal(t, []store.DeadLetterID{id}, done.NotFound)
	require.Empty(t, c.log(q))
}

func TestLookingForAQueueFailsAsSuchWhenTheDatabaseIsAway(t *testing.T) {
	t.Parallel()
	c := newCold(t)
	pool := c.database.OpenAs("dispatcher", store.Settings())
	pool.Close()
	_, err := store.NewControl(store.New(pool), c.enc, c.dec).FindQueue(t.Context(), "a", "q")
	require.Error(t, err)
	require.NotErrorIs(t, err, store.ErrQueueNotFound)
}
