package redistest

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"

	"postrider.dev/pkg/clock"
)

// ttlStep is how often the imitation's keys grow older.
const ttlStep = 50 * time.Millisecond

// Mini runs the in-process imitation until the test's end. Its keys expire by the machine's clock, which they do not on their own. It has no sharded pub/sub.
func Mini(t testing.TB) *miniredis.Miniredis {
	t.Helper()
	m := miniredis.NewMiniRedis()
	if err := m.Start(); err != nil {
		t.Fatalf("redistest: %v", err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var aging sync.WaitGroup
	aging.Go(func() { age(ctx, clock.Real{}, m) })
	t.Cleanup(func() {
		cancel()
		aging.Wait()
		m.Close()
	})
	return m
}

// age makes the keys' remaining lives follow a clock.
func age(ctx context.Context, clk clock.Clock, m *miniredis.Miniredis) {
	tick := clk.NewTicker(ttlStep)
	defer tick.Stop()
	for last := clk.Now(); ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C():
			now := clk.Now()
			m.FastForward(now.Sub(last))
			last = now
		}
	}
}
