package engine_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"postrider.dev/pkg/clock"
	"postrider.dev/pkg/localpg"
	"postrider.dev/pkg/migrate"
	"postrider.dev/pkg/pgtest"
	"postrider.dev/pkg/tenant"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/dispatcher/internal/engine"
	"postrider.dev/services/dispatcher/migrations"
)

func admin() tenant.Caller { return tenant.Caller{Tenant: ten, Actor: "test", Role: tenant.Admin} }

func TestAQueueMadeAgainUnderTheNameIsANewOne(t *testing.T) {
	t.Parallel()
	url := database(t)
	a, b := newNode(t, url, nodeOptions{}), newNode(t, url, nodeOptions{})
	first := b.push("q", item("a", "old"))
	parked := b.popLater(t.Context(), &queuev1.PopRequest{Queue: "q", Partition: "none", Wait: seconds(30)})
	b.awaitParked(1)

	_, err := a.control.DeleteQueue(t.Context(), admin(), "q", false) // b is not told
	require.NoError(t, err)
	second := b.push("q", item("none", "new"))
	resp := <-parked

	require.NotEqual(t, first[0].GetMessageId(), second[0].GetMessageId())
	require.Equal(t, int64(0), second[0].GetOffset())
	require.Equal(t, []string{"new"}, payloads(resp))
}

func TestALeaseOfADeletedGroupIsStale(t *testing.T) {
	t.Parallel()
	url := database(t)
	n := newNode(t, url, nodeOptions{})
	n.push("q", item("a", "1"))
	held := n.pop(&queuev1.PopRequest{Queue: "q", Group: "g"})
	_, err := n.control.DeleteGroup(t.Context(), admin(), "q", "g")
	require.NoError(t, err)

	_, err = n.Ack(t.Context(), ten, &queuev1.AckRequest{Queue: "q", Lease: held.GetLease(), AckRest: true})
	again := n.pop(&queuev1.PopRequest{Queue: "q", Group: "g"})

	require.ErrorIs(t, err, engine.ErrStaleEpoch)
	require.Equal(t, []string{"1"}, payloads(again))
}

func TestANewLimitHoldsFromTheNextCommitOnWithoutAHint(t *testing.T) {
	t.Parallel()
	url := database(t)
	a, b := newNode(t, url, nodeOptions{}), newNode(t, url, nodeOptions{})
	b.push("q", item("a", "long enough"))
	a.set(url, `{"max_message_bytes": 4}`)

	b.push("q", item("a", "brings the news"))
	resp, err := b.Push(t.Context(), ten, &queuev1.PushRequest{Queue: "q", Items: []*queuev1.PushItem{item("a", "too long"), item("a", "ok")}})

	require.NoError(t, err)
	require.Equal(t, "MESSAGE_TOO_LARGE", resp.GetResults()[0].GetError().GetCode())
	require.Equal(t, queuev1.PushStatus_PUSH_STATUS_QUEUED, resp.GetResults()[1].GetStatus())
}

func TestALeaseOverSeveralShardsIsOneToken(t *testing.T) {
	t.Parallel()
	n := newNode(t, database(t), nodeOptions{})
	makeQueue(t, n, 4)
	for i := range 40 {
		n.push("q", item(fmt.Sprintf("p%d", i), strconv.Itoa(i)))
	}

	all := n.pop(&queuev1.PopRequest{Queue: "q", Batch: 100})
	renewed, err := n.Renew(t.Context(), ten, &queuev1.RenewRequest{Queue: "q", Lease: all.GetLease(), Duration: seconds(60)})
	require.NoError(t, err)
	acked, err := n.Ack(t.Context(), ten, &queuev1.AckRequest{Queue: "q", Lease: all.GetLease(), AckRest: true})
	require.NoError(t, err)

	require.Len(t, all.GetDeliveries(), 40)
	require.True(t, renewed.GetLeaseExpiresAt().AsTime().After(all.GetLeaseExpiresAt().AsTime()))
	require.Equal(t, int32(40), acked.GetRestAcked())
	require.Empty(t, n.pop(&queuev1.PopRequest{Queue: "q"}).GetLease())
}

func TestParkedPopsOfAQueueWithSeveralShardsAreWoken(t *testing.T) {
	t.Parallel()
	n := newNode(t, database(t), nodeOptions{})
	makeQueue(t, n, 8)
	var waiting []<-chan *queuev1.PopResponse
	for range 16 {
		waiting = append(waiting, n.popLater(t.Context(), &queuev1.PopRequest{Queue: "q", Wait: seconds(30)}))
	}
	n.awaitParked(16)

	for i := range 16 {
		n.push("q", item(fmt.Sprintf("p%d", i), strconv.Itoa(i)))
	}

	got := map[string]bool{}
	for _, w := range waiting {
		for _, p := range payloads(<-w) {
			got[p] = true
		}
	}
	require.Len(t, got, 16)
}

func TestPushesBeyondTheBudgetAreRefusedWithARetryTime(t *testing.T) {
	t.Parallel()
	n := newNode(t, database(t), nodeOptions{cfg: func(c *engine.Config) { c.QueuedBytes = 1000 }})
	var wg sync.WaitGroup
	errs := make(chan error, 200)
	for range 200 {
		wg.Go(func() {
			_, err := n.Push(t.Context(), ten, &queuev1.PushRequest{Queue: "q", Items: []*queuev1.PushItem{item("a", string(make([]byte, 400)))}})
			errs <- err
		})
	}
	wg.Wait()
	close(errs)

	refused := 0
	for err := range errs {
		if err != nil {
			var over *engine.OverloadedError
			require.ErrorAs(t, err, &over)
			require.Positive(t, over.RetryAfter)
			refused++
		}
	}
	require.Positive(t, refused)
	require.InDelta(t, 0, n.metric("queued_push_bytes"), 0)
	n.push("q", item("a", "room again"))
}

func TestViewsBeyondTheirMemoryAreDroppedAndReadAgain(t *testing.T) {
	t.Parallel()
	n := newNode(t, database(t), nodeOptions{cfg: func(c *engine.Config) { c.ViewBytes = 64 << 10 }})
	for i := range 50 {
		q := fmt.Sprintf("q%d", i)
		n.push(q, item("a", "1"), item("b", "2"))
		require.Equal(t, []string{"1"}, payloads(n.pop(&queuev1.PopRequest{Queue: q})))
	}
	eventually(t, func() error {
		got := n.metric("view_bytes")
		return wantf(got <= 64<<10, "views take %v bytes", got)
	})
	for i := range 50 {
		require.Equal(t, []string{"2"}, payloads(n.pop(&queuev1.PopRequest{Queue: fmt.Sprintf("q%d", i)})))
	}
	require.Positive(t, n.metric("view_evictions_total"))
}

func TestDrainEndsParkedPopsAtOnce(t *testing.T) {
	t.Parallel()
	n := newNode(t, database(t), nodeOptions{})
	parked := n.popLater(t.Context(), &queuev1.PopRequest{Queue: "q", Wait: seconds(20)})
	n.awaitParked(1)
	began := clock.Real{}.Now()

	n.Drain()
	resp := <-parked
	later := n.pop(&queuev1.PopRequest{Queue: "q", Wait: seconds(20)})
	took := clock.Real{}.Since(began)
	n.push("q", item("a", "still served"))
	served := n.pop(&queuev1.PopRequest{Queue: "q", Wait: seconds(60)})

	require.True(t, resp.GetDraining())
	require.True(t, later.GetDraining())
	require.Less(t, took, 10*time.Second)
	require.Equal(t, []string{"still served"}, payloads(served))
}

func TestAnEngineEndsAtAnyMomentWithEveryCallAnswered(t *testing.T) {
	t.Parallel()
	url := database(t)
	r := rand.New(rand.NewPCG(3, 5))
	for range 40 {
		n := newNode(t, url, nodeOptions{})
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				for ctx.Err() == nil {
					_, _ = n.Push(ctx, ten, &queuev1.PushRequest{Queue: "q", Items: []*queuev1.PushItem{item(strconv.Itoa(i), "x")}})
					resp, err := n.Pop(ctx, ten, &queuev1.PopRequest{Queue: "q", Wait: seconds(5)})
					if err == nil && resp.GetLease() != "" {
						_, _ = n.Ack(ctx, ten, &queuev1.AckRequest{Queue: "q", Lease: resp.GetLease(), AckRest: true})
					}
					if err == nil && resp.GetDraining() {
						return
					}
				}
			})
		}
		require.NoError(t, clock.Real{}.Sleep(ctx, time.Duration(r.IntN(30))*time.Millisecond))
		n.stop()
		cancel()
		wg.Wait()
	}
}

func TestARestartOfTheDatabaseLosesNothingAcknowledged(t *testing.T) {
	t.Parallel()
	srv := pgtest.NewServer(t, localpg.Options{})
	_, err := migrate.Up(t.Context(), clock.Real{}, srv.DSN("postgres"), migrations.Set())
	require.NoError(t, err)
	n := newNode(t, srv.DSN("postgres"), nodeOptions{})
	const producers = 4
	var mu sync.Mutex
	acked := map[string]bool{} // pushed and acknowledged
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	for i := range producers {
		wg.Go(func() {
			for j := 0; ctx.Err() == nil; j++ {
				payload := fmt.Sprintf("%d/%d", i, j)
				resp, err := n.Push(t.Context(), ten, &queuev1.PushRequest{Queue: "q", Items: []*queuev1.PushItem{item(strconv.Itoa(i), payload)}})
				if err == nil && resp.GetResults()[0].GetStatus() == queuev1.PushStatus_PUSH_STATUS_QUEUED {
					mu.Lock()
					acked[payload] = true
					mu.Unlock()
				}
			}
		})
	}
	for range 3 {
		require.NoError(t, clock.Real{}.Sleep(ctx, 200*time.Millisecond))
		require.NoError(t, srv.Kill(t.Context()))
		require.NoError(t, srv.Restart(t.Context()))
	}
	cancel()
	wg.Wait()

	seen := map[string]int{}
	var settle *queuev1.AckRequest
	for {
		resp := n.pop(&queuev1.PopRequest{Queue: "q", Batch: 1000, Settle: settle})
		if resp.GetLease() == "" {
			break
		}
		for _, p := range payloads(resp) {
			seen[p]++
		}
		settle = &queuev1.AckRequest{Lease: resp.GetLease(), AckRest: true}
	}
	for p := range acked {
		require.Equal(t, 1, seen[p], "message %s", p)
	}
	for p, times := range seen {
		require.Equal(t, 1, times, "message %s", p)
	}
	require.NotEmpty(t, acked)
}
