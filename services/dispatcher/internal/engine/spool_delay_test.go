package engine_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/dispatcher/internal/engine"
	"postrider.dev/services/dispatcher/internal/spool/spooltest"
)

// The instant that a producer meant does not move because its message lay in the spool.
func TestADelayCountsFromTheAcceptanceThoughTheMessageIsBuffered(t *testing.T) {
	t.Parallel()
	mode, clk := &atomic.Bool{}, &hasty{}
	s := newSpoolingWith(t, database(t), spooltest.New(), mode, 1<<20, "", func(o *nodeOptions) { o.clk = clk })
	s.push("q", item("a", "1"))
	mode.Store(true)
	soon := item("a", "2")
	soon.Delay = durationpb.New(time.Minute)
	require.Equal(t, []queuev1.PushStatus{buffered, buffered}, s.put(soon, inAnHour("a", "3")))

	clk.ahead.Store(int64(2 * time.Minute)) // so long the spool held them
	mode.Store(false)
	s.awaitDrained()

	require.Equal(t, []string{"1", "2"}, s.everything(), "its time came while it lay there")
	require.Equal(t, 1, s.waiting())
	var left time.Duration
	require.NoError(t, s.db.QueryRow(t.Context(), "SELECT available_at - dispatcher.now() FROM dispatcher.delayed").Scan(&left))
	require.LessOrEqual(t, left, 58*time.Minute)
	require.Greater(t, left, 50*time.Minute)
}

// A transaction is never buffered. It does not pass what is either: it is refused until that is drained.
func TestATransactionDoesNotPassWhatIsBufferedOfItsPartition(t *testing.T) {
	t.Parallel()
	mode, known := &atomic.Bool{}, &atomic.Bool{}
	known.Store(true)
	s := newSpoolingWith(t, database(t), spooltest.New(), mode, 1<<20, "", func(o *nodeOptions) {
		given := o.parts
		o.parts = func(p *engine.Parts) {
			given(p)
			p.Maintenance = func() (bool, bool) { return mode.Load(), known.Load() }
		}
	})
	s.push("q", item("p", "1"))
	mode.Store(true)
	require.Equal(t, []queuev1.PushStatus{buffered}, s.put(item("p", "2")))

	known.Store(false) // nothing is drained, and nothing is kept from the database
	_, _, err := s.Transact(t.Context(), ten, "k", transacting(pushing("q", item("p", "3"))))
	require.ErrorIs(t, err, engine.ErrWouldBeBuffered)
	s.transact("of another partition", pushing("q", item("other", "0")))

	mode.Store(false)
	known.Store(true)
	s.awaitDrained()
	s.transact("k", pushing("q", item("p", "3")))
	require.Equal(t, []string{"1", "2", "3"}, payloads(s.pop(&queuev1.PopRequest{Queue: "q", Partition: "p", Batch: 10})))
}
