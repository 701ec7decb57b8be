package engine_test

import (
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"postrider.dev/pkg/pg"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/dispatcher/internal/engine"
)

// answers counts the answers of pushes.
type answers struct {
	n *node

	mu    sync.Mutex // guards the rest
	times map[string]int
	resp  map[string]*queuev1.PushResponse
	errs  map[string]error
}

func newAnswers(n *node) *answers {
	return &answers{n: n, times: map[string]int{}, resp: map[string]*queuev1.PushResponse{}, errs: map[string]error{}}
}

// push pushes in the background.
func (a *answers) push(name string, req *queuev1.PushRequest) {
	a.n.PushAsync(a.n.t.Context(), ten, req, func(resp *queuev1.PushResponse, err error) {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.times[name]++
		a.resp[name], a.errs[name] = resp, err
	})
}

// await waits until that many pushes are answered.
func (a *answers) await(count int) {
	a.n.t.Helper()
	eventually(a.n.t, func() error {
		a.mu.Lock()
		defer a.mu.Unlock()
		return wantf(len(a.times) >= count, "%d of %d answered", len(a.times), count)
	})
}

// requireOnce ends the engine and demands one answer each and budgets that are whole.
func (a *answers) requireOnce() {
	a.n.t.Helper()
	a.n.stop()
	for name, times := range a.times {
		require.Equal(a.n.t, 1, times, "answers of %s", name)
	}
	require.InDelta(a.n.t, 0, a.n.metric("queued_push_bytes"), 0)
	require.InDelta(a.n.t, 0, a.n.metric("queued_requests"), 0)
}

// session is a connection of the test's own.
func session(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pg.Connect(t.Context(), url, pg.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(t.Context()) })
	return conn
}

func exec(t testing.TB, conn *pgx.Conn, sql string, args ...any) {
	t.Helper()
	_, err := conn.Exec(t.Context(), sql, args...)
	require.NoError(t, err, sql)
}

// together lets pushes wait for one commit: their lane is kept busy by a push whose shard is locked, until begin has handed in all.
func (a *answers) together(url, lockedQueue string, begin func()) {
	t := a.n.t.(*testing.T)
	holder := session(t, url)
	exec(t, holder, "BEGIN")
	exec(t, holder, `SELECT FROM dispatcher.shards s JOIN dispatcher.queues q ON q.id = s.queue_id WHERE q.name = $1 FOR UPDATE OF s`, lockedQueue)
	a.push("first", &queuev1.PushRequest{Queue: lockedQueue, Items: []*queuev1.PushItem{item("first", "first")}})
	watch := session(t, url)
	eventually(t, func() error {
		var waiting int
		err := watch.QueryRow(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'").Scan(&waiting)
		if err != nil {
			return err
		}
		return wantf(waiting > 0, "nobody waits")
	})
	begin()
	exec(t, holder, "COMMIT")
}

// laneMates makes two queues whose pushes go through one lane.
func (n *node) laneMates() (a, b string) {
	n.t.Helper()
	n.push("lane0", item("w", "w"))
	for i := 1; ; i++ {
		name := fmt.Sprintf("lane%d", i)
		n.push(name, item("w", "w"))
		var same bool
		require.NoError(n.t, n.db.QueryRow(n.t.Context(), `SELECT (SELECT id % 2 FROM dispatcher.queues WHERE name = 'lane0' AND deleted_at IS NULL)
			= (SELECT id % 2 FROM dispatcher.queues WHERE name = $1 AND deleted_at IS NULL)`, name).Scan(&same))
		if same {
			return "lane0", name
		}
	}
}

// failKeys makes the first inserts of keys fail in a way that is worth another try.
func failKeys(t *testing.T, url string, times int) {
	t.Helper()
	conn := session(t, url)
	exec(t, conn, "CREATE SEQUENCE dispatcher.failures")
	exec(t, conn, fmt.Sprintf(`CREATE FUNCTION dispatcher.fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		IF nextval('dispatcher.failures') <= %d THEN RAISE serialization_failure; END IF; RETURN NEW; END $$`, times))
	exec(t, conn, "CREATE TRIGGER fail BEFORE INSERT ON dispatcher.idempotency_keys FOR EACH STATEMENT EXECUTE FUNCTION dispatcher.fail()")
}

// keyedItem is a message under the one key of these tests.
func keyedItem(payload string) *queuev1.PushItem {
	return &queuev1.PushItem{Partition: "a", Payload: []byte(payload), IdempotencyKey: "k"}
}

// stored returns what is in the queue, as a fresh consumer sees it.
func (n *node) stored(queue string) []string {
	n.t.Helper()
	var all []string
	for { // one pop may leave a shard out that it has not read yet
		got := payloads(n.pop(&queuev1.PopRequest{Queue: queue, Group: "auditor", Batch: 1000}))
		if len(got) == 0 {
			return all
		}
		all = append(all, got...)
	}
}

func TestKeyedPushesThatAreTriedAgainAreAppendedAndAnsweredOnce(t *testing.T) {
	t.Parallel()
	url := database(t)
	n := newNode(t, url, nodeOptions{})
	n.push("q", item("a", "warm"))
	failKeys(t, url, 3)
	a := newAnswers(n)

	a.together(url, "q", func() {
		a.push("one", &queuev1.PushRequest{Queue: "q", Items: []*queuev1.PushItem{keyedItem("1")}})
		a.push("clash", &queuev1.PushRequest{Queue: "q", Items: []*queuev1.PushItem{keyedItem("2"), item("a", "3")}})
		a.push("after", &queuev1.PushRequest{Queue: "q", Items: []*queuev1.PushItem{item("a", "4")}})
	})
	a.await(4)

	require.Equal(t, []string{"warm", "first", "1", "3", "4"}, n.stored("q"), "once each, in the order of the pushes")
	require.Equal(t, "IDEMPOTENCY_KEY_REUSED", a.resp["clash"].GetResults()[0].GetError().GetCode())
	require.Equal(t, queuev1.PushStatus_PUSH_STATUS_QUEUED, a.resp["clash"].GetResults()[1].GetStatus())
	require.GreaterOrEqual(t, n.metric("flush_retries_total"), 3.0)
	a.requireOnce()
}

func TestARefusedRequestIsAnsweredOnceThoughTheOthersAreTriedAgain(t *testing.T) {
	t.Parallel()
	url := database(t)
	n := newNode(t, url, nodeOptions{})
	request := func(payload string) *queuev1.PushRequest {
		return &queuev1.PushRequest{Queue: "q", IdempotencyKey: "r", Items: []*queuev1.PushItem{item("a", payload)}}
	}
	_, err := n.Push(t.Context(), ten, request("warm"))
	require.NoError(t, err)
	failKeys(t, url, 3)
	a := newAnswers(n)

	a.together(url, "q", func() {
		a.push("reuse", request("other"))
		a.push("good", &queuev1.PushRequest{Queue: "q", Items: []*queuev1.PushItem{keyedItem("1"), item("a", "2")}})
	})
	a.await(3)

	require.Error(t, a.errs["reuse"])
	require.NoError(t, a.errs["good"])
	require.Equal(t, []string{"warm", "first", "1", "2"}, n.stored("q"))
	a.requireOnce()
}

// A flush of two queues of which one is deleted commits for the other alone. If its answer is lost, what is missing of the one says nothing of the other.
func TestALostFlushIsFoundThoughAQueueOfItIsDeleted(t *testing.T) {
	t.Parallel()
	for name, keyed := range map[string]bool{"plain": false, "keyed": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := database(t)
			c := &cutter{}
			n := newNode(t, url, nodeOptions{pool: c.pool})
			kept, deleted := n.laneMates()
			items := func(payload string) []*queuev1.PushItem {
				out := []*queuev1.PushItem{item("a", payload)}
				if keyed {
					out = append(out, keyedItem("key "+payload))
				}
				return out
			}
			other := newNode(t, url, nodeOptions{})
			_, err := other.control.DeleteQueue(t.Context(), admin(), deleted, false) // n is not told
			require.NoError(t, err)
			a := newAnswers(n)

			a.together(url, kept, func() {
				a.push("kept", &queuev1.PushRequest{Queue: kept, Items: items("kept")})
				a.push("deleted", &queuev1.PushRequest{Queue: deleted, Items: items("moved")})
				word := "kept"
				c.word.Store(&word)
				c.armed.Store(cutAnswer)
			})
			a.await(3)

			want := []string{"w", "first", "kept", "key kept"}
			moved := []string{"moved", "key moved"}
			if !keyed {
				want, moved = want[:3], moved[:1]
			}
			require.Equal(t, int32(1), c.did.Load())
			require.Equal(t, want, n.stored(kept))
			require.Equal(t, moved, n.stored(deleted))
			a.requireOnce()
		})
	}
}

func TestAPushOfWhichNobodyKnowsIsNotCalledUndone(t *testing.T) {
	t.Parallel()
	url := database(t)
	c := &cutter{}
	n := newNode(t, url, nodeOptions{pool: c.pool, cfg: func(cfg *engine.Config) { cfg.Patience = 300 * time.Millisecond }})
	n.push("q", item("a", "0"))

	c.down.Store(true) // from the cut on
	c.armed.Store(cutAnswer)
	_, err := n.Push(t.Context(), ten, &queuev1.PushRequest{Queue: "q", Items: []*queuev1.PushItem{item("a", "1")}})

	var unknown *engine.OutcomeUnknownError
	require.ErrorAs(t, err, &unknown)
	var unavailable *engine.UnavailableError
	require.NotErrorAs(t, err, &unavailable)
	c.down.Store(false)
	require.Equal(t, []string{"0", "1"}, newNode(t, url, nodeOptions{}).stored("q"))
	require.InDelta(t, 0, n.metric("queued_push_bytes"), 0)
}

// A push with a bad item is tried in halves. If the queue is deleted meanwhile, each half moves by itself.
func TestHalvesOfAPushMoveApart(t *testing.T) {
	t.Parallel()
	url := database(t)
	other := newNode(t, url, nodeOptions{})
	c := &cutter{}
	n := newNode(t, url, nodeOptions{pool: c.pool})
	n.push("q", item("a", "warm"))
	exec(t, session(t, url), "ALTER TABLE dispatcher.segments ADD CONSTRAINT no_poison CHECK (position('poison'::bytea IN body) = 0)")
	var refusals atomic.Int32
	c.heard("no_poison", func() {
		if refusals.Add(1) != 2 { // the whole was refused, and then its first half, the second is not tried yet
			return
		}
		_, err := other.control.DeleteQueue(t.Context(), admin(), "q", false) // n is not told
		if err != nil {
			t.Error(err)
		}
	})
	a := newAnswers(n)

	a.push("p", &queuev1.PushRequest{Queue: "q", Items: []*queuev1.PushItem{
		item("a", "1"), item("a", "poison"), item("", ""), item("a", "3"), item("nul\x00", "never"), item("a", "4"),
	}})
	a.await(1)

	require.NoError(t, a.errs["p"])
	var statuses []queuev1.PushStatus
	for _, r := range a.resp["p"].GetResults() {
		statuses = append(statuses, r.GetStatus())
	}
	queued, failed := queuev1.PushStatus_PUSH_STATUS_QUEUED, queuev1.PushStatus_PUSH_STATUS_FAILED
	require.Equal(t, []queuev1.PushStatus{queued, failed, queued, queued, failed, queued}, statuses)
	require.Equal(t, "NAME_HAS_NUL", a.resp["p"].GetResults()[4].GetError().GetCode())
	stored := n.stored("q")
	require.ElementsMatch(t, []string{"1", "", "3", "4"}, stored, "once each")
	for i, r := range a.resp["p"].GetResults() {
		require.Equal(t, statuses[i] == queued, r.GetMessageId() != "", "item %d", i)
	}
	a.requireOnce()
}

func TestPushesThatWaitForALookUpAreBoundedToo(t *testing.T) {
	t.Parallel()
	url := database(t)
	n := newNode(t, url, nodeOptions{cfg: func(c *engine.Config) { c.QueuedBytes = 1000 }})
	holder := session(t, url)
	exec(t, holder, "BEGIN")
	exec(t, holder, "LOCK TABLE dispatcher.queues")
	a := newAnswers(n)

	for i := range 20 {
		a.push(strconv.Itoa(i), &queuev1.PushRequest{Queue: "q", Items: []*queuev1.PushItem{item("a", string(make([]byte, 400)))}})
	}
	a.await(18)
	exec(t, holder, "COMMIT")
	a.await(20)

	refused := 0
	for _, err := range a.errs {
		var over *engine.OverloadedError
		if err != nil {
			require.ErrorAs(t, err, &over)
			refused++
		}
	}
	require.Equal(t, 18, refused)
	a.requireOnce()
}

func TestAPushSentAgainIsRefusedWhereKeysAreIgnored(t *testing.T) {
	t.Parallel()
	url := database(t)
	n := newNode(t, url, nodeOptions{})
	push := func(resent bool, items ...*queuev1.PushItem) error {
		_, err := n.Push(t.Context(), ten, &queuev1.PushRequest{Queue: "q", Items: items, Resent: resent})
		return err
	}

	require.NoError(t, push(false, keyedItem("1")))
	require.NoError(t, push(true, keyedItem("1")), "a duplicate")
	require.ErrorIs(t, push(true, keyedItem("1"), item("a", "2")), engine.ErrNotDeduplicated)
	n.set(url, `{"idempotency_window": "0s"}`)
	fresh := newNode(t, url, nodeOptions{})
	_, err := fresh.Push(t.Context(), ten, &queuev1.PushRequest{Queue: "q", IdempotencyKey: "r", Items: []*queuev1.PushItem{keyedItem("1")}, Resent: true})
	require.ErrorIs(t, err, engine.ErrNotDeduplicated)
	require.Equal(t, []string{"1"}, fresh.stored("q"))
	require.InDelta(t, 0, fresh.metric("queued_push_bytes"), 0)
}

// A shard whose head was taken for too high is left out of a flush of several; what was for it goes again, and nothing else does.
func TestWhatAFlushLeftOutGoesAgainAlone(t *testing.T) {
	t.Parallel()
	url := database(t)
	n := newNode(t, url, nodeOptions{})
	makeQueue(t, n, 4)
	var items []*queuev1.PushItem
	for i := range 20 {
		items = append(items, item(fmt.Sprintf("p%d", i), strconv.Itoa(i)))
	}
	n.push("q", items...)
	exec(t, session(t, url), `WITH one AS (SELECT s.id FROM dispatcher.shards s WHERE head > 0 ORDER BY id LIMIT 1),
		gone AS (DELETE FROM dispatcher.segments USING one WHERE shard_id = one.id)
		UPDATE dispatcher.shards s SET head = 0 FROM one WHERE s.id = one.id`) // as an older backup has it
	before := n.metric("messages_pushed_total")
	a := newAnswers(n)

	a.push("p", &queuev1.PushRequest{Queue: "q", Items: items})
	a.await(1)

	require.NoError(t, a.errs["p"])
	for i, r := range a.resp["p"].GetResults() {
		require.Equal(t, queuev1.PushStatus_PUSH_STATUS_QUEUED, r.GetStatus(), "item %d", i)
		require.NotEmpty(t, r.GetMessageId(), "item %d", i)
	}
	require.InDelta(t, 20, n.metric("messages_pushed_total")-before, 0)
	counts := map[string]int{}
	for _, p := range newNode(t, url, nodeOptions{}).stored("q") {
		counts[p]++
	}
	require.Len(t, counts, 20)
	for p, times := range counts {
		require.LessOrEqual(t, times, 2, "message %s", p)
	}
	a.requireOnce()
}
