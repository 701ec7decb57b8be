package engine_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"postrider.dev/pkg/pg"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/engine"
	"postrider.dev/services/dispatcher/internal/spool"
	"postrider.dev/services/dispatcher/internal/spool/spooltest"
	"postrider.dev/services/dispatcher/internal/store"
)

const buffered = queuev1.PushStatus_PUSH_STATUS_BUFFERED

// spooling is a node with a spool whose way to the database can be cut, and whose fleet can be put into maintenance.
type spooling struct {
	*node

	c    *cutter
	disk *spooltest.Disk
	log  *spool.Log
	mode *atomic.Bool
}

func newSpooling(t *testing.T, url string, disk *spooltest.Disk, mode *atomic.Bool, maxBytes int64) *spooling {
	t.Helper()
	return newSpoolingWith(t, url, disk, mode, maxBytes, "")
}

// newSpoolingWith is newSpooling with master keys and what else is to be different.
func newSpoolingWith(t *testing.T, url string, disk *spooltest.Disk, mode *atomic.Bool, maxBytes int64, keys string, more ...func(*nodeOptions)) *spooling {
	t.Helper()
	s := &spooling{c: &cutter{}, disk: disk, mode: mode}
	backlog := engine.NewBacklog()
	var err error
	s.log, err = spool.Open(disk, spool.Options{MaxBytes: maxBytes, Log: zap.NewNop()}, backlog.Visit)
	require.NoError(t, err)
	o := nodeOptions{pool: s.c.pool, keys: keys, parts: func(p *engine.Parts) {
		p.Spool, p.Backlog = s.log, backlog
		p.Maintenance = func() (on, known bool) { return mode.Load(), true }
	}}
	for _, fn := range more {
		fn(&o)
	}
	s.node = newNode(t, url, o)
	return s
}

// cut takes the database away; mend brings it back.
func (s *spooling) cut() {
	s.c.down.Store(true)
	s.c.did.Store(1)
}

func (s *spooling) mend() { s.c.down.Store(false) }

// put pushes messages, each its own request, and returns their states.
func (s *spooling) put(items ...*queuev1.PushItem) []queuev1.PushStatus {
	s.t.Helper()
	var states []queuev1.PushStatus
	for _, it := range items {
		resp, err := s.Push(s.t.Context(), ten, &queuev1.PushRequest{Queue: "q", Items: []*queuev1.PushItem{it}})
		require.NoError(s.t, err)
		states = append(states, resp.GetResults()[0].GetStatus())
	}
	return states
}

func (s *spooling) awaitDrained() {
	s.t.Helper()
	eventually(s.t, func() error {
		state, _ := s.Spool()
		return wantf(state.Records == 0 && !state.Away, "%+v", state)
	})
}

// everything is the log, as a new group gets it.
func (n *node) everything() []string {
	n.t.Helper()
	var all []string
	for {
		resp := n.pop(&queuev1.PopRequest{Queue: "q", Group: "all", Batch: 1000})
		if resp.GetLease() == "" {
			return all
		}
		all = append(all, payloads(resp)...)
		n.ackAll("q", resp.GetLease())
	}
}

func serviceKeys(t *testing.T, n *node) (count int) {
	t.Helper()
	require.NoError(t, n.db.QueryRow(t.Context(), "SELECT count(*) FROM dispatcher.service_keys").Scan(&count))
	return count
}

func itemWithKey(payload, key string) *queuev1.PushItem {
	return &queuev1.PushItem{Partition: "a", Payload: []byte(payload), IdempotencyKey: key}
}

func TestPushesAreBufferedWhileTheDatabaseIsAwayAndArriveOnceInTheirOrder(t *testing.T) {
	t.Parallel()
	s := newSpooling(t, database(t), spooltest.New(), &atomic.Bool{}, 1<<20)
	s.push("q", item("a", "1"))

	s.cut()
	resp, err := s.Push(t.Context(), ten, &queuev1.PushRequest{Queue: "q", Items: []*queuev1.PushItem{item("a", "2"), item("b", "3")}})
	require.NoError(t, err)
	for _, r := range resp.GetResults() {
		require.Equal(t, buffered, r.GetStatus())
		require.True(t, message.IsPendingID(r.GetMessageId()), r.GetMessageId())
		require.Zero(t, r.GetOffset())
	}
	require.Equal(t, []queuev1.PushStatus{buffered, buffered}, s.put(item("a", "4"), item("c", "5")))
	state, _ := s.Spool()
	require.True(t, state.Away)
	require.Equal(t, 3, state.Records)

	s.mend()
	s.awaitDrained()
	require.Equal(t, []string{"1", "2", "3", "4", "5"}, s.everything())
	eventually(t, func() error { return wantf(serviceKeys(t, s.node) == 0, "the keys of what was drained stay") })
	s.push("q", item("a", "6"))
}

func TestMaintenanceKeepsPushesFromTheDatabaseUntilItEnds(t *testing.T) {
	t.Parallel()
	mode := &atomic.Bool{}
	s := newSpooling(t, database(t), spooltest.New(), mode, 1<<20)
	s.push("q", item("a", "1"))
	mode.Store(true)

	require.Equal(t, []queuev1.PushStatus{buffered}, s.put(item("a", "2")))
	_, err := s.Push(t.Context(), ten, &queuev1.PushRequest{
		Queue: "q", Require: queuev1.PushRequire_PUSH_REQUIRE_COMMITTED, Items: []*queuev1.PushItem{item("a", "no")},
	})
	require.ErrorIs(t, err, engine.ErrWouldBeBuffered)
	require.Equal(t, []string{"1"}, s.everything())

	mode.Store(false)
	s.awaitDrained()
	require.Equal(t, []string{"2"}, s.everything())
}

func TestMaintenanceWithoutASpoolRefusesPushes(t *testing.T) {
	t.Parallel()
	n := newNode(t, database(t), nodeOptions{parts: func(p *engine.Parts) { p.Maintenance = func() (on, known bool) { return true, true } }})

	_, err := n.Push(t.Context(), ten, &queuev1.PushRequest{Queue: "q", Items: []*queuev1.PushItem{item("a", "1")}})
	require.ErrorIs(t, err, engine.ErrMaintenance)
}

func TestAPoisonItemIsRefusedAndNeverSpooled(t *testing.T) {
	t.Parallel()
	mode := &atomic.Bool{}
	s := newSpooling(t, database(t), spooltest.New(), mode, 1<<20)
	s.push("q", item("a", "1"))
	s.cut()

	resp, err := s.Push(t.Context(), ten, &queuev1.PushRequest{Queue: "q", Items: []*queuev1.PushItem{
		item("a", strings.Repeat("x", 1<<20+1)), item("a", "2"),
	}})
	require.NoError(t, err)
	require.Equal(t, queuev1.PushStatus_PUSH_STATUS_FAILED, resp.GetResults()[0].GetStatus())
	require.Equal(t, "MESSAGE_TOO_LARGE", resp.GetResults()[0].GetError().GetCode())
	require.Equal(t, buffered, resp.GetResults()[1].GetStatus())
	_, err = s.Push(t.Context(), ten, &queuev1.PushRequest{Queue: "unknown", Items: []*queuev1.PushItem{item("a", "1")}})
	_, away := errors.AsType[*engine.UnavailableError](err)
	require.True(t, away, "%v", err)

	s.mend()
	s.awaitDrained()
	require.Equal(t, []string{"1", "2"}, s.everything())
}

func TestAFailureThatIsTheStatementsOwnIsNoOutage(t *testing.T) {
	t.Parallel()
	url := database(t)
	s := newSpooling(t, url, spooltest.New(), &atomic.Bool{}, 1<<20)
	s.push("q", item("a", "1"))
	conn, err := pg.Connect(t.Context(), url, pg.Options{})
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close(t.Context())) }()
	_, err = conn.Exec(t.Context(), `CREATE FUNCTION poison() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE data_exception; END $$;
		CREATE TRIGGER poison BEFORE INSERT ON dispatcher.segments FOR EACH ROW EXECUTE FUNCTION poison()`)
	require.NoError(t, err)

	resp, err := s.Push(t.Context(), ten, &queuev1.PushRequest{Queue: "q", Items: []*queuev1.PushItem{item("a", "2")}})
	require.NoError(t, err)
	require.Equal(t, queuev1.PushStatus_PUSH_STATUS_FAILED, resp.GetResults()[0].GetStatus())
	state, _ := s.Spool()
	require.Zero(t, state.Records)
	require.False(t, state.Away)
}

func TestAPushWhoseCommitWasLostSightOfIsNotAppendedAgainByTheSpool(t *testing.T) {
	t.Parallel()
	for name, how := range map[string]int32{"done": cutAnswer, "not done": cutRequest} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSpooling(t, database(t), spooltest.New(), &atomic.Bool{}, 1<<20)
			s.push("q", item("a", "1"))
			s.c.down.Store(true)
			s.c.armed.Store(how) // and then nothing gets through

			require.Equal(t, []queuev1.PushStatus{buffered, buffered}, s.put(item("a", "2"), item("a", "3")))
			require.Equal(t, int32(1), s.c.did.Load())

			s.mend()
			s.awaitDrained()
			require.Equal(t, []string{"1", "2", "3"}, s.everything())
		})
	}
}

func TestKeysAreHonouredWhenTheSpoolIsDrainedAndWhatIsRefusedIsADeadLetter(t *testing.T) {
	t.Parallel()
	mode := &atomic.Bool{}
	s := newSpooling(t, database(t), spooltest.New(), mode, 1<<20)
	s.push("q", itemWithKey("1", "k"))
	whole := func(payload string) error {
		_, err := s.Push(t.Context(), ten, &queuev1.PushRequest{Queue: "q", IdempotencyKey: "whole", Items: []*queuev1.PushItem{item("b", payload)}})
		return err
	}
	require.NoError(t, whole("w"))
	mode.Store(true)

	require.Equal(t, []queuev1.PushStatus{buffered, buffered, buffered, buffered},
		s.put(itemWithKey("1", "k"), itemWithKey("other", "k"), itemWithKey("2", "k2"), itemWithKey("2", "k2")))
	require.NoError(t, whole("w"))
	require.NoError(t, whole("another"))

	mode.Store(false)
	s.awaitDrained()
	require.Equal(t, []string{"1", "w", "2"}, s.everything())
	letters, err := s.control.ListDeadLetters(t.Context(), ten, "q", store.DeadLetterFilter{Limit: 10})
	require.NoError(t, err)
	require.Len(t, letters, 2)
	for i, want := range []string{"other", "another"} {
		letter, err := s.control.GetDeadLetter(t.Context(), ten, "q", letters[i].ID)
		require.NoError(t, err)
		require.Equal(t, want, string(letter.Payload))
		require.Equal(t, "refused", letter.Reason)
		require.Contains(t, letter.LastError, "IDEMPOTENCY_KEY_REUSED")
	}
	require.InDelta(t, 2, s.metric("spool_refused_total"), 0)
}

func TestAFullSpoolRefusesAndNothingOfItIsKept(t *testing.T) {
	t.Parallel()
	s := newSpooling(t, database(t), spooltest.New(), &atomic.Bool{}, 4096)
	s.push("q", item("a", "1"))
	s.cut()
	require.Equal(t, []queuev1.PushStatus{buffered}, s.put(item("a", "2")))

	_, err := s.Push(t.Context(), ten, &queuev1.PushRequest{Queue: "q", Items: []*queuev1.PushItem{item("b", strings.Repeat("x", 5000))}})
	require.ErrorIs(t, err, engine.ErrSpoolFull)

	s.mend()
	s.awaitDrained()
	s.push("q", item("b", "3"))
	require.Equal(t, []string{"1", "2", "3"}, s.everything())
}

func TestASpoolOfAFormerRunIsDrainedOnceWhereverItWasKilled(t *testing.T) {
	t.Parallel()
	url := database(t)
	mode := &atomic.Bool{}
	first := newSpooling(t, url, spooltest.New(), mode, 1<<20)
	first.push("q", item("a", "0"))
	mode.Store(true)
	var want []string
	for i := range 20 {
		want = append(want, strconv.Itoa(i+1))
		require.Equal(t, []queuev1.PushStatus{buffered}, first.put(item("a", want[i])))
	}
	full := first.disk.Crash(nil)
	first.disk.FailSync(func(int) bool { return true }) // the mark is never moved: as if killed between the commit and the mark
	mode.Store(false)
	eventually(t, func() error { return wantf(first.metric("spool_drained_total") == 20, "not drained yet") })
	first.stop()

	second := newSpooling(t, url, full, mode, 1<<20)
	state, _ := second.Spool()
	require.LessOrEqual(t, state.Records, 20)
	second.awaitDrained()
	second.push("q", item("a", "last"))

	require.Equal(t, append(append([]string{"0"}, want...), "last"), second.everything())
}

func TestLaterPushesQueueBehindWhatIsSpooledThoughTheDatabaseIsBack(t *testing.T) {
	t.Parallel()
	mode := &atomic.Bool{}
	s := newSpooling(t, database(t), spooltest.New(), mode, 8<<20)
	s.push("q", item("a", "first"))
	mode.Store(true)
	var want []string
	for i := range 200 {
		want = append(want, strconv.Itoa(i))
		s.PushAsync(t.Context(), ten, &queuev1.PushRequest{Queue: "q", Items: []*queuev1.PushItem{item("a", want[i])}}, func(*queuev1.PushResponse, error) {})
	}
	eventually(t, func() error {
		state, _ := s.Spool()
		return wantf(state.Records == 200, "%d are spooled", state.Records)
	})

	mode.Store(false) // what comes from here on meets a spool that is being drained
	done := make(chan error, 300)
	for i := range 300 {
		want = append(want, fmt.Sprintf("later %d", i))
		s.PushAsync(context.WithoutCancel(t.Context()), ten, &queuev1.PushRequest{Queue: "q", Items: []*queuev1.PushItem{item("a", want[200+i])}},
			func(_ *queuev1.PushResponse, err error) { done <- err })
	}
	for range 300 {
		require.NoError(t, <-done)
	}

	s.awaitDrained()
	require.Equal(t, append([]string{"first"}, want...), s.everything())
}
