package leader_test

import (
	"context"
	"net"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/stretchr/testify/require"

	"postrider.dev/pkg/clock"
	"postrider.dev/pkg/leader"
)

// pooler lends two server sessions to its client, in turn, one per transaction. It announces the process id it is given, or its first session's.
type pooler struct {
	t     *testing.T
	dsn   string
	pid   uint32
	local net.Listener
	all   sync.WaitGroup
}

func newPooler(t *testing.T, dsn string, pid uint32) *pooler {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &pooler{t: t, dsn: dsn, pid: pid, local: l}
	p.all.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			p.all.Go(func() { p.serve(conn) })
		}
	})
	t.Cleanup(func() { _ = l.Close(); p.all.Wait() })
	return p
}

func (p *pooler) url() string {
	return "postgres://someone@" + p.local.Addr().String() + "/any?sslmode=disable"
}

// serve ends when the client or a server session does.
func (p *pooler) serve(conn net.Conn) {
	defer conn.Close() //nolint:errcheck // a test's pooler
	client := pgproto3.NewBackend(conn, conn)
	if _, err := client.ReceiveStartupMessage(); err != nil {
		return
	}
	var servers []*pgproto3.Frontend
	pid := p.pid
	for range 2 {
		pc, err := pgconn.Connect(context.WithoutCancel(p.t.Context()), p.dsn)
		if err != nil {
			return
		}
		if pid == 0 {
			pid = pc.PID()
		}
		h, err := pc.Hijack()
		if err != nil {
			return
		}
		defer h.Conn.Close() //nolint:errcheck // a test's pooler
		servers = append(servers, h.Frontend)
	}
	client.Send(&pgproto3.AuthenticationOk{})
	client.Send(&pgproto3.ParameterStatus{Name: "client_encoding", Value: "UTF8"})
	client.Send(&pgproto3.ParameterStatus{Name: "standard_conforming_strings", Value: "on"})
	client.Send(&pgproto3.BackendKeyData{ProcessID: pid, SecretKey: []byte{0, 0, 0, 1}})
	client.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
	if client.Flush() != nil {
		return
	}
	for i := 0; forward(client, servers[i%2]); i++ {
	}
}

// forward carries one transaction to a server session and back.
func forward(client *pgproto3.Backend, server *pgproto3.Frontend) bool {
	for {
		msg, err := client.Receive()
		if err != nil {
			return false
		}
		server.Send(msg)
		switch msg.(type) {
		case *pgproto3.Terminate:
			return false
		case *pgproto3.Sync, *pgproto3.Query:
		default:
			continue
		}
		if server.Flush() != nil {
			return false
		}
		for ready := false; !ready; {
			answer, err := server.Receive()
			if err != nil {
				return false
			}
			client.Send(answer)
			if r, ok := answer.(*pgproto3.ReadyForQuery); ok {
				ready = true
				if r.TxStatus == 'I' {
					return client.Flush() == nil
				}
			}
		}
		if client.Flush() != nil {
			return false
		}
	}
}

func TestTransactionPoolerIsRefused(t *testing.T) {
	t.Parallel()
	for name, pid := range map[string]uint32{"announces a number of its own": 4711_0815, "announces a server's number": 0} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, dsn := database(t)

			err := leader.New(newPooler(t, dsn, pid).url(), "role", table, "a", clock.Real{}, quick()).Run(t.Context(), func(context.Context, leader.Term) error {
				t.Error("led through a pooler")
				return nil
			})

			var refusal *leader.PoolerError
			require.ErrorAs(t, err, &refusal)
			require.ErrorContains(t, err, "direct")
			require.Eventually(t, func() bool {
				var locks int
				err := db.QueryRow(t.Context(), `SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.oid = l.database
					WHERE l.locktype = 'advisory' AND d.datname = current_database()`).Scan(&locks)
				return err == nil && locks == 0
			}, patience, clockStep)
		})
	}
}
