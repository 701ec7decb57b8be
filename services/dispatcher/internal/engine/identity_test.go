package engine_test

import (
	"context"
	"net"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"postrider.dev/pkg/clock"
	"postrider.dev/pkg/localpg"
	"postrider.dev/pkg/migrate"
	"postrider.dev/pkg/pg"
	"postrider.dev/pkg/pgtest"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/dispatcher/internal/store"
	"postrider.dev/services/dispatcher/migrations"
)

// junction sends new connections to one server or the other.
type junction struct {
	mu    sync.Mutex // guards the rest
	to    string
	conns []net.Conn
}

func (j *junction) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	u, err := url.Parse(j.to)
	if err != nil {
		return nil, err
	}
	q := u.Query()
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(q.Get("host"), ".s.PGSQL."+q.Get("port")))
	j.conns = append(j.conns, conn)
	return conn, err
}

// turn sends everybody to another server.
func (j *junction) turn(to string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.to = to
	for _, c := range j.conns {
		_ = c.Close()
	}
	j.conns = nil
}

func TestNothingRememberedOfAnotherDatabaseIsBelieved(t *testing.T) {
	t.Parallel()
	var dsn [2]string
	for i := range dsn {
		srv := pgtest.NewServer(t, localpg.Options{})
		dsn[i] = srv.DSN("postgres")
		_, err := migrate.Up(t.Context(), clock.Real{}, dsn[i], migrations.Set())
		require.NoError(t, err)
	}
	j := &junction{to: dsn[0]}
	watch := &store.ConnectWatch{}
	n := newNode(t, dsn[0], nodeOptions{pool: func(o *pg.Options) {
		o.Dial, o.Tracers = j.dial, append(o.Tracers, watch)
	}})
	watch.Tell(n.Reconnected)
	other := newNode(t, dsn[1], nodeOptions{})
	n.push("q", item("a", "first of one"), item("b", "second of one"))
	require.Equal(t, []string{"first of one"}, payloads(n.pop(&queuev1.PopRequest{Queue: "q"})))
	other.push("q", item("a", "first of two"), item("b", "second of two"))

	j.turn(dsn[1])
	popped := n.pop(&queuev1.PopRequest{Queue: "q", Batch: 10, Wait: seconds(20)})
	pushed := n.push("q", item("c", "third of two"))

	require.Equal(t, []string{"first of two", "second of two"}, payloads(popped))
	require.Equal(t, int64(2), pushed[0].GetOffset())
}

// gate holds up whoever reads the database's identity while it is shut.
type gate struct {
	shut    atomic.Bool
	reached chan struct{} // has room for one
	open    chan struct{}
}

func (g *gate) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	if g.shut.Load() && strings.Contains(data.SQL, "pg_control_system") {
		select {
		case g.reached <- struct{}{}:
		default:
		}
		<-g.open
	}
	return ctx
}

func (*gate) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// TestNobodyOvertakesTheLookAtTheDatabasesIdentity pops from one queue while another request is about to learn that another database answers.
func TestNobodyOvertakesTheLookAtTheDatabasesIdentity(t *testing.T) {
	t.Parallel()
	var dsn [2]string
	for i := range dsn {
		srv := pgtest.NewServer(t, localpg.Options{})
		dsn[i] = srv.DSN("postgres")
		_, err := migrate.Up(t.Context(), clock.Real{}, dsn[i], migrations.Set())
		require.NoError(t, err)
	}
	j := &junction{to: dsn[0]}
	look := &gate{reached: make(chan struct{}, 1), open: make(chan struct{})}
	n := newNode(t, dsn[0], nodeOptions{pool: func(o *pg.Options) {
		o.Dial, o.Tracers = j.dial, append(o.Tracers, look)
	}})
	other := newNode(t, dsn[1], nodeOptions{})
	for _, queue := range []string{"q", "p"} { // both databases are at the same versions
		n.push(queue, item("a", "first of one"), item("b", "second of one"))
		n.pop(&queuev1.PopRequest{Queue: queue})
		other.push(queue, item("a", "first of two"), item("b", "second of two"))
		other.pop(&queuev1.PopRequest{Queue: queue})
	}

	look.shut.Store(true)
	j.turn(dsn[1])
	n.Reconnected()
	first := n.popLater(t.Context(), &queuev1.PopRequest{Queue: "q", Wait: seconds(20)})
	<-look.reached
	second := n.popLater(t.Context(), &queuev1.PopRequest{Queue: "p", Wait: seconds(20)})
	overtook := false
	select {
	case resp := <-second:
		overtook = true
		t.Logf("%v", payloads(resp))
	case <-clock.Real{}.After(500 * time.Millisecond):
	}
	look.shut.Store(false)
	close(look.open)

	require.False(t, overtook)
	require.Equal(t, []string{"second of two"}, payloads(<-first))
	require.Equal(t, []string{"second of two"}, payloads(<-second))
}
