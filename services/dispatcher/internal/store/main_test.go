package store_test

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"postrider.dev/pkg/pg"
	"postrider.dev/pkg/pgtest"
	"postrider.dev/services/dispatcher/internal/domain/lease"
	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/segment"
	"postrider.dev/services/dispatcher/internal/domain/settled"
	"postrider.dev/services/dispatcher/internal/store"
	"postrider.dev/services/dispatcher/migrations"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// bench is one test's private database and a store on it.
type bench struct {
	t     testing.TB
	url   string
	db    *pg.DB
	store *store.Store
}

func newBench(t testing.TB) *bench {
	t.Helper()
	return benchOn(t, pgtest.NewDatabase(t, pgtest.Roles{}, migrations.Set()).URL())
}

func benchOn(t testing.TB, url string) *bench {
	t.Helper()
	b := &bench{t: t, url: url}
	b.db, b.store = b.open(nil)
	return b
}

// open opens another process's store on the same database.
func (b *bench) open(change func(*pg.Options)) (*pg.DB, *store.Store) {
	b.t.Helper()
	opts := store.Settings()
	if change != nil {
		change(&opts)
	}
	db, err := pg.Open(b.t.Context(), b.url, opts)
	require.NoError(b.t, err)
	b.t.Cleanup(db.Close)
	return db, store.New(db)
}

func (b *bench) exec(sql string, args ...any) {
	b.t.Helper()
	_, err := b.db.Exec(b.t.Context(), sql, args...)
	require.NoError(b.t, err)
}

func scan[T any](b *bench, sql string, args ...any) T {
	b.t.Helper()
	var v T
	require.NoError(b.t, b.db.QueryRow(b.t.Context(), sql, args...).Scan(&v))
	return v
}

// shard makes an empty shard.
func (b *bench) shard() message.ShardID {
	b.t.Helper()
	return scan[message.ShardID](b, "INSERT INTO dispatcher.shards (queue_id) VALUES (0) RETURNING id")
}

// groupShard makes the state of a group that has settled nothing of the shard.
func (b *bench) groupShard(shard message.ShardID) lease.GroupShardID {
	b.t.Helper()
	return scan[lease.GroupShardID](b, "INSERT INTO dispatcher.group_shards (group_id, shard_id, hot) VALUES (0, $1, $2) RETURNING id",
		shard, make([]byte, settled.HotBytes))
}

func flushID() store.FlushID {
	var id store.FlushID
	_, _ = rand.Read(id[:])
	return id
}

// appendOf makes an append of messages without content, one of each partition hash.
func appendOf(shard message.ShardID, hashes ...uint64) store.Append {
	a := store.Append{Shard: shard, FlushID: flushID(), Encoded: segment.Encoded{Count: len(hashes), Body: []byte("body")}}
	for _, hash := range hashes {
		a.Partitions = binary.BigEndian.AppendUint64(a.Partitions, hash)
		a.Sizes = binary.AppendUvarint(a.Sizes, 1)
	}
	return a
}

// detached is for clean-up after the test's own context.
func detached(t testing.TB) context.Context {
	t.Helper()
	return context.WithoutCancel(t.Context())
}
