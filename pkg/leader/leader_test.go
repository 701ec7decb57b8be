package leader_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/require"

	"postrider.dev/pkg/clock"
	"postrider.dev/pkg/fence"
	"postrider.dev/pkg/leader"
	"postrider.dev/pkg/localpg"
	"postrider.dev/pkg/migrate"
	"postrider.dev/pkg/pg"
	"postrider.dev/pkg/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

const (
	table     = "roles.leaders"
	patience  = 30 * time.Second
	clockStep = 5 * time.Millisecond
)

func roles() migrate.Set {
	return migrate.Set{Schema: "roles", FS: fstest.MapFS{"0001_leaders.sql": {Data: []byte(`-- +goose Up
CREATE TABLE roles.leaders (role text CONSTRAINT leaders_role_pk PRIMARY KEY, epoch bigint NOT NULL, holder text NOT NULL, elected_at timestamptz NOT NULL);`)}}}
}

// quick is a pace for tests: elections in milliseconds.
func quick() leader.Config {
	return leader.Config{
		ProofEvery: 50 * time.Millisecond, CampaignEvery: 20 * time.Millisecond, AppName: "elector",
		Trust: fence.Window{TTL: 5 * time.Second, Margin: time.Second},
	}
}

// lazy hardly ever proves, so that what a test sees cannot be a proof's doing.
func lazy() leader.Config {
	c := quick()
	c.ProofEvery, c.Trust.TTL = time.Hour, 3*time.Hour
	return c
}

// candidate is a running elector.
type candidate struct {
	*leader.Elector
	terms   chan leader.Term   // each take-over
	ended   chan error         // the cause of each term's end
	resign  chan error         // makes lead return
	result  chan error         // of Run
	stop    context.CancelFunc // ends Run
	stopped bool
}

func campaign(t *testing.T, dsn, holder string, cfg leader.Config) *candidate {
	t.Helper()
	c := &candidate{
		Elector: leader.New(dsn, "role", table, holder, clock.Real{}, cfg),
		terms:   make(chan leader.Term, 100), ended: make(chan error, 100), resign: make(chan error), result: make(chan error, 1),
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	c.stop = cancel
	go func() {
		c.result <- c.Run(ctx, func(ctx context.Context, term leader.Term) error {
			c.terms <- term
			select {
			case <-ctx.Done():
				c.ended <- context.Cause(ctx)
				return nil
			case err := <-c.resign:
				return err
			}
		})
	}()
	t.Cleanup(func() {
		if !c.stopped {
			c.end(t)
		}
	})
	return c
}

// end stops the candidate cleanly.
func (c *candidate) end(t *testing.T) {
	t.Helper()
	c.stop()
	c.stopped = true
	require.NoError(t, await(t, "end of Run", c.result))
}

func await[T any](t *testing.T, what string, ch <-chan T) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(patience):
		t.Fatalf("no %s within %v", what, patience)
		panic("unreachable")
	}
}

// first waits until one of two leads, and returns it, its term, and the other.
func first(t *testing.T, a, b *candidate) (leading *candidate, term leader.Term, other *candidate) {
	t.Helper()
	select {
	case term := <-a.terms:
		return a, term, b
	case term := <-b.terms:
		return b, term, a
	case <-time.After(patience):
		t.Fatal("nobody leads")
		panic("unreachable")
	}
}

func database(t *testing.T) (*pg.DB, string) {
	t.Helper()
	d := pgtest.NewDatabase(t, pgtest.Roles{}, roles())
	return d.Open(pg.Options{}), d.URL()
}

func terminateElectors(t *testing.T, db *pg.DB) {
	t.Helper()
	_, err := db.Exec(t.Context(), `SELECT pg_terminate_backend(l.pid) FROM pg_locks l JOIN pg_stat_activity a USING (pid)
		WHERE l.locktype = 'advisory' AND a.datname = current_database() AND a.application_name = 'elector'`)
	require.NoError(t, err)
}

func TestOnlyOneLeadsAndTheOtherFollowsWithAGreaterEpoch(t *testing.T) {
	t.Parallel()
	_, dsn := database(t)
	lead, term, other := first(t, campaign(t, dsn, "a", quick()), campaign(t, dsn, "b", quick()))
	require.True(t, term.Trusted())
	require.True(t, lead.State().Leading)
	require.False(t, other.State().Leading)
	require.Empty(t, other.terms)

	start := time.Now()
	lead.end(t)
	next := await(t, "take-over", other.terms)
	t.Logf("clean hand-over took %v", time.Since(start))

	require.True(t, next.Epoch.Fences(term.Epoch))
	require.False(t, term.Trusted())
	require.False(t, lead.State().Leading)
	require.Equal(t, 2, lead.State().Changes)
}

func TestLeaderStepsDownAtOnceWhenItsConnectionIsLost(t *testing.T) {
	t.Parallel()
	db, dsn := database(t)
	lead, term, other := first(t, campaign(t, dsn, "a", lazy()), campaign(t, dsn, "b", lazy()))

	start := time.Now()
	terminateElectors(t, db)

	require.ErrorIs(t, await(t, "step-down", lead.ended), leader.ErrLost)
	t.Logf("step-down took %v", time.Since(start))
	require.False(t, term.Trusted())
	select { // whoever is quicker; the former leader is a candidate again
	case next := <-other.terms:
		require.True(t, next.Epoch.Fences(term.Epoch))
	case next := <-lead.terms:
		require.True(t, next.Epoch.Fences(term.Epoch))
	case <-time.After(patience):
		t.Fatal("nobody took over")
	}
	t.Logf("hand-over took %v", time.Since(start))
}

func TestEpochsGrowStrictlyOverManyKills(t *testing.T) {
	t.Parallel()
	db, dsn := database(t)
	a, b := campaign(t, dsn, "a", lazy()), campaign(t, dsn, "b", lazy())

	var last fence.Epoch
	for range 20 {
		_, term, _ := first(t, a, b)
		require.True(t, term.Epoch.Fences(last), "%d after %d", term.Epoch, last)
		last = term.Epoch
		terminateElectors(t, db)
	}
}

func TestLeaderOfAnOldEpochStepsDown(t *testing.T) {
	t.Parallel()
	db, dsn := database(t)
	c := campaign(t, dsn, "a", quick())
	term := await(t, "take-over", c.terms)

	_, err := db.Exec(t.Context(), "UPDATE roles.leaders SET epoch = epoch + 10")
	require.NoError(t, err)

	require.ErrorIs(t, await(t, "step-down", c.ended), leader.ErrLost)
	next := await(t, "next take-over", c.terms)
	require.Equal(t, term.Epoch+11, next.Epoch)
}

func TestLeaderStopsBelievingItselfWhenTheServerFreezes(t *testing.T) {
	t.Parallel()
	server := pgtest.NewServer(t, localpg.Options{})
	dsn := server.DSN("postgres")
	_, err := migrate.Up(t.Context(), clock.Real{}, dsn, roles())
	require.NoError(t, err)
	cfg := quick()
	cfg.Trust = fence.Window{TTL: time.Second, Margin: 200 * time.Millisecond}
	c := campaign(t, dsn, "a", cfg)
	term := await(t, "take-over", c.terms)

	require.NoError(t, server.Freeze(t.Context()))
	require.ErrorIs(t, await(t, "step-down", c.ended), leader.ErrLost)
	require.False(t, term.Trusted())
	require.NoError(t, server.Thaw(t.Context()))
	require.NoError(t, server.Restart(t.Context()))

	require.True(t, await(t, "next take-over", c.terms).Epoch.Fences(term.Epoch))
}

func TestCandidateWaitsForADatabaseThatIsAway(t *testing.T) {
	t.Parallel()
	server := pgtest.NewServer(t, localpg.Options{})
	dsn := server.DSN("postgres")
	_, err := migrate.Up(t.Context(), clock.Real{}, dsn, roles())
	require.NoError(t, err)
	c := campaign(t, dsn, "a", quick())
	term := await(t, "take-over", c.terms)

	require.NoError(t, server.Kill(t.Context()))
	require.ErrorIs(t, await(t, "step-down", c.ended), leader.ErrLost)
	require.NoError(t, server.Restart(t.Context()))

	require.True(t, await(t, "next take-over", c.terms).Epoch.Fences(term.Epoch))
}

func TestResignedLeaderMayLeadAgainWithAGreaterEpoch(t *testing.T) {
	t.Parallel()
	_, dsn := database(t)
	c := campaign(t, dsn, "a", quick())
	term := await(t, "take-over", c.terms)

	c.resign <- nil

	require.True(t, await(t, "next take-over", c.terms).Epoch.Fences(term.Epoch))
}

func TestErrorOfTheLeadersWorkEndsTheElectorAndFreesTheLock(t *testing.T) {
	t.Parallel()
	_, dsn := database(t)
	c := campaign(t, dsn, "a", quick())
	await(t, "take-over", c.terms)
	boom := errors.New("boom")

	c.resign <- boom
	c.stopped = true

	require.ErrorIs(t, await(t, "end of Run", c.result), boom)
	await(t, "take-over by another", campaign(t, dsn, "b", quick()).terms)
}

func TestMissingEpochTableShowsInTheStateAndIsWaitedFor(t *testing.T) {
	t.Parallel()
	d := pgtest.NewDatabase(t, pgtest.Roles{})
	c := campaign(t, d.URL(), "a", quick())
	require.Eventually(t, func() bool { return pg.Code(c.State().Err) != "" }, patience, 5*time.Millisecond)
	require.Empty(t, c.terms)

	_, err := migrate.Up(t.Context(), clock.Real{}, d.URL(), roles())
	require.NoError(t, err)

	await(t, "take-over", c.terms)
}

func TestUselessConfigIsRefused(t *testing.T) {
	t.Parallel()
	cfg := quick()
	cfg.ProofEvery = cfg.Trust.TTL
	require.Error(t, leader.New("", "role", table, "a", clock.Real{}, cfg).Run(t.Context(), nil))
	require.NoError(t, leader.Config{}.Validate())
}

func TestRandomCancelsLeaveNoLockNoGoroutineAndGrowingEpochs(t *testing.T) {
	t.Parallel()
	db, dsn := database(t)
	random := rand.New(rand.NewPCG(1, 2))
	var last fence.Epoch
	for n := range 500 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(random.Int64N(int64(12*time.Millisecond))))
		if n%50 == 0 { // on a busy machine the others may never come that far: these end while they lead
			ctx, cancel = context.WithCancel(t.Context())
		}
		err := leader.New(dsn, "role", table, "a", clock.Real{}, quick()).Run(ctx, func(ctx context.Context, term leader.Term) error {
			require.True(t, term.Epoch.Fences(last))
			last = term.Epoch
			if n%50 == 0 {
				cancel()
			}
			<-ctx.Done()
			return nil
		})
		cancel()
		require.NoError(t, err)
	}
	require.True(t, last.Held())

	require.Eventually(t, func() bool {
		var free bool
		err := db.QueryRow(t.Context(), "SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'elector')").Scan(&free)
		return err == nil && free
	}, patience, 5*time.Millisecond)
	await(t, "take-over", campaign(t, dsn, "b", quick()).terms)
}
