package engine_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"postrider.dev/pkg/tenant"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/dispatcher/internal/domain/queue"
	"postrider.dev/services/dispatcher/internal/engine"
)

// ledger checks what consumers see: per partition, settled messages in order and none again.
type ledger struct {
	mu      sync.Mutex // guards the rest
	next    map[string]int
	settled int
	faults  []string
}

// deliver notes that messages were handed out in one pop: inside a partition they must follow what was settled, without a gap.
func (l *ledger) deliver(resp *queuev1.PopResponse) {
	l.mu.Lock()
	defer l.mu.Unlock()
	want := map[string]int{}
	for _, d := range resp.GetDeliveries() {
		n, err := strconv.Atoi(strings.TrimPrefix(string(d.GetPayload()), d.GetPartition()+"/"))
		if err != nil {
			l.faults = append(l.faults, "foreign payload "+string(d.GetPayload()))
			continue
		}
		if _, seen := want[d.GetPartition()]; !seen {
			want[d.GetPartition()] = l.next[d.GetPartition()]
		}
		if n != want[d.GetPartition()] {
			l.faults = append(l.faults, fmt.Sprintf("partition %s: got %d, want %d", d.GetPartition(), n, want[d.GetPartition()]))
		}
		want[d.GetPartition()] = n + 1
	}
}

// settle notes that a prefix of a partition's messages was acked. It is called before the ack is sent, while the lease still keeps others away.
func (l *ledger) settle(partition string, upto int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.settled += upto - l.next[partition]
	l.next[partition] = upto
}

func (l *ledger) done() (settled int, faults []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.settled, l.faults
}

func TestOrderPerPartitionUnderEightProducersAndEightConsumersOnTwoEngines(t *testing.T) {
	t.Parallel()
	for _, shards := range []int{1, 4} {
		t.Run(fmt.Sprintf("shards=%d", shards), func(t *testing.T) {
			t.Parallel()
			url := database(t)
			nodes := []*node{newNode(t, url, nodeOptions{}), newNode(t, url, nodeOptions{})}
			makeQueue(t, nodes[0], shards)
			const producers, consumers, each = 8, 8, 400
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var wg sync.WaitGroup
			for i := range producers {
				wg.Go(func() { produce(t, nodes[i%2], i, each) })
			}
			l := &ledger{next: map[string]int{}}
			for i := range consumers {
				wg.Go(func() {
					defer cancel()
					consume(ctx, t, nodes[i%2], l, uint64(i), producers*each)
				})
			}
			wg.Wait()

			settled, faults := l.done()
			require.Empty(t, faults)
			require.Equal(t, producers*each, settled)
		})
	}
}

// makeQueue makes the queue "q" with that many shards.
func makeQueue(t *testing.T, n *node, shards int) {
	t.Helper()
	_, err := n.control.Configure(t.Context(), tenant.Caller{Tenant: ten, Actor: "test", Role: tenant.Admin}, "q",
		queue.Patch{Set: queue.Options{Shards: &shards}})
	require.NoError(t, err)
}

// produce pushes a producer's own three partitions in order, in batches of random size.
func produce(t *testing.T, n *node, producer, count int) {
	r := rand.New(rand.NewPCG(7, uint64(producer)))
	next := map[string]int{}
	for sent := 0; sent < count; {
		req := &queuev1.PushRequest{Queue: "q"}
		for range min(1+r.IntN(10), count-sent) {
			p := fmt.Sprintf("%d-%d", producer, r.IntN(3))
			req.Items = append(req.Items, item(p, fmt.Sprintf("%s/%d", p, next[p])))
			next[p]++
			sent++
		}
		if _, err := n.Push(t.Context(), ten, req); err != nil {
			t.Error(err)
			return
		}
	}
}

// consume pops, then acks all, a part, nacks or releases, until everything is settled.
func consume(ctx context.Context, t *testing.T, n *node, l *ledger, seed uint64, total int) {
	r := rand.New(rand.NewPCG(11, seed))
	for {
		if settled, faults := l.done(); settled >= total || len(faults) > 0 {
			return
		}
		resp, err := n.Pop(ctx, ten, &queuev1.PopRequest{Queue: "q", Batch: int32(1 + r.IntN(20)), Wait: seconds(0.3)})
		if errors.Is(err, context.Canceled) {
			return
		}
		if err != nil {
			t.Error(err)
			return
		}
		if resp.GetLease() == "" {
			continue
		}
		l.deliver(resp)
		if err := finish(t, n, l, r, resp); err != nil {
			t.Error(err)
			return
		}
	}
}

// finish ends a lease in one of several ways.
func finish(t *testing.T, n *node, l *ledger, r *rand.Rand, resp *queuev1.PopResponse) error {
	ctx := t.Context()
	switch r.IntN(10) {
	case 0:
		_, err := n.Release(ctx, ten, &queuev1.ReleaseRequest{Queue: "q", Lease: resp.GetLease()})
		return err
	case 1:
		failed := resp.GetDeliveries()[r.IntN(len(resp.GetDeliveries()))]
		_, err := n.Ack(ctx, ten, &queuev1.AckRequest{Queue: "q", Lease: resp.GetLease(), Settlements: []*queuev1.Settlement{{
			MessageId: failed.GetMessageId(), Action: queuev1.AckAction_ACK_ACTION_NACK, Delay: seconds(0.01),
		}}})
		if err != nil {
			return err
		}
		_, err = n.Release(ctx, ten, &queuev1.ReleaseRequest{Queue: "q", Lease: resp.GetLease()})
		if errors.Is(err, engine.ErrStaleEpoch) {
			return nil
		}
		return err
	}
	upto := map[string]int{}
	req := &queuev1.AckRequest{Queue: "q", Lease: resp.GetLease()}
	keep := len(resp.GetDeliveries())
	if r.IntN(3) == 0 {
		keep = 1 + r.IntN(keep)
	}
	for _, d := range resp.GetDeliveries()[:keep] {
		req.Settlements = append(req.Settlements, &queuev1.Settlement{MessageId: d.GetMessageId()})
		i, _ := strconv.Atoi(strings.TrimPrefix(string(d.GetPayload()), d.GetPartition()+"/"))
		upto[d.GetPartition()] = i + 1
	}
	for p, i := range upto {
		l.settle(p, i)
	}
	out, err := n.Ack(ctx, ten, req)
	if err != nil {
		return err
	}
	for _, res := range out.GetResults() {
		if res.GetStatus() != queuev1.AckStatus_ACK_STATUS_SETTLED {
			return fmt.Errorf("a live lease was refused: %v", res)
		}
	}
	if keep < len(resp.GetDeliveries()) {
		_, err = n.Release(ctx, ten, &queuev1.ReleaseRequest{Queue: "q", Lease: resp.GetLease()})
	}
	return err
}

func TestPopOfOnePartitionIsFilledBeyondWhatWasListed(t *testing.T) {
	t.Parallel()
	n := newNode(t, database(t), nodeOptions{})
	n.push("q", item("a", "0"), item("b", "0"))
	n.pop(&queuev1.PopRequest{Queue: "q", Batch: 1})
	for _, payload := range []string{"1", "2", "3"} {
		n.push("q", item("a", payload), item("b", payload))
	}

	resp := n.pop(&queuev1.PopRequest{Queue: "q", Partition: "b", Batch: 10})

	require.Equal(t, []string{"0", "1", "2", "3"}, payloads(resp))
}
