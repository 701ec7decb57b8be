package pg_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"postrider.dev/pkg/pg"
	"postrider.dev/pkg/pgtest"
)

func balance(t *testing.T, db *pg.DB) int {
	t.Helper()
	var n int
	require.NoError(t, db.QueryRow(t.Context(), "SELECT balance FROM bank.accounts WHERE id = 1").Scan(&n))
	return n
}

func TestConflictingTransactionsAreRepeatedUntilAllSucceed(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, accounts())
	ctx := t.Context()
	var tries atomic.Int64
	var ready sync.WaitGroup // all have read before any writes: at least one must lose
	ready.Add(3)
	var all sync.WaitGroup
	for range 3 {
		all.Go(func() {
			first := true
			err := db.InTx(ctx, pg.Serializable, func(tx pg.Tx) error {
				tries.Add(1)
				var n int
				if err := tx.QueryRow(ctx, "SELECT balance FROM bank.accounts WHERE id = 1").Scan(&n); err != nil {
					return err
				}
				if first {
					first = false
					ready.Done()
					ready.Wait()
				}
				_, err := tx.Exec(ctx, "UPDATE bank.accounts SET balance = $1 WHERE id = 1", n+1)
				return err
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()

	require.Equal(t, 103, balance(t, db))
	require.Greater(t, tries.Load(), int64(3))
}

func TestRepetitionIsBounded(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, accounts())
	tries := 0

	err := db.InTx(t.Context(), pg.ReadCommitted, func(tx pg.Tx) error {
		tries++
		_, err := tx.Exec(t.Context(), "DO $$ BEGIN RAISE serialization_failure; END $$")
		return err
	})

	require.True(t, pg.IsSerialization(err))
	require.Equal(t, 6, tries)
}

func TestFailedTransactionIsRolledBackEvenWhenItsContextEnded(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, accounts())
	boom := errors.New("boom")
	ctx, cancel := context.WithCancel(t.Context())

	err := db.InTx(ctx, pg.ReadCommitted, func(tx pg.Tx) error {
		if _, err := tx.Exec(ctx, "UPDATE bank.accounts SET balance = 0"); err != nil {
			return err
		}
		cancel()
		return boom
	})

	require.ErrorIs(t, err, boom)
	require.Equal(t, 100, balance(t, db))
	require.Equal(t, int32(0), db.Stat().AcquiredConns())
	require.Equal(t, int32(1), db.Stat().TotalConns(), "the connection survived")
}

func TestNothingIsCommittedAfterTheContextEnded(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, accounts())
	ctx, cancel := context.WithCancel(t.Context())

	err := db.InTx(ctx, pg.ReadCommitted, func(tx pg.Tx) error {
		defer cancel()
		_, err := tx.Exec(ctx, "UPDATE bank.accounts SET balance = 0")
		return err
	})

	require.ErrorIs(t, err, context.Canceled)
	require.False(t, pg.IsOutcomeUnknown(err))
	require.Equal(t, 100, balance(t, db))
}

func TestPanicRollsBack(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, accounts())

	require.Panics(t, func() {
		_ = db.InTx(t.Context(), pg.ReadCommitted, func(tx pg.Tx) error {
			if _, err := tx.Exec(t.Context(), "UPDATE bank.accounts SET balance = 0"); err != nil {
				return err
			}
			panic("a bug")
		})
	})

	require.Equal(t, 100, balance(t, db))
	require.Equal(t, int32(0), db.Stat().AcquiredConns())
}

// cutter is a connection that is cut when COMMIT is sent.
type cutter struct {
	net.Conn
	how string
}

var errCut = errors.New("cut")

func (c cutter) Write(b []byte) (int, error) {
	if !bytes.Contains(b, []byte("commit\x00")) {
		return c.Conn.Write(b)
	}
	switch c.how {
	case "after it arrived":
		n, err := c.Conn.Write(b)
		_, _ = c.Read(make([]byte, 1000)) // it was done; nobody hears of it
		return n, errors.Join(err, c.Close())
	case "on its way":
		return len(b), c.Close()
	default: // before it was sent
		_ = c.Close()
		return 0, errCut
	}
}

func TestConnectionCutAtCommitIsUnknownUnlessNothingWasSent(t *testing.T) {
	t.Parallel()
	for how, want := range map[string]struct {
		unknown bool
		balance int
	}{
		"after it arrived":   {true, 0},
		"on its way":         {true, 100},
		"before it was sent": {false, 100},
	} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			d := pgtest.NewDatabase(t, pgtest.Roles{}, accounts())
			cut := d.Open(pg.Options{Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
				conn, err := new(net.Dialer).DialContext(ctx, network, addr)
				return cutter{Conn: conn, how: how}, err
			}})

			err := cut.InTx(t.Context(), pg.ReadCommitted, func(tx pg.Tx) error {
				_, err := tx.Exec(t.Context(), "UPDATE bank.accounts SET balance = 0 WHERE id = 1")
				return err
			})

			require.Error(t, err)
			require.Equal(t, want.unknown, pg.IsOutcomeUnknown(err), "%v", err)
			require.Equal(t, want.balance, balance(t, d.Open(pg.Options{})))
		})
	}
}
