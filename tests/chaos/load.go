package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/types/known/durationpb"

	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	postrider "postrider.dev/sdk"
	"postrider.dev/tests/hammer"
)

// tenant is one of the fleet's tenants with its API key. All have queues of the same names.
type tenant struct{ name, key string }

// queueShape is a queue of each tenant and how it is consumed.
type queueShape struct {
	name   string
	mode   queuev1.GroupMode
	shards int32
	groups []string
}

func shapes() []queueShape {
	return []queueShape{
		{name: "orders", mode: queuev1.GroupMode_GROUP_MODE_ORDERED, shards: 1, groups: []string{"billing", "search"}},
		{name: "jobs", mode: queuev1.GroupMode_GROUP_MODE_SHARED, shards: 1, groups: []string{"workers"}},
		{name: "wide", mode: queuev1.GroupMode_GROUP_MODE_ORDERED, shards: 4, groups: []string{"readers"}},
	}
}

const (
	lease      = 2 * time.Second // shorter than a dispatcher is stopped
	partitions = 24
	batch      = 20
	every      = 100 * time.Millisecond // between two pushes of a producer
	perGroup   = 3                      // consumers of a group

	stuckAfter = time.Minute // longer than any lease, backoff or start of a process
)

// load is the clients of a run. Producers go on until stop is closed, consumers until their context ends.
type load struct {
	t       testing.TB
	record  *hammer.Recorder
	tenants []tenant
	dial    func(key string, first int) *postrider.Client

	stop      chan struct{}
	producers errgroup.Group
	consumers errgroup.Group
}

// start configures the queues and starts the clients.
func (l *load) start(ctx, consuming context.Context) {
	for n, tenant := range l.tenants {
		for i, shape := range shapes() {
			l.configure(ctx, tenant, shape)
			l.produce(ctx, tenant, shape, n+i, true)
			l.produce(ctx, tenant, shape, n+i+1, false)
			for _, group := range shape.groups {
				for c := range perGroup {
					l.consume(consuming, tenant, shape, group, c)
				}
			}
		}
	}
}

// configure makes failures come back soon and never end among the dead letters: what the run checks is that all is acked.
func (l *load) configure(ctx context.Context, tenant tenant, shape queueShape) {
	_, err := l.dial(tenant.key, 0).Configure(ctx, shape.name, &queuev1.QueueOptions{
		Shards: &shape.shards, MaxAttempts: new(int32(1000)), Backoff: durationpb.New(100 * time.Millisecond), BackoffMax: durationpb.New(time.Second),
	})
	require.NoError(l.t, err)
}

// produce starts a producer. One without keys gives up a push of which it does not know whether it happened.
func (l *load) produce(ctx context.Context, tenant tenant, shape queueShape, first int, keyed bool) {
	client := l.dial(tenant.key, first%2)
	names := make([]string, partitions)
	for i := range names {
		names[i] = fmt.Sprintf("partition-%d", i)
	}
	p := hammer.Produce{
		Tenant: tenant.name, Queue: shape.name, Publisher: fmt.Sprintf("%s-%s-keyed-%t", tenant.name, shape.name, keyed), Partitions: names,
		Batch: batch, Count: 1 << 40, Keyed: keyed, Every: every, Stop: l.stop,
	}
	l.producers.Go(func() error { return p.Run(ctx, l.record, client) })
}

// consume starts a consumer that fails now and then, or forgets what it took.
func (l *load) consume(ctx context.Context, tenant tenant, shape queueShape, group string, nth int) {
	client := l.dial(tenant.key, nth%2)
	c := hammer.Consume{
		Tenant: tenant.name, Queue: shape.name, Group: group, Batch: 2 * batch, Lease: lease, Mode: shape.mode, Fate: moody,
	}
	l.consumers.Go(func() error { return c.Run(ctx, l.record, client) })
}

// moody is a consumer's mood: of a thousand messages it nacks five and forgets two.
func moody(*postrider.Delivery) hammer.Fate {
	switch n := rand.N(1000); {
	case n < 5:
		return hammer.Nacks
	case n < 7:
		return hammer.Forgets
	}
	return hammer.Acks
}

// drained returns when every group has acked every message whose push was acknowledged, or when for stuckAfter nobody has acked any: a slow machine takes its
// time, and what is lost or stuck never comes.
func (l *load) drained(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wait, watch errgroup.Group
	watch.Go(func() error {
		for before := -1; ctx.Err() == nil; hold(ctx, stuckAfter) {
			now := l.acked()
			if now == before {
				cancel(fmt.Errorf("nothing was acked for %s", stuckAfter))
			}
			before = now
		}
		return nil
	})
	defer watch.Wait() //nolint:errcheck // it has none
	defer cancel(nil)
	for _, tenant := range l.tenants {
		for _, shape := range shapes() {
			for _, group := range shape.groups {
				wait.Go(func() error { return l.record.AwaitDrained(ctx, hammer.QueueOf(tenant.name, shape.name), group) })
			}
		}
	}
	return wait.Wait()
}

// acked counts what all groups have acked.
func (l *load) acked() (n int) {
	for _, tenant := range l.tenants {
		for _, shape := range shapes() {
			for _, group := range shape.groups {
				n += l.record.Acked(hammer.QueueOf(tenant.name, shape.name), group)
			}
		}
	}
	return n
}
