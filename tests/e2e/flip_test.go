package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	postrider "postrider.dev/sdk"
	"postrider.dev/stack"
)

// flipped pushes at a host, one push after another, until one is answered as maintenance has it (on) or has it not, and returns when that one was sent.
func flipped(ctx context.Context, c *postrider.Client, partition string, on bool) (time.Time, error) {
	for ctx.Err() == nil {
		sent := time.Now()
		_, err := c.Queues().Push(ctx, &queuev1.PushRequest{ // not by PushCommitted, which tries again
			Queue: "orders", Require: queuev1.PushRequire_PUSH_REQUIRE_COMMITTED, Items: []*queuev1.PushItem{{Partition: partition, Payload: []byte("x")}},
		})
		refused := err != nil && strings.Contains(err.Error(), "only be buffered")
		if err != nil && !refused {
			return sent, err
		}
		if refused == on {
			return sent, nil
		}
	}
	return time.Time{}, ctx.Err()
}

func TestOverTheMeshAFlipOfMaintenanceHoldsForThePushesOfEveryHostWithin100Milliseconds(t *testing.T) {
	t.Parallel()
	const flips = 10
	refresh := time.Minute
	if hintsLost() {
		refresh = 300 * time.Millisecond
	}
	folder := t.TempDir()
	f := meshed(t, 3, func(n int, cfg *stack.Config) {
		readModesEvery(refresh)(n, cfg)
		cfg.Dispatcher.SpoolDir = fmt.Sprintf("%s/host-%d", folder, n)
	})
	clients := make([]*postrider.Client, len(f.Hosts))
	for n := range clients {
		clients[n] = f.Client(t, n)
		mustPush(t, clients[n], "orders", fmt.Sprintf("p%d", n), "first")
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()

	took := make([]time.Duration, flips)
	for n := range flips {
		on := n%2 == 0
		began := time.Now()
		_, err := clients[0].SetMode(ctx, "maintenance", on, "upgrade")
		require.NoError(t, err)
		seen := make([]time.Time, len(clients))
		var hosts errgroup.Group
		for h, c := range clients {
			hosts.Go(func() (err error) {
				seen[h], err = flipped(ctx, c, fmt.Sprintf("p%d", h), on)
				return err
			})
		}
		require.NoError(t, hosts.Wait())
		took[n] = slices.MaxFunc(seen, time.Time.Compare).Sub(began)
	}

	t.Logf("each flip held everywhere after %v (hints: %s)", took, hints())
	if !hintsLost() {
		slices.Sort(took)
		require.Less(t, took[flips/2], 100*time.Millisecond, "the median: the machine of the tests may be busy")
	}
}
