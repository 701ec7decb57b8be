package store_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"postrider.dev/pkg/idempotency"
	"postrider.dev/pkg/tenant"
	"postrider.dev/services/dispatcher/internal/domain/queue"
	"postrider.dev/services/dispatcher/internal/store"
)

func request(t tenant.ID, key, body string) idempotency.Request {
	return idempotency.Request{Tenant: t, Method: "/configure", Key: key, Body: sha256.Sum256([]byte(body))}
}

// configureOnce creates or configures queue "q" under a key; its answer says how often it has run.
func configureOnce(ctx context.Context, c *store.Control, runs *int, req idempotency.Request) (string, bool, error) {
	answer, replayed, err := c.Once(ctx, req, func(in *store.Control) ([]byte, error) {
		*runs++
		_, err := in.Configure(ctx, by(req.Tenant), "q", queue.Patch{Set: queue.Options{MaxAttempts: runs}})
		return fmt.Append(nil, "run ", *runs), err
	})
	return string(answer), replayed, err
}

func TestARequestUnderAKeyRunsOnceAndItsFirstAnswerIsGivenAgain(t *testing.T) {
	t.Parallel()
	c := newCold(t)
	runs := 0
	for i := range 3 {
		answer, replayed, err := configureOnce(t.Context(), []*store.Control{c.control, c.another()}[i%2], &runs, request("a", "k", "x"))
		require.NoError(t, err)
		require.Equal(t, "run 1", answer)
		require.Equal(t, i > 0, replayed)
	}
	require.Equal(t, 1, runs)
	require.Len(t, c.audited(), 1)

	_, _, err := configureOnce(t.Context(), c.control, &runs, request("a", "k", "y"))
	require.ErrorIs(t, err, idempotency.ErrReused)
	require.Equal(t, 1, runs)
}

func TestAKeyIsItsTenantsAndItsMethods(t *testing.T) {
	t.Parallel()
	c := newCold(t)
	runs := 0
	other := request("a", "k", "y")
	other.Method = "/another"
	for i, req := range []idempotency.Request{request("a", "k", "x"), request("b", "k", "y"), other, request("a", "K", "y")} {
		_, replayed, err := configureOnce(t.Context(), c.control, &runs, req)
		require.NoError(t, err)
		require.False(t, replayed)
		require.Equal(t, i+1, runs)
	}
}

func TestWhileARequestRunsItsKeyIsRefusedAndNobodyWaits(t *testing.T) {
	t.Parallel()
	c := newCold(t)
	inside, leave := make(chan struct{}), make(chan struct{})
	done := make(chan error, 1)
	go func() {
		_, _, err := c.control.Once(t.Context(), request("a", "k", "x"), func(in *store.Control) ([]byte, error) {
			_, err := in.Configure(t.Context(), by("a"), "q", queue.Patch{})
			close(inside)
			<-leave
			return nil, err
		})
		done <- err
	}()
	<-inside

	runs := 0
	_, _, err := configureOnce(t.Context(), c.another(), &runs, request("a", "k", "x"))
	require.ErrorIs(t, err, idempotency.ErrInUse)
	_, _, err = configureOnce(t.Context(), c.another(), &runs, request("a", "k", "another body"))
	require.ErrorIs(t, err, idempotency.ErrInUse)
	require.Zero(t, runs)
	close(leave)
	require.NoError(t, <-done)

	_, replayed, err := configureOnce(t.Context(), c.another(), &runs, request("a", "k", "x"))
	require.NoError(t, err)
	require.True(t, replayed)
	require.Len(t, c.audited(), 1)
}

func TestOfRacingRequestsUnderAKeyExactlyOneRuns(t *testing.T) {
	t.Parallel()
	c := newCold(t)
	controls := []*store.Control{c.control, c.another(), c.another()}
	fresh := make([]bool, 24)
	errs := race(len(fresh), func(i int) error {
		runs := 0
		_, _, err := configureOnce(t.Context(), controls[i%len(controls)], &runs, request("a", "k", "x"))
		fresh[i] = err == nil && runs > 0
		return err
	})
	ran := 0
	for i, err := range errs {
		require.True(t, err == nil || errors.Is(err, idempotency.ErrInUse), "%v", err)
		if fresh[i] {
			ran++
		}
	}
	require.Equal(t, 1, ran)
	require.Len(t, c.audited(), 1)
}

func TestARequestThatFailedDidNothingAndIsNotRemembered(t *testing.T) {
	t.Parallel()
	c := newCold(t)
	runs := 0
	failure := errors.New("after the effect")
	_, _, err := c.control.Once(t.Context(), request("a", "k", "x"), func(in *store.Control) ([]byte, error) {
		_, err := in.Configure(t.Context(), by("a"), "q", queue.Patch{})
		return nil, errors.Join(err, failure)
	})
	require.ErrorIs(t, err, failure)
	c.breakAudit()
	_, _, err = configureOnce(t.Context(), c.control, &runs, request("a", "k", "x"))
	require.Error(t, err)
	c.mendAudit()
	_, err = c.control.FindQueue(t.Context(), "a", "q")
	require.ErrorIs(t, err, store.ErrQueueNotFound)
	require.Zero(t, scan[int](c.bench, "SELECT count(*) FROM dispatcher.request_keys"))

	_, replayed, err := configureOnce(t.Context(), c.control, &runs, request("a", "k", "another body"))
	require.NoError(t, err)
	require.False(t, replayed)
}

func TestAnAnswerIsForgottenAfterADayOfTheDatabase(t *testing.T) {
	t.Parallel()
	c := newCold(t)
	clk := freezeClock(c.bench, time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC))
	runs := 0
	_, _, err := configureOnce(t.Context(), c.control, &runs, request("a", "k", "x"))
	require.NoError(t, err)
	clk.advance(24*time.Hour - time.Second)
	n, err := c.control.TrimRequests(t.Context(), 10)
	require.NoError(t, err)
	require.Zero(t, n)
	_, replayed, err := configureOnce(t.Context(), c.control, &runs, request("a", "k", "x"))
	require.NoError(t, err)
	require.True(t, replayed, "and a replay prolongs nothing")

	clk.advance(time.Second)
	answer, replayed, err := configureOnce(t.Context(), c.control, &runs, request("a", "k", "another body"))
	require.NoError(t, err)
	require.False(t, replayed)
	require.Equal(t, "run 2", answer)

	clk.advance(24 * time.Hour)
	n, err = c.control.TrimRequests(t.Context(), 10)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.Zero(t, scan[int](c.bench, "SELECT count(*) FROM dispatcher.request_keys"))
}

// TestARequestCutOffAtItsEndHappensOnce breaks the connection at the memory and at the COMMIT of a request, in each way, and asks again as a client would.
func TestARequestCutOffAtItsEndHappensOnce(t *testing.T) {
	t.Parallel()
	c := newCold(t)
	s, p := c.behindProxy()
	control := store.NewControl(s, c.enc, c.dec)
	made := 0
	attempt := func(n int, how cut) (func(), int) {
		made++
		name := fmt.Sprint("q", made)
		p.arm(n, how)
		ask := func() error {
			answer, _, err := control.Once(t.Context(), request("a", name, "x"), func(in *store.Control) ([]byte, error) {
				_, err := in.Configure(t.Context(), by("a"), name, queue.Patch{})
				return []byte(name), err
			})
			if err == nil {
				require.Equal(t, name, string(answer))
			}
			return err
		}
		for try := 0; ask() != nil; try++ {
			require.Less(t, try, 5, "cut %d at message %d", how, n)
			if n > 0 {
				require.NoError(t, c.settle()) // the lost session may still hold the key
			}
		}
		messages, did := p.count()
		require.Equal(t, n > 0, did)
		return func() {
			require.Equal(t, 1, scan[int](c.bench, "SELECT count(*) FROM audit.outbox WHERE resource = $1", "queue/"+name), "cut %d at message %d", how, n)
			require.Equal(t, 1, scan[int](c.bench, "SELECT count(*) FROM dispatcher.queues WHERE name = $1", name))
		}, messages
	}
	attempt(0, 0) // prepares the statements
	verify, messages := attempt(0, 0)
	verify()

	for n := messages - 1; n <= messages; n++ {
		for how := cutBefore; how <= cutSplitEnd; how++ {
			attempt(0, 0) // the connection is as it was
			verify, _ := attempt(n, how)
			verify()
			p.deliver()
			require.NoError(t, c.settle())
			verify()
		}
	}
}
