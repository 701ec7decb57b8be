package store_test

import (
	"errors"
	"io/fs"
	"math"
	"testing"
	"testing/fstest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"postrider.dev/pkg/clock"
	"postrider.dev/pkg/migrate"
	"postrider.dev/services/dispatcher/internal/store"
	"postrider.dev/services/dispatcher/migrations"
)

// coldAt is a database whose schema is at the step with that file, with the rights of production.
func coldAt(t *testing.T, last string) *cold {
	t.Helper()
	all := migrations.Set()
	names, err := fs.Glob(all.FS, "0*.sql")
	require.NoError(t, err)
	some := fstest.MapFS{}
	for _, name := range names {
		if name > last {
			continue
		}
		text, err := fs.ReadFile(all.FS, name)
		require.NoError(t, err)
		some[name] = &fstest.MapFile{Data: text}
	}
	require.Contains(t, some, last)
	return coldOn(t, migrate.Set{Schema: all.Schema, FS: some})
}

// upgrade takes the remaining steps, and returns how many.
func (c *cold) upgrade() int {
	c.t.Helper()
	done, err := migrate.Up(c.t.Context(), clock.Real{}, c.database.URLAs("dispatcher"), migrations.Set())
	require.NoError(c.t, err)
	return len(done)
}

// 0012 changes the key of a table that has rows.
func TestACatalogueFilledBeforeLanesIsListedTheSameAfterAndTakesTheSecondLane(t *testing.T) {
	t.Parallel()
	c := coldAt(t, "0011_tombstones.sql")
	q := c.laned(2, 1)
	c.pushTo(q, 0, msg("a", "1"), msg("b", "2"))
	c.pushTo(q, 1, msg("c", "3"))
	require.NoError(t, c.catalogue(c.control, q))
	listed := func(control *store.Control) []store.Partition {
		page, err := control.ListPartitions(t.Context(), q, "", math.MaxInt64, 10)
		require.NoError(t, err)
		return page
	}
	before := listed(c.control)
	require.Len(t, before, 3)

	require.Positive(t, c.upgrade())

	require.Equal(t, before, listed(c.another()))
	require.Equal(t, before, listed(c.control), "one who was connected all the time")
	c.pushTo(q, 0, msg("a", "4"))
	c.pushTo(q, 1, msg("a", "5"), msg("c", "6"))
	require.NoError(t, c.catalogue(c.control, q))
	after := listed(c.control)
	require.Len(t, after, 4, "the name has a row in each lane")
	require.Equal(t, before[0].Name, after[0].Name)
	require.Equal(t, before[0].FirstOffset, after[0].FirstOffset, "what was seen before is not forgotten")
	require.EqualValues(t, 2, after[0].LastOffset)
	require.Equal(t, q.Shards[1], after[1].Shard)
	require.Equal(t, before[1], after[2])
	require.EqualValues(t, 2, after[3].LastOffset)
}

// What the other steps add to rows that are there means what was meant before: nothing was sought or lost, everything is in clear, and no group has been
// idle since the beginning of time.
func TestRowsOfTheFirstSchemaMeanTheSameAfterEveryStep(t *testing.T) {
	t.Parallel()
	c := coldAt(t, "0003_delayed.sql")
	shard := c.shard()
	gs := c.groupShard(shard)
	c.exec(`INSERT INTO dispatcher.delayed (key, shard_id, available_at, frame) VALUES (gen_random_uuid(), $1, clock_timestamp() + interval '1 h', '\x01')`, shard)
	for _, reason := range []string{"attempts", "expired", "rejected"} {
		c.letter(shard, reason)
	}
	for _, reason := range []string{"trimmed", "refused"} {
		c.noLetter(shard, reason)
	}
	began := time.Now()

	require.Positive(t, c.upgrade())

	require.Equal(t, "0 0 0 0", scan[string](c.bench, `SELECT concat_ws(' ', sought_version, lost, untold, kept_from) FROM dispatcher.group_shards WHERE id = $1`, gs))
	require.WithinDuration(t, began, scan[time.Time](c.bench, `SELECT active_at FROM dispatcher.group_shards WHERE id = $1`, gs), time.Minute)
	require.Equal(t, 1, scan[int](c.bench, `SELECT count(*) FROM dispatcher.delayed WHERE key_id = 0 AND frame = '\x01'`))
	require.Equal(t, 3, scan[int](c.bench, `SELECT count(*) FROM dispatcher.dead_letters WHERE key_id = 0 AND reason IN ('attempts', 'expired', 'rejected')`))
	for _, reason := range []string{"trimmed", "refused"} {
		c.letter(shard, reason)
	}
	c.noLetter(shard, "because")
}

func (c *cold) letter(shard any, reason string) {
	c.t.Helper()
	require.NoError(c.t, c.letterErr(shard, reason), reason)
}

func (c *cold) noLetter(shard any, reason string) {
	c.t.Helper()
	refused, ok := errors.AsType[*pgconn.PgError](c.letterErr(shard, reason))
	require.True(c.t, ok, reason)
	require.Equal(c.t, "dead_letters_reason_ck", refused.ConstraintName)
}

func (c *cold) letterErr(shard any, reason string) error {
	_, err := c.db.Exec(c.t.Context(), `INSERT INTO dispatcher.dead_letters
		(id, tenant_id, queue_id, group_id, group_name, shard_id, "offset", partition_hash, partition, payload, deliveries, failures, reason, failed_at)
		VALUES (gen_random_uuid(), 'a', 1, 1, 'g', $1, 0, 0, 'p', '\x01', 1, 1, $2, clock_timestamp())`, shard, reason)
	return err
}
