package tail_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"postrider.dev/pkg/clock"
	"postrider.dev/pkg/run/runtest"
	"postrider.dev/pkg/tenant"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/ingress/internal/domain"
	"postrider.dev/services/ingress/internal/engine/tail"
	"postrider.dev/services/ingress/internal/engine/tail/tailtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var caller = tenant.Caller{Tenant: "acme", Actor: "key:k", Role: tenant.Read} //nolint:gochecknoglobals // a constant

// start runs a hub over a log until the test ends.
func start(t *testing.T, log *tailtest.Log, clk clock.Clock, change func(*tail.Config)) (*tail.Hub, chan struct{}) {
	t.Helper()
	cfg := tail.Defaults()
	if change != nil {
		change(&cfg)
	}
	draining := make(chan struct{})
	hub, err := tail.NewHub(log, draining, clk, zap.NewNop(), prometheus.NewRegistry(), cfg)
	require.NoError(t, err)
	stop := runtest.Go(t, hub.Run)
	t.Cleanup(func() { require.NoError(t, stop()) })
	return hub, draining
}

// subscribe begins a subscription and takes its first event. It is closed with the test.
func subscribe(t *testing.T, hub *tail.Hub, w tail.Wish) *tail.Subscription {
	t.Helper()
	w.Queue = "q"
	if w.Position.Named == "" && w.Position.Offsets == nil {
		w.Position.Named = domain.Latest
	}
	var s *tail.Subscription
	require.Eventually(t, func() (ok bool) {
		var err error
		s, err = hub.Subscribe(t.Context(), caller, w)
		return !errors.Is(err, tail.ErrStopped) // the hub may not run yet
	}, 5*time.Second, time.Millisecond)
	require.NotNil(t, s)
	b, err := s.Next(t.Context())
	require.NoError(t, err)
	require.NotNil(t, b.Events[0].GetHeartbeat(), "the first event says that the subscription stands")
	return s
}

// next returns the next events that are no heartbeats.
func next(t *testing.T, s *tail.Subscription) *tail.Batch {
	t.Helper()
	for {
		b, err := s.Next(t.Context())
		require.NoError(t, err)
		if b.Events[0].GetHeartbeat() == nil {
			return b
		}
	}
}

// reader checks what one subscriber is told against the log.
type reader struct {
	filter domain.Filter
	start  []int64
	at     []int64          // where it is, by shard
	got    []map[int64]bool // offsets, by shard
	gaps   [][][2]int64     // by shard
	resume string           // of the last event
}

func (r *reader) take(e *queuev1.SubscribeEvent) error {
	r.resume = e.GetResume()
	switch k := e.GetKind().(type) {
	case *queuev1.SubscribeEvent_Message:
		s, at := k.Message.GetShard(), k.Message.GetOffset()
		if at < r.at[s] {
			return fmt.Errorf("shard %d: offset %d again, or out of order: it was at %d", s, at, r.at[s])
		}
		r.at[s] = at + 1
		r.got[s][at] = true
	case *queuev1.SubscribeEvent_Gap:
		s := k.Gap.GetShard()
		if k.Gap.GetFrom() < r.at[s] || k.Gap.GetTo() <= k.Gap.GetFrom() {
			return fmt.Errorf("shard %d: gap [%d, %d) at %d", s, k.Gap.GetFrom(), k.Gap.GetTo(), r.at[s])
		}
		r.at[s] = k.Gap.GetTo()
		r.gaps[s] = append(r.gaps[s], [2]int64{k.Gap.GetFrom(), k.Gap.GetTo()})
	}
	return nil
}

// missing says what the subscriber should have been told and was not, or was told and should not have been.
func (r *reader) missing(log *tailtest.Log) error {
	for s := range r.at {
		for _, m := range log.Messages(s) {
			at := m.GetOffset()
			want := at >= r.start[s] && r.filter.Wants(m.GetPartition(), m.GetHeaders())
			inGap := false
			for _, g := range r.gaps[s] {
				inGap = inGap || at >= g[0] && at < g[1]
			}
			switch got := r.got[s][at]; {
			case got && (inGap || !want):
				return fmt.Errorf("shard %d: offset %d was told, in a gap: %t", s, at, inGap)
			case !got && want && !inGap:
				return fmt.Errorf("shard %d: offset %d is missing", s, at)
			}
		}
	}
	return nil
}

// TestNothingIsLostNorRepeatedAtAnySeam lets subscribers that read fast, slowly and by turns, that come back with their token or hold on, follow a log that
// is appended to, trimmed, and whose tails are lost, through a ring that holds very little.
func TestNothingIsLostNorRepeatedAtAnySeam(t *testing.T) {
	t.Parallel()
	for seed := range uint64(12) {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			t.Parallel()
			rnd := rand.New(rand.NewPCG(seed, 1))
			log := tailtest.New(7, 1+rnd.IntN(3))
			log.Page = 1 + rnd.IntN(6)
			hub, _ := start(t, log, clock.Real{}, func(c *tail.Config) {
				c.BufferMessages, c.Heartbeat, c.SlowAfter = int64(1+rnd.IntN(12)), 5*time.Millisecond, time.Hour
			})
			write(log, rnd, 30)
			var readers sync.WaitGroup
			done := make(chan struct{})
			errs := make(chan error, 8)
			for n := range 8 {
				own := rand.New(rand.NewPCG(seed, uint64(n+2)))
				readers.Go(func() { errs <- follow(t.Context(), hub, log, own, done) })
			}
			for range 40 {
				write(log, rnd, 10)
				switch rnd.IntN(6) {
				case 0:
					log.Break()
				case 1:
					s := rnd.IntN(len(log.Heads()))
					log.Trim(s, rnd.Int64N(log.Heads()[s]+1))
				}
				pause(t.Context(), time.Millisecond)
			}
			close(done)
			readers.Wait()
			close(errs)
			for err := range errs {
				require.NoError(t, err)
			}
		})
	}
}

func pause(ctx context.Context, d time.Duration) { _ = clock.Real{}.Sleep(ctx, d) }

func write(log *tailtest.Log, rnd *rand.Rand, most int) {
	for range rnd.IntN(most + 1) {
		shard := rnd.IntN(len(log.Heads()))
		log.Append(shard, fmt.Sprint("p", rnd.IntN(3)), map[string]string{"h": strconv.Itoa(rnd.IntN(3))}, "{}")
	}
}

// follow subscribes, again and again, and returns what was wrong once it has been told everything.
func follow(ctx context.Context, hub *tail.Hub, log *tailtest.Log, rnd *rand.Rand, done <-chan struct{}) error {
	w := tail.Wish{Queue: "q", Position: domain.Position{Named: domain.Earliest}}
	switch rnd.IntN(4) {
	case 0:
		w.Filter.Partitions = map[string]bool{"p1": true}
	case 1:
		w.Filter.Headers = map[string]string{"h": "2"}
	}
	if rnd.IntN(2) == 0 {
		w.Position.Named = domain.Latest
	}
	r := &reader{filter: w.Filter}
	for {
		s, err := hub.Subscribe(ctx, caller, w)
		if err != nil {
			if errors.Is(err, tail.ErrStopped) {
				pause(ctx, time.Millisecond)
				continue
			}
			return err
		}
		end, err := r.through(ctx, s, log, rnd, done)
		s.Close()
		if err != nil || end {
			return errors.Join(err, r.missing(log))
		}
		if w.Position, err = domain.ParseResume(r.resume); err != nil {
			return err
		}
	}
}

// through reads one subscription for a while. It reports whether that was the end of everything.
func (r *reader) through(ctx context.Context, s *tail.Subscription, log *tailtest.Log, rnd *rand.Rand, done <-chan struct{}) (bool, error) {
	for range 1 + rnd.IntN(40) {
		b, err := s.Next(ctx)
		if err != nil {
			return false, err
		}
		for _, e := range b.Events {
			p, err := domain.ParseResume(e.GetResume())
			if err != nil {
				return false, err
			}
			if r.at == nil {
				r.start, r.at = p.Offsets, append([]int64(nil), p.Offsets...)
				r.gaps = make([][][2]int64, len(r.at))
				for range r.at {
					r.got = append(r.got, map[int64]bool{})
				}
			}
			if err := r.take(e); err != nil {
				return false, err
			}
		}
		select {
		case <-done:
			p, err := domain.ParseResume(s.Resume())
			if err != nil || fmt.Sprint(p.Offsets) == fmt.Sprint(log.Heads()) {
				return true, err
			}
		default:
			if rnd.IntN(8) == 0 {
				pause(ctx, time.Duration(rnd.IntN(8))*time.Millisecond)
			}
		}
	}
	return false, nil
}

func TestASubscriberThatDoesNotReadIsClosedWithItsPlaceAndGoesOnFromThere(t *testing.T) {
	t.Parallel()
	clk := clock.NewFake(time.Unix(1_900_000_000, 0))
	log := tailtest.New(1, 1)
	hub, _ := start(t, log, clk, func(c *tail.Config) { c.BufferMessages = 10 })
	s := subscribe(t, hub, tail.Wish{})
	reading := subscribe(t, hub, tail.Wish{})
	log.Append(0, "p", nil, "0")
	require.Len(t, next(t, s).Events, 1)

	for n := range 100 { // the other one reads on
		log.Append(0, "p", nil, strconv.Itoa(n))
		require.NotEmpty(t, next(t, reading).Events)
	}
	clk.Advance(2 * time.Second) // its send is stuck for so long
	b := next(t, s)
	s.Close()
	reading.Close()

	require.True(t, b.Last)
	require.Equal(t, queuev1.ClosedReason_CLOSED_REASON_SLOW, b.Events[0].GetClosed().GetReason())
	at, err := domain.ParseResume(b.Events[0].GetResume())
	require.NoError(t, err)
	again := subscribe(t, hub, tail.Wish{Position: at})
	defer again.Close()
	require.EqualValues(t, 1, next(t, again).Events[0].GetMessage().GetOffset(), "the next after the one it had")
}

func TestASubscriberThatIsBehindButReadsGoesOnFromTheLog(t *testing.T) {
	t.Parallel()
	log := tailtest.New(1, 1)
	hub, _ := start(t, log, clock.NewFake(time.Unix(0, 0)), func(c *tail.Config) { c.BufferMessages = 2 })
	s := subscribe(t, hub, tail.Wish{})
	defer s.Close()
	for range 50 {
		log.Append(0, "p", nil, "a", "b", "c")
	}

	for at := int64(0); at < 150; {
		for _, e := range next(t, s).Events {
			require.Equal(t, at, e.GetMessage().GetOffset())
			at++
		}
	}
	require.Positive(t, log.Reads())
}

func TestManySubscribersShareOneTailAndOneEncoding(t *testing.T) {
	t.Parallel()
	log := tailtest.New(1, 1)
	hub, _ := start(t, log, clock.Real{}, nil)
	var all []*tail.Subscription
	for range 20 {
		s := subscribe(t, hub, tail.Wish{})
		defer s.Close()
		all = append(all, s)
	}
	require.Eventually(t, func() bool { tails, n := log.Tails(); return tails == 1 && n == 20 }, 5*time.Second, time.Millisecond)

	log.Append(0, "p", nil, "1")

	made := 0
	for _, s := range all {
		next(t, s).Encoded(tail.ServerSent, func([]*queuev1.SubscribeEvent) []byte { made++; return nil })
	}
	require.Equal(t, 1, made)
	require.Zero(t, log.Reads())
}

func TestADrainingNodeSendsSubscribersAwayWithTheirPlace(t *testing.T) {
	t.Parallel()
	log := tailtest.New(3, 1)
	hub, draining := start(t, log, clock.Real{}, nil)
	s := subscribe(t, hub, tail.Wish{})
	defer s.Close()
	log.Append(0, "p", nil, "1")
	last := next(t, s).Events[0].GetResume()

	close(draining)

	b := next(t, s)
	require.True(t, b.Last)
	require.Equal(t, queuev1.ClosedReason_CLOSED_REASON_DRAINING, b.Events[0].GetClosed().GetReason())
	require.Equal(t, last, b.Events[0].GetResume())
}

func TestADeletedQueueClosesItsSubscribersAndItsTokensAreOfNoUse(t *testing.T) {
	t.Parallel()
	log := tailtest.New(3, 1)
	hub, _ := start(t, log, clock.Real{}, nil)
	s := subscribe(t, hub, tail.Wish{})
	defer s.Close()
	at, err := domain.ParseResume(s.Resume())
	require.NoError(t, err)

	log.Delete()

	require.Equal(t, queuev1.ClosedReason_CLOSED_REASON_QUEUE_DELETED, next(t, s).Events[0].GetClosed().GetReason())
	_, err = hub.Subscribe(t.Context(), caller, tail.Wish{Queue: "q", Position: at})
	require.ErrorIs(t, err, tail.ErrResumeGone)
	fresh := subscribe(t, hub, tail.Wish{})
	defer fresh.Close()
	log.Append(0, "p", nil, "new")
	require.EqualValues(t, "new", next(t, fresh).Events[0].GetMessage().GetPayload())
}

func TestAPlaceThatDoesNotFitTheQueueIsRefused(t *testing.T) {
	t.Parallel()
	log := tailtest.New(3, 2)
	log.Append(0, "p", nil, "1")
	hub, _ := start(t, log, clock.Real{}, func(c *tail.Config) { c.MaxSubscriptions = 1 })
	subscribe(t, hub, tail.Wish{}).Close() // it runs

	for _, offsets := range [][]int64{{0}, {0, 0, 0}, {2, 0}, {0, 1}} {
		_, err := hub.Subscribe(t.Context(), caller, tail.Wish{Queue: "q", Position: domain.Position{Offsets: offsets}})
		wrong := &tail.OffsetsError{}
		require.ErrorAs(t, err, &wrong, "%v", offsets)
		_, err = hub.Subscribe(t.Context(), caller, tail.Wish{Queue: "q", Position: domain.Position{Offsets: offsets, Queue: 3}})
		require.ErrorIs(t, err, tail.ErrResumeGone, "%v", offsets)
	}
	s := subscribe(t, hub, tail.Wish{Position: domain.Position{Offsets: []int64{0, 0}}})
	defer s.Close()
	_, err := hub.Subscribe(t.Context(), caller, tail.Wish{Queue: "q", Position: domain.Position{Named: domain.Latest}})
	require.ErrorIs(t, err, tail.ErrOverloaded)
}

func TestWhileNoDispatcherAnswersHeartbeatsGoOnAndThenWhatWasMissedComes(t *testing.T) {
	t.Parallel()
	log := tailtest.New(3, 1)
	hub, _ := start(t, log, clock.Real{}, func(c *tail.Config) { c.Heartbeat = 10 * time.Millisecond })
	s := subscribe(t, hub, tail.Wish{})
	defer s.Close()

	log.SetDown(true)
	log.Break()
	log.Append(0, "p", nil, "1")
	for range 3 {
		b, err := s.Next(t.Context())
		require.NoError(t, err)
		if m := b.Events[0].GetMessage(); m != nil {
			return // it was faster than the fault
		}
	}
	log.SetDown(false)

	require.EqualValues(t, "1", next(t, s).Events[0].GetMessage().GetPayload())
}
