package keyring_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"postrider.dev/pkg/clock"
	"postrider.dev/pkg/tenant"
	"postrider.dev/services/ingress/internal/domain"
	"postrider.dev/services/ingress/internal/engine/keyring"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type source struct {
	mu    sync.Mutex // guards all below
	keys  map[domain.KeyID]domain.APIKey
	err   error
	reads int

	gate    chan struct{} // if set, reads of keys that are not there wait for it
	waiting int
	most    int // that ever waited at once
}

func (s *source) Key(_ context.Context, id domain.KeyID) (domain.APIKey, error) {
	s.wait(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reads++
	if s.err != nil {
		return domain.APIKey{}, s.err
	}
	key, ok := s.keys[id]
	if !ok {
		return domain.APIKey{}, domain.ErrNotFound
	}
	return key, nil
}

func (s *source) wait(id domain.KeyID) {
	s.mu.Lock()
	gate := s.gate
	if _, ok := s.keys[id]; ok || gate == nil {
		s.mu.Unlock()
		return
	}
	s.waiting++
	s.most = max(s.most, s.waiting)
	s.mu.Unlock()
	<-gate
	s.mu.Lock()
	s.waiting--
	s.mu.Unlock()
}

func (s *source) set(change func(*source)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(s)
}

func (s *source) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reads
}

func setup(t *testing.T) (*keyring.Ring, *source, *clock.Fake, domain.Key) {
	t.Helper()
	key, err := domain.ParseKey("prk_k_0123456789ABCDEFGHIJKLMNOP")
	require.NoError(t, err)
	src := &source{keys: map[domain.KeyID]domain.APIKey{
		"k": {ID: "k", Tenant: "acme", Role: tenant.Write, Hash: key.Hash(), Left: domain.Forever},
	}}
	clk := clock.NewFake(time.Unix(1_900_000_000, 0))
	ring, err := keyring.New(src, clk, keyring.Config{Fresh: 5 * time.Second, MaxStale: 10 * time.Minute, Strangers: 3})
	require.NoError(t, err)
	return ring, src, clk, key
}

func TestAKeyIsReadOnceInItsFreshTime(t *testing.T) {
	t.Parallel()
	ring, src, clk, key := setup(t)
	for range 10 {
		caller, err := ring.Check(t.Context(), key)
		require.NoError(t, err)
		require.Equal(t, tenant.Caller{Tenant: "acme", Actor: "key:k", Role: tenant.Write}, caller)
	}
	require.Equal(t, 1, src.count())
	clk.Advance(5 * time.Second)
	_, err := ring.Check(t.Context(), key)
	require.NoError(t, err)
	require.Equal(t, 2, src.count())
}

func TestAWrongSecretIsRefusedLikeAnUnknownKey(t *testing.T) {
	t.Parallel()
	ring, src, _, _ := setup(t)
	for _, text := range []string{"prk_k_PPP3456789ABCDEFGHIJKLMNOP", "prk_unknown_0123456789ABCDEFGHIJKLMNOP"} {
		key, err := domain.ParseKey(text)
		require.NoError(t, err)
		for range 5 {
			_, err = ring.Check(t.Context(), key)
			require.ErrorIs(t, err, keyring.ErrRefused)
		}
	}
	require.Equal(t, 2, src.count(), "what does not exist is remembered too")
}

func TestARevocationIsSeenAtTheHintAndWithoutItWithinTheFreshTime(t *testing.T) {
	t.Parallel()
	for _, hinted := range []bool{true, false} {
		ring, src, clk, key := setup(t)
		_, err := ring.Check(t.Context(), key)
		require.NoError(t, err)
		src.set(func(s *source) {
			k := s.keys["k"]
			k.RevokedAt = clk.Now()
			s.keys["k"] = k
		})
		_, err = ring.Check(t.Context(), key)
		require.NoError(t, err, "not known yet")

		if hinted {
			ring.InvalidateAll()
		} else {
			clk.Advance(5 * time.Second)
		}

		_, err = ring.Check(t.Context(), key)
		require.ErrorIs(t, err, keyring.ErrRefused)
	}
}

func TestANewKeyWorksAtOnceAfterItsHint(t *testing.T) {
	t.Parallel()
	ring, src, _, key := setup(t)
	var record domain.APIKey
	src.set(func(s *source) {
		record = s.keys["k"]
		delete(s.keys, "k")
	})
	_, err := ring.Check(t.Context(), key)
	require.ErrorIs(t, err, keyring.ErrRefused)
	src.set(func(s *source) { s.keys["k"] = record })

	ring.Invalidate("k")

	_, err = ring.Check(t.Context(), key)
	require.NoError(t, err)
}

func TestAKeyEndsAtItsTimeAlsoBetweenReads(t *testing.T) {
	t.Parallel()
	ring, src, clk, key := setup(t)
	src.set(func(s *source) {
		k := s.keys["k"]
		k.Left = 3 * time.Second
		s.keys["k"] = k
	})
	_, err := ring.Check(t.Context(), key)
	require.NoError(t, err)
	clk.Advance(3 * time.Second)
	_, err = ring.Check(t.Context(), key)
	require.ErrorIs(t, err, keyring.ErrRefused)
}

func TestWhileTheDatabaseIsAwayKnownKeysAreHonouredForTenMinutesAndOthersNot(t *testing.T) {
	t.Parallel()
	ring, src, clk, key := setup(t)
	stranger, err := domain.ParseKey("prk_other_0123456789ABCDEFGHIJKLMNOP")
	require.NoError(t, err)
	_, err = ring.Check(t.Context(), key)
	require.NoError(t, err)
	src.set(func(s *source) { s.err = fmt.Errorf("get key: %w", domain.ErrAway) })
	ring.InvalidateAll() // a hint must not take away what the outage leaves

	clk.Advance(9 * time.Minute)
	for range 10 {
		_, err = ring.Check(t.Context(), key)
		require.NoError(t, err)
	}
	require.Equal(t, 2, src.count(), "it is asked once a second, not once a request")
	_, err = ring.Check(t.Context(), stranger)
	require.ErrorIs(t, err, keyring.ErrAway)
	clk.Advance(2 * time.Minute)
	_, err = ring.Check(t.Context(), key)
	require.ErrorIs(t, err, keyring.ErrAway)

	src.set(func(s *source) { s.err = nil })
	_, err = ring.Check(t.Context(), key)
	require.NoError(t, err)
}

func TestManyCallersShareOneRead(t *testing.T) {
	t.Parallel()
	ring, src, _, key := setup(t)
	src.mu.Lock() // holds the read up
	var callers sync.WaitGroup
	errs := make([]error, 50)
	for i := range errs {
		callers.Go(func() { _, errs[i] = ring.Check(t.Context(), key) })
	}
	src.mu.Unlock()
	callers.Wait()
	require.NoError(t, errors.Join(errs...))
	require.Less(t, src.count(), 50)
	require.NotContains(t, fmt.Sprintf("%v %+v", key, key), "0123456789", "a key does not print its secret")
}

func TestGuessersShareAFewReadsAndKeepNoKnownKeyWaiting(t *testing.T) {
	t.Parallel()
	ring, src, clk, key := setup(t)
	_, err := ring.Check(t.Context(), key)
	require.NoError(t, err)
	gate := make(chan struct{})
	src.set(func(s *source) { s.gate = gate })
	var guessers sync.WaitGroup
	for i := range 50 {
		guess, err := domain.ParseKey(fmt.Sprintf("prk_guess%d_0123456789ABCDEFGHIJKLMNOP", i))
		require.NoError(t, err)
		guessers.Go(func() {
			_, err := ring.Check(t.Context(), guess)
			assert.True(t, errors.Is(err, keyring.ErrRefused) || errors.Is(err, keyring.ErrAway), "%v", err)
		})
	}
	require.Eventually(t, func() bool {
		src.mu.Lock()
		defer src.mu.Unlock()
		return src.waiting == 3
	}, 5*time.Second, time.Millisecond)

	clk.Advance(5 * time.Second) // the known key is due for reading
	_, err = ring.Check(t.Context(), key)
	require.NoError(t, err)
	close(gate)
	guessers.Wait()

	require.Equal(t, 3, src.most)
}

func TestAStrangerWhoseTurnDoesNotComeIsTold(t *testing.T) {
	t.Parallel()
	ring, src, _, _ := setup(t)
	gate := make(chan struct{})
	src.set(func(s *source) { s.gate = gate })
	var guessers sync.WaitGroup
	var away atomic.Int32
	for i := range 4 {
		guess, err := domain.ParseKey(fmt.Sprintf("prk_guess%d_0123456789ABCDEFGHIJKLMNOP", i))
		require.NoError(t, err)
		guessers.Go(func() {
			if _, err := ring.Check(t.Context(), guess); errors.Is(err, keyring.ErrAway) {
				away.Add(1)
				close(gate)
			}
		})
	}
	guessers.Wait()
	require.EqualValues(t, 1, away.Load())
}
