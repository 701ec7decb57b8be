package store_test

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"postrider.dev/pkg/idempotency"
	"postrider.dev/pkg/pgtest"
	"postrider.dev/pkg/tenant"
	"postrider.dev/services/ingress/internal/domain"
	"postrider.dev/services/ingress/internal/store"
)

func request(t tenant.ID, body string) idempotency.Request {
	return idempotency.Request{Tenant: t, Method: "/create", Key: "k", Body: sha256.Sum256([]byte(body))}
}

// makeOnce makes a new tenant under a key and answers its id.
func makeOnce(t *testing.T, st *store.Store, runs *int, req idempotency.Request) (string, bool, error) {
	t.Helper()
	answer, replayed, err := st.Once(t.Context(), req, func(in *store.Store) ([]byte, error) {
		*runs++
		id := fmt.Sprint("made", *runs)
		_, err := in.CreateTenant(t.Context(), admin(), tenant.ID(id))
		return []byte(id), err
	})
	return string(answer), replayed, err
}

func TestARequestUnderAKeyRunsOnceAndItsFirstAnswerIsGivenAgain(t *testing.T) {
	t.Parallel()
	st, db := setup(t)
	runs := 0
	for i := range 3 {
		answer, replayed, err := makeOnce(t, st, &runs, request("default", "x"))
		require.NoError(t, err)
		require.Equal(t, "made1", answer)
		require.Equal(t, i > 0, replayed)
	}
	require.Len(t, audited(t, db), 1)
	_, _, err := makeOnce(t, st, &runs, request("default", "y"))
	require.ErrorIs(t, err, idempotency.ErrReused)
	_, replayed, err := makeOnce(t, st, &runs, request("acme", "y"))
	require.NoError(t, err)
	require.False(t, replayed, "another tenant's key is another key")
	require.Equal(t, 2, runs)
}

func TestWhileARequestRunsItsKeyIsRefusedAndNobodyWaits(t *testing.T) {
	t.Parallel()
	st, db := setup(t)
	inside, leave, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		_, _, err := st.Once(t.Context(), request("default", "x"), func(in *store.Store) ([]byte, error) {
			_, err := in.CreateTenant(t.Context(), admin(), "acme")
			close(inside)
			<-leave
			return nil, err
		})
		done <- err
	}()
	<-inside

	runs := 0
	_, _, err := makeOnce(t, st, &runs, request("default", "x"))
	require.ErrorIs(t, err, idempotency.ErrInUse)
	close(leave)
	require.NoError(t, <-done)
	_, replayed, err := makeOnce(t, st, &runs, request("default", "x"))
	require.NoError(t, err)
	require.True(t, replayed)
	require.Zero(t, runs)
	require.Len(t, audited(t, db), 1)
}

func TestOfRacingRequestsUnderAKeyExactlyOneRuns(t *testing.T) {
	t.Parallel()
	st, db := setup(t)
	errs := make([]error, 16)
	var all sync.WaitGroup
	for i := range errs {
		all.Go(func() {
			runs := 0
			_, _, errs[i] = makeOnce(t, st, &runs, request("default", "x"))
		})
	}
	all.Wait()
	for _, err := range errs {
		require.True(t, err == nil || errors.Is(err, idempotency.ErrInUse), "%v", err)
	}
	require.Len(t, audited(t, db), 1)
}

func TestARequestThatFailedDidNothingAndIsNotRemembered(t *testing.T) {
	t.Parallel()
	st, db := setup(t)
	failure := errors.New("after the effect")
	_, _, err := st.Once(t.Context(), request("default", "x"), func(in *store.Store) ([]byte, error) {
		_, err := in.CreateTenant(t.Context(), admin(), "acme")
		return nil, errors.Join(err, failure)
	})
	require.ErrorIs(t, err, failure)
	_, _, err = st.Once(t.Context(), request("default", "x"), func(in *store.Store) ([]byte, error) {
		_, err := in.CreateTenant(t.Context(), admin(), tenant.Default)
		return nil, err
	})
	require.ErrorIs(t, err, domain.ErrExists)
	require.Empty(t, audited(t, db))
	all, err := st.ListTenants(t.Context())
	require.NoError(t, err)
	require.Len(t, all, 1)

	runs := 0
	_, replayed, err := makeOnce(t, st, &runs, request("default", "another body"))
	require.NoError(t, err)
	require.False(t, replayed)
}

func TestAnAnswerIsForgottenAfterADayOfTheDatabase(t *testing.T) {
	t.Parallel()
	st, db := setup(t)
	clk := pgtest.FreezeNow(t, db, "ingress", time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC))
	runs := 0
	_, _, err := makeOnce(t, st, &runs, request("default", "x"))
	require.NoError(t, err)
	clk.Advance(24*time.Hour - time.Second)
	n, err := st.TrimRequests(t.Context(), 10)
	require.NoError(t, err)
	require.Zero(t, n)
	_, replayed, err := makeOnce(t, st, &runs, request("default", "x"))
	require.NoError(t, err)
	require.True(t, replayed)

	clk.Advance(time.Second)
	_, replayed, err = makeOnce(t, st, &runs, request("default", "another body"))
	require.NoError(t, err)
	require.False(t, replayed)
	clk.Advance(24 * time.Hour)
	n, err = st.TrimRequests(t.Context(), 10)
	require.NoError(t, err)
	require.Equal(t, 1, n)
}
