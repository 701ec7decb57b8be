package store_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/store"
)

// What consumers do to a group's state is not waited for: a push writes to the log and to nothing else.
func TestAFlushTouchesTheLogAlone(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	shard := b.shard()
	b.groupShard(shard)
	holder := b.stopped("psql")
	for _, sql := range []string{"BEGIN", "SELECT FROM dispatcher.group_shards FOR UPDATE"} {
		_, err := holder.Exec(t.Context(), sql)
		require.NoError(t, err)
	}

	got, err := b.store.Flush(t.Context(), []store.Append{appendOf(shard, 1)})

	require.NoError(t, err)
	require.Equal(t, store.StatusAppended, got[0].Status)
}

// What a request pushes to one queue lies on several shards and is one transaction: where one of them cannot take its part, none does.
func TestAFlushOfSeveralShardsIsAllOrNothing(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	shards := []message.ShardID{b.shard(), b.shard(), b.shard()}
	b.exec(fmt.Sprintf("ALTER TABLE dispatcher.segments ADD CONSTRAINT broken_ck CHECK (shard_id <> %d)", shards[1]))
	appends := []store.Append{appendOf(shards[0], 1), appendOf(shards[1], 2), appendOf(shards[2], 3)}

	_, err := b.store.Flush(t.Context(), appends)

	require.Error(t, err)
	require.Zero(t, scan[int64](b, "SELECT sum(head)::bigint FROM dispatcher.shards"))
	require.Zero(t, scan[int](b, "SELECT count(*) FROM dispatcher.segments"))

	b.exec("ALTER TABLE dispatcher.segments DROP CONSTRAINT broken_ck")
	_, err = b.store.Flush(t.Context(), appends)
	require.NoError(t, err)
	require.EqualValues(t, 3, scan[int64](b, "SELECT sum(head)::bigint FROM dispatcher.shards"))
}
