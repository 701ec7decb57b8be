package store_test

import (
	"testing"

	"github.com/stretchr/testify/require"

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
