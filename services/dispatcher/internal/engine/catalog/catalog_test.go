package catalog_test

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"postrider.dev/pkg/clock"
	"postrider.dev/pkg/tenant"
	"postrider.dev/services/dispatcher/internal/domain/invalid"
	"postrider.dev/services/dispatcher/internal/domain/queue"
	"postrider.dev/services/dispatcher/internal/engine/catalog"
	"postrider.dev/services/dispatcher/internal/store"
)

func bench(t *testing.T) (*catalog.Catalog, *rows, *clock.Fake) {
	t.Helper()
	r := newRows()
	clk := clock.NewFake(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	c, err := catalog.New(r, clk, catalog.Defaults())
	require.NoError(t, err)
	return c, r, clk
}

func TestKnownQueueCostsNoRead(t *testing.T) {
	t.Parallel()
	c, r, clk := bench(t)

	first, err := c.Queue(t.Context(), "a", "q", true)
	require.NoError(t, err)
	r.taken()
	again, err := c.Queue(t.Context(), "a", "q", true)
	require.NoError(t, err)
	require.Same(t, first, again)
	require.Zero(t, r.taken())

	clk.Advance(time.Minute + time.Second)
	_, err = c.Queue(t.Context(), "a", "q", false)
	require.NoError(t, err)
	require.Equal(t, 1, r.taken(), "re-read after a minute")
}

func TestMissingQueueIsBelievedForAMomentOnly(t *testing.T) {
	t.Parallel()
	c, r, clk := bench(t)

	for range 10 {
		_, err := c.Queue(t.Context(), "a", "q", false)
		require.ErrorIs(t, err, store.ErrQueueNotFound)
	}
	require.Equal(t, 1, r.taken())

	_, _, err := r.EnsureQueue(t.Context(), "a", "q") // by another dispatcher
	require.NoError(t, err)
	clk.Advance(1100 * time.Millisecond)
	_, err = c.Queue(t.Context(), "a", "q", false)
	require.NoError(t, err)
}

func TestCreateIsNotHeldUpByARememberedAbsence(t *testing.T) {
	t.Parallel()
	c, _, _ := bench(t)
	_, err := c.Queue(t.Context(), "a", "q", false)
	require.ErrorIs(t, err, store.ErrQueueNotFound)

	made, err := c.Queue(t.Context(), "a", "q", true)
	require.NoError(t, err)
	found, err := c.Queue(t.Context(), "a", "q", false)
	require.NoError(t, err)
	require.Equal(t, made.ID, found.ID)
}

func TestTenantsDoNotShareEntries(t *testing.T) {
	t.Parallel()
	c, _, _ := bench(t)
	a, err := c.Queue(t.Context(), "a", "q", true)
	require.NoError(t, err)
	_, err = c.Queue(t.Context(), "b", "q", false)
	require.ErrorIs(t, err, store.ErrQueueNotFound)
	b, err := c.Queue(t.Context(), "b", "q", true)
	require.NoError(t, err)
	require.NotEqual(t, a.ID, b.ID)
}

func TestNewerVersionSeenInAFlushMakesTheNextLookUpRead(t *testing.T) {
	t.Parallel()
	c, r, _ := bench(t)
	old, err := c.Queue(t.Context(), "a", "q", true)
	require.NoError(t, err)

	require.False(t, c.InvalidateOlder(old, old.ConfigVersion))
	version := r.configure("a", "q")
	require.True(t, c.InvalidateOlder(old, version))
	now, err := c.Queue(t.Context(), "a", "q", false)
	require.NoError(t, err)
	require.Equal(t, version, now.ConfigVersion)

	r.taken()
	require.True(t, c.InvalidateOlder(old, version), "a holder of the old one is told")
	_, err = c.Queue(t.Context(), "a", "q", false)
	require.NoError(t, err)
	require.Zero(t, r.taken(), "and the new one stays")
}

func TestHintWithoutTenantReachesEveryTenant(t *testing.T) {
	t.Parallel()
	c, r, _ := bench(t)
	for _, id := range []tenant.ID{"a", "b"} {
		_, err := c.Queue(t.Context(), id, "q", true)
		require.NoError(t, err)
		r.remove(id, "q")
	}
	c.InvalidateQueue("", "q")
	for _, id := range []tenant.ID{"a", "b"} {
		_, err := c.Queue(t.Context(), id, "q", false)
		require.ErrorIs(t, err, store.ErrQueueNotFound)
	}
}

func TestReadThatBeganBeforeAnInvalidationIsNotRemembered(t *testing.T) {
	t.Parallel()
	c, r, _ := bench(t)
	_, _, err := r.EnsureQueue(t.Context(), "a", "q")
	require.NoError(t, err)
	r.gate, r.inGate = make(chan struct{}), make(chan struct{}, 10)

	done := make(chan error, 1)
	go func() {
		_, err := c.Queue(context.WithoutCancel(t.Context()), "a", "q", false)
		done <- err
	}()
	<-r.inGate // it has read the old row
	version := r.configure("a", "q")
	c.InvalidateQueue("a", "q")
	close(r.gate)
	require.NoError(t, <-done)

	q, err := c.Queue(t.Context(), "a", "q", false)
	require.NoError(t, err)
	require.Equal(t, version, q.ConfigVersion)
}

func TestConcurrentLookUpsShareOneRead(t *testing.T) {
	t.Parallel()
	c, r, _ := bench(t)
	_, _, err := r.EnsureQueue(t.Context(), "a", "q")
	require.NoError(t, err)
	r.gate, r.inGate = make(chan struct{}), make(chan struct{}, 100)

	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			_, err := c.Queue(context.WithoutCancel(t.Context()), "a", "q", false)
			if err != nil {
				t.Error(err)
			}
		})
	}
	<-r.inGate
	close(r.gate)
	wg.Wait()
	require.LessOrEqual(t, r.taken(), 2)
}

func TestStormOnANewNameIsOneCreation(t *testing.T) {
	t.Parallel()
	c, r, _ := bench(t)
	_, err := c.Queue(t.Context(), "a", "q", false)
	require.ErrorIs(t, err, store.ErrQueueNotFound)
	r.taken()

	var wg sync.WaitGroup
	start := make(chan struct{})
	for range 200 {
		wg.Go(func() {
			<-start
			q, err := c.Queue(context.WithoutCancel(t.Context()), "a", "q", true)
			if err != nil {
				t.Error(err)
				return
			}
			if _, err := c.Group(context.WithoutCancel(t.Context()), q, "g", store.GroupOptions{}); err != nil {
				t.Error(err)
			}
		})
	}
	close(start)
	wg.Wait()
	require.LessOrEqual(t, r.taken(), 2, "one of the queue, one of the group")
}

func TestFirstCallerLeavingDoesNotFailTheOthers(t *testing.T) {
	t.Parallel()
	c, r, _ := bench(t)
	_, _, err := r.EnsureQueue(t.Context(), "a", "q")
	require.NoError(t, err)
	r.gate, r.inGate = make(chan struct{}), make(chan struct{}, 10)

	ctx, cancel := context.WithCancel(t.Context())
	first, second := make(chan error, 1), make(chan error, 1)
	go func() { _, err := c.Queue(ctx, "a", "q", false); first <- err }()
	<-r.inGate
	go func() { _, err := c.Queue(context.WithoutCancel(t.Context()), "a", "q", false); second <- err }()
	cancel()
	close(r.gate)
	require.NoError(t, <-second)
	if err := <-first; err != nil {
		require.ErrorIs(t, err, context.Canceled)
	}
}

func TestFailureIsNotRemembered(t *testing.T) {
	t.Parallel()
	c, r, _ := bench(t)
	r.broken = errors.New("database away")
	_, err := c.Queue(t.Context(), "a", "q", true)
	require.ErrorIs(t, err, r.broken)
	r.broken = nil
	_, err = c.Queue(t.Context(), "a", "q", true)
	require.NoError(t, err)
}

func TestGroupWithOtherOptionsIsRefusedOnlyAfterARead(t *testing.T) {
	t.Parallel()
	c, r, _ := bench(t)
	q, err := c.Queue(t.Context(), "a", "q", true)
	require.NoError(t, err)
	old, err := c.Group(t.Context(), q, "g", store.GroupOptions{Mode: queue.Shared})
	require.NoError(t, err)

	_, err = c.Group(t.Context(), q, "g", store.GroupOptions{Mode: queue.Ordered})
	require.ErrorIs(t, err, &invalid.Error{Code: invalid.GroupMismatch})

	delete(r.groups, r.groupKey(q.Queue, "g")) // deleted and made again elsewhere, in the other mode
	_, _, err = r.EnsureGroup(t.Context(), q.Queue, "g", store.GroupOptions{Mode: queue.Ordered})
	require.NoError(t, err)
	g, err := c.Group(t.Context(), q, "g", store.GroupOptions{Mode: queue.Ordered})
	require.NoError(t, err)
	require.NotEqual(t, old.ID, g.ID)
}

func TestKnownGroupCostsNoReadUntilItsQueueIsReadAgain(t *testing.T) {
	t.Parallel()
	c, r, _ := bench(t)
	q, err := c.Queue(t.Context(), "a", "q", true)
	require.NoError(t, err)
	_, err = c.Group(t.Context(), q, "g", store.GroupOptions{})
	require.NoError(t, err)
	r.taken()
	_, err = c.Group(t.Context(), q, "g", store.GroupOptions{})
	require.NoError(t, err)
	require.Zero(t, r.taken())

	c.InvalidateQueue("a", "q")
	q, err = c.Queue(t.Context(), "a", "q", true)
	require.NoError(t, err)
	_, err = c.Group(t.Context(), q, "g", store.GroupOptions{})
	require.NoError(t, err)
	require.Equal(t, 2, r.taken(), "the queue and the group")
}

func TestLookingForAGroupDoesNotMakeIt(t *testing.T) {
	t.Parallel()
	c, r, _ := bench(t)
	q, err := c.Queue(t.Context(), "a", "q", true)
	require.NoError(t, err)
	_, err = c.KnownGroup(t.Context(), q, "g")
	require.ErrorIs(t, err, store.ErrGroupNotFound)
	require.Empty(t, r.groups)

	made, err := c.Group(t.Context(), q, "g", store.GroupOptions{})
	require.NoError(t, err)
	found, err := c.KnownGroup(t.Context(), q, "g")
	require.NoError(t, err)
	require.Same(t, made, found)

	delete(r.groups, r.groupKey(q.Queue, "g"))
	c.InvalidateGroup(found)
	_, err = c.KnownGroup(t.Context(), q, "g")
	require.ErrorIs(t, err, store.ErrGroupNotFound)
}

func TestGroupIsMadeAlthoughSomebodyIsJustFindingItMissing(t *testing.T) {
	t.Parallel()
	c, r, _ := bench(t)
	q, err := c.Queue(t.Context(), "a", "q", true)
	require.NoError(t, err)
	gate := make(chan struct{})
	r.groupGate, r.inGate = gate, make(chan struct{}, 1)

	known, made := make(chan error, 1), make(chan error, 1)
	go func() { _, err := c.KnownGroup(t.Context(), q, "g"); known <- err }()
	<-r.inGate
	go func() { _, err := c.Group(t.Context(), q, "g", store.GroupOptions{}); made <- err }()
	close(gate)
	require.NoError(t, <-made)
	if err := <-known; err != nil {
		require.ErrorIs(t, err, store.ErrGroupNotFound)
	}
}

func TestNumberOfEntriesIsBounded(t *testing.T) {
	t.Parallel()
	r := newRows()
	set := catalog.Defaults()
	set.Queues = 50
	c, err := catalog.New(r, clock.NewFake(time.Unix(0, 0)), set)
	require.NoError(t, err)
	for i := range 500 {
		_, err := c.Queue(t.Context(), "a", strings.Repeat("q", i%100)+strconv.Itoa(i), true)
		require.NoError(t, err)
	}
	require.LessOrEqual(t, c.Size(), 50)
}
