package e2e

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"postrider.dev/tests/fleet"
	"postrider.dev/tests/hammer"
)

// hammerThrough pushes and consumes on two hosts of real processes, calls fault when a third is acked and mend afterwards, and checks the history.
func hammerThrough(t *testing.T, p *fleet.Processes, fault, mend func()) {
	t.Helper()
	const publishers, each = 4, 1500
	const total = publishers * each
	r := hammer.NewRecorder()
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	consuming, stop := context.WithCancel(ctx)
	var producers, consumers errgroup.Group
	for i := range publishers {
		client := p.Client(t, orderFrom(i%2)...)
		producers.Go(func() error {
			return hammer.Produce{
				Queue: "q", Publisher: fmt.Sprintf("p%d", i), Partitions: partitions(32), Batch: 5, Count: each, Keyed: true,
			}.Run(ctx, r, client)
		})
	}
	unkeyed := p.Client(t, orderFrom(1)...)
	producers.Go(func() error {
		return hammer.Produce{Queue: "q", Publisher: "unkeyed", Partitions: partitions(32), Batch: 5, Count: each}.Run(ctx, r, unkeyed)
	})
	for i := range 6 {
		client := p.Client(t, orderFrom((i+1)%2)...)
		group := fmt.Sprintf("g%d", i%2)
		consumers.Go(func() error {
			return hammer.Consume{Queue: "q", Group: group, Batch: 10, Lease: 2 * time.Second}.Run(consuming, r, client)
		})
	}

	faulted := r.AwaitAcked(ctx, "q", "g0", total/3)
	if faulted == nil {
		fault()
		t.Logf("fault with %d pushed, %d and %d acked", r.Pushed("q"), r.Acked("q", "g0"), r.Acked("q", "g1"))
		mend()
	}
	err := errors.Join(faulted, producers.Wait(), r.AwaitDrained(ctx, "q", "g0"), r.AwaitDrained(ctx, "q", "g1"))
	stop()
	require.NoError(t, errors.Join(err, consumers.Wait()))
	require.GreaterOrEqual(t, r.Pushed("q"), total)
	noViolation(t, r)
}

// orderFrom lists both hosts, beginning with one.
func orderFrom(first int) []int { return []int{first, 1 - first} }

func TestKillingADispatcherLosesNothingAcknowledgedAndBringsNothingAckedBack(t *testing.T) {
	t.Parallel()
	p := fleet.StartProcesses(t, &binaries, 2)
	d := p.Hosts[0].Dispatcher
	hammerThrough(t, p, d.Kill, func() {
		d.Start(t)
		d.AwaitReady(t)
	})
}

func TestKillingAnIngressLosesNothingAcknowledgedAndBringsNothingAckedBack(t *testing.T) {
	t.Parallel()
	p := fleet.StartProcesses(t, &binaries, 2)
	in := p.Hosts[0].Ingress
	hammerThrough(t, p, in.Kill, func() {
		in.Start(t)
		in.AwaitReady(t)
	})
}

func TestRestartingPostgresLosesNothingAcknowledgedAndBringsNothingAckedBack(t *testing.T) {
	t.Parallel()
	p := fleet.StartProcesses(t, &binaries, 2)
	hammerThrough(t, p, func() { require.NoError(t, p.Postgres.Kill(t.Context())) }, func() { require.NoError(t, p.Postgres.Restart(t.Context())) })
}
