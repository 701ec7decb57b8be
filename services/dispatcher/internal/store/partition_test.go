package store_test

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/queue"
	"postrider.dev/services/dispatcher/internal/store"
)

// catalogue brings the catalogue of the queue's shards up to date.
func (c *cold) catalogue(control *store.Control, q store.Queue) error {
	for {
		behind, err := control.BehindOf(c.t.Context(), q.Shards)
		if err != nil || len(behind) == 0 {
			return err
		}
		for _, b := range behind {
			if _, err := control.CatalogueFromLog(c.t.Context(), b, 3); err != nil {
				return err
			}
		}
	}
}

func TestPartitionsAreListedByNameWithWhatTheLogSaysOfThem(t *testing.T) {
	t.Parallel()
	c := newCold(t)
	q := c.queue("a", "q")
	c.push(q, msg("b", "1"), msg("a", "2"), msg("b", "3"))
	c.push(q, msg("c", "4"))
	require.NoError(t, c.catalogue(c.control, q))
	c.push(q, msg("b", "5"))
	require.NoError(t, c.catalogue(c.control, q))

	page, err := c.control.ListPartitions(t.Context(), q, "", math.MaxInt64, 10)
	require.NoError(t, err)
	require.Len(t, page, 3)
	for i, want := range []store.Partition{
		{Name: "a", FirstOffset: 1, LastOffset: 1}, {Name: "b", FirstOffset: 0, LastOffset: 4}, {Name: "c", FirstOffset: 3, LastOffset: 3},
	} {
		require.WithinDuration(t, time.Now(), page[i].LastSeenAt, time.Minute)
		want.Shard, want.LastSeenAt = q.Shards[0], page[i].LastSeenAt
		require.Equal(t, want, page[i])
	}
	page, err = c.control.ListPartitions(t.Context(), q, "a", math.MaxInt64, 1)
	require.NoError(t, err)
	require.Equal(t, "b", page[0].Name)
}

func TestNoPartitionIsLeftOutWhoeverCataloguesAndWhoeverDies(t *testing.T) {
	t.Parallel()
	c := newCold(t)
	done, err := c.control.Configure(t.Context(), by("a"), "q", queue.Patch{Set: queue.Options{Shards: ptr(3)}})
	require.NoError(t, err)
	q := done.Queue
	controls := []*store.Control{c.control, c.another(), c.another()}
	for round := range 4 {
		for i := range 20 {
			c.push(q, msg(fmt.Sprint("p", i), "x"), msg(fmt.Sprint("p", round, "/", i), "y"))
		}
		noErrors(t, race(len(controls), func(i int) error { return c.catalogue(controls[i], q) }))
	}

	page, err := c.control.ListPartitions(t.Context(), q, "", math.MaxInt64, 1000)
	require.NoError(t, err)
	require.Len(t, page, 20+4*20)
	behind, err := c.control.BehindAfter(t.Context(), 0, 100)
	require.NoError(t, err)
	require.Empty(t, behind)
}

func TestLateWriterOfTheCatalogueWritesNothing(t *testing.T) {
	t.Parallel()
	c := newCold(t)
	q := c.queue("a", "q")
	c.push(q, msg("p", "x"))
	behind, err := c.control.BehindAfter(t.Context(), 0, 10)
	require.NoError(t, err)
	require.Equal(t, []store.Behind{{Shard: q.Shards[0], QueueID: q.ID, Upto: 0, Head: 1}}, behind)
	require.NoError(t, c.catalogue(c.another(), q))

	ok, err := c.control.Catalogue(t.Context(), behind[0], 1, []store.Sighting{{Name: "wrong", At: time.Now()}})
	require.NoError(t, err)
	require.False(t, ok)
	page, err := c.control.ListPartitions(t.Context(), q, "", math.MaxInt64, 10)
	require.NoError(t, err)
	require.Len(t, page, 1)
}

func TestMessageIsFoundByItsClientID(t *testing.T) {
	t.Parallel()
	c := newCold(t)
	q := c.queue("a", "q")
	named := func(partition, id, payload string) message.Message {
		m := msg(partition, payload)
		m.ClientID = id
		return m
	}
	c.push(q, named("p", "one", "first"), named("other", "one", "not this"))
	for range 40 {
		c.push(q, named("p", "", "noise"), named("r", "x", "noise"))
	}
	c.push(q, named("p", "two", "older"), named("p", "two", "newest"), named("r", "two", "not this"))

	f, ok, err := c.control.FindByClientID(t.Context(), q, "p", "one")
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, "first", string(f.Payload))
	require.Equal(t, message.Offset(0), f.Offset)
	require.Equal(t, q.Shards[0], f.Shard)
	f, ok, err = c.control.FindByClientID(t.Context(), q, "p", "two")
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, "newest", string(f.Payload))

	for _, miss := range [][2]string{{"p", "three"}, {"r", "one"}, {"nobody", "one"}} {
		_, ok, err = c.control.FindByClientID(t.Context(), q, miss[0], miss[1])
		require.NoError(t, err)
		require.False(t, ok, miss)
	}
	c.exec("UPDATE dispatcher.shards SET tail = 1")
	_, ok, err = c.control.FindByClientID(t.Context(), q, "p", "one")
	require.NoError(t, err)
	require.False(t, ok, "trimmed")
}
