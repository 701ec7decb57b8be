package loop_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"postrider.dev/pkg/clock"
	"postrider.dev/pkg/tenant"
	"postrider.dev/services/ingress/internal/domain"
	"postrider.dev/services/ingress/internal/loop"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type ensurer struct {
	fail  atomic.Int32
	calls atomic.Int32
	key   atomic.Value
}

func (e *ensurer) EnsureKey(_ context.Context, _ tenant.Caller, key domain.APIKey) error {
	e.calls.Add(1)
	if e.fail.Add(-1) >= 0 {
		return errors.New("not yet")
	}
	e.key.Store(key)
	return nil
}

func TestTheAdministratorsKeyIsWrittenAsSoonAsItCanBe(t *testing.T) {
	t.Parallel()
	key, err := domain.ParseKey("prk_admin_0123456789ABCDEFGHIJKLMNOP")
	require.NoError(t, err)
	e := &ensurer{}
	e.fail.Store(3)
	b := loop.NewBootstrap(e, key, clock.Real{}, zap.NewNop())
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- b.Run(ctx) }()

	require.Eventually(t, b.Done, 10*time.Second, time.Millisecond)

	require.EqualValues(t, 4, e.calls.Load())
	got, ok := e.key.Load().(domain.APIKey)
	require.True(t, ok)
	require.Equal(t, tenant.Admin, got.Role)
	require.Equal(t, tenant.Default, got.Tenant)
	cancel()
	require.NoError(t, <-ended)
}
