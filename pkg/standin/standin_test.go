package standin_test

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
	"postrider.dev/pkg/standin"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestItActsOnlyWhileThePartnerHasBeenAwayForAWhileAndGoesOnAfterAFailure(t *testing.T) {
	t.Parallel()
	clk := clock.NewFake(time.Unix(0, 0))
	var present atomic.Bool
	present.Store(true)
	asked := make(chan struct{})
	isPresent := func() bool {
		defer func() { asked <- struct{}{} }()
		return present.Load()
	}
	acts := make(chan time.Duration, 100)
	s := standin.New(clk, zap.NewNop(), time.Second, 3*time.Second, isPresent, func(context.Context) error {
		acts <- clk.Since(time.Unix(0, 0))
		return errors.New("failed")
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	advance := func() {
		clk.BlockUntil(1)
		clk.Advance(time.Second)
		<-asked
	}

	for range 5 {
		advance()
	}
	require.Empty(t, acts)
	present.Store(false)
	for range 5 {
		advance()
	}
	require.GreaterOrEqual(t, <-acts, 7*time.Second, "it must wait for its patience first")
	require.NotEmpty(t, acts, "it goes on after a failure")

	cancel()
	require.NoError(t, <-ended)
}
