package e2e

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	postrider "postrider.dev/sdk"
	"postrider.dev/tests/fleet"
)

// outageLedger is what publishers were told during an outage.
type outageLedger struct {
	mu       sync.Mutex      // guards the rest
	accepted map[string]bool // contents
	buffered map[int]int     // by host
	doubtful map[string]bool // nobody knows: at most once in the log
}

func newOutageLedger() *outageLedger {
	return &outageLedger{accepted: map[string]bool{}, buffered: map[int]int{}, doubtful: map[string]bool{}}
}

func (l *outageLedger) count() (accepted int, buffered [2]int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.accepted), [2]int{l.buffered[0], l.buffered[1]}
}

// publish pushes numbered messages through one host, one request after the other, until stop is closed.
func (l *outageLedger) publish(ctx context.Context, c *postrider.Client, host int, name string, stop <-chan struct{}) error {
	for seq := 0; ; seq++ {
		select {
		case <-stop:
			return nil
		default:
		}
		batch := make([]postrider.Message, 3)
		for i := range batch {
			batch[i] = postrider.Message{Partition: fmt.Sprintf("partition-%d", i), Payload: fmt.Appendf(nil, "%s/%06d/%d", name, seq, i)}
		}
		results, err := c.Push(ctx, "q", batch...)
		if err != nil && !errors.Is(err, postrider.ErrOutcomeUnknown) {
			return fmt.Errorf("%s at %d: %w", name, seq, err)
		}
		l.mu.Lock()
		for i := range batch {
			if err != nil {
				l.doubtful[string(batch[i].Payload)] = true
				continue
			}
			if results[i].Err != nil {
				l.mu.Unlock()
				return results[i].Err
			}
			l.accepted[string(batch[i].Payload)] = true
			if results[i].Buffered {
				l.buffered[host]++
			}
		}
		l.mu.Unlock()
	}
}

// await waits until the ledger says so.
func (l *outageLedger) await(t *testing.T, what func(accepted int, buffered [2]int) bool) {
	t.Helper()
	eventually(t, func() error {
		accepted, buffered := l.count()
		if what(accepted, buffered) {
			return nil
		}
		return fmt.Errorf("%d accepted, %v of them buffered", accepted, buffered)
	})
}

// consumed pops until everything accepted is there, and checks that each came once and what each publisher was told of in the order of its pushes.
func (l *outageLedger) consumed(t *testing.T, c *postrider.Client, ordered bool) {
	t.Helper()
	seen, last := map[string]bool{}, map[string]string{}
	for missing := len(l.accepted); missing > 0; {
		lease := mustPop(t, c, "q", postrider.PopOptions{Batch: 1000})
		for _, d := range lease.Deliveries {
			content := string(d.Payload)
			require.False(t, seen[content], "%s came twice", content)
			require.True(t, l.accepted[content] || l.doubtful[content], "%s was refused", content)
			seen[content] = true
			if l.accepted[content] {
				missing--
			}
			if l.doubtful[content] {
				continue // it was never answered, so its publisher did not wait for it: it may come after the next
			}
			line := content[:2] + content[len(content)-2:]
			require.True(t, !ordered || content > last[line], "%s came after %s", content, last[line])
			last[line] = content
		}
		_, err := lease.Ack(t.Context())
		require.NoError(t, err)
	}
}

func TestAnOutageOfTheDatabaseLosesNothingAcceptedAndKeepsTheOrderOfEachHost(t *testing.T) {
	t.Parallel()
	p := fleet.StartProcesses(t, &binaries, 2, fleet.Spool(t.TempDir()))
	ledger, stop := newOutageLedger(), make(chan struct{})
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	var publishers errgroup.Group
	for host := range 2 {
		client := p.Client(t, host)
		publishers.Go(func() error { return ledger.publish(ctx, client, host, fmt.Sprintf("p%d", host), stop) })
	}
	ledger.await(t, func(accepted int, _ [2]int) bool { return accepted > 100 })

	require.NoError(t, p.Postgres.Kill(t.Context()))
	ledger.await(t, func(_ int, buffered [2]int) bool { return buffered[0] > 300 && buffered[1] > 300 })
	spools, err := p.Client(t, 0).Spools(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"buffering", "outage"}, []string{spools[0].GetState(), spools[0].GetReason()})
	require.NoError(t, p.Postgres.Restart(t.Context()))
	during, _ := ledger.count()
	ledger.await(t, func(accepted int, _ [2]int) bool { return accepted > during+300 })
	close(stop)
	require.NoError(t, publishers.Wait())

	accepted, buffered := ledger.count()
	t.Logf("%d accepted, %v of them buffered, %d in doubt", accepted, buffered, len(ledger.doubtful))
	ledger.consumed(t, p.Client(t, 1), true)
	eventually(t, func() error { return spoolsAreEmpty(t.Context(), p.Client(t, 0)) })
}

func spoolsAreEmpty(ctx context.Context, c *postrider.Client) error {
	spools, err := c.Spools(ctx)
	for _, s := range spools {
		if s.GetRecords() > 0 || s.GetState() != "idle" {
			err = errors.Join(err, fmt.Errorf("%v", s))
		}
	}
	return err
}

func TestADispatcherKilledWithAFullSpoolBringsItAllOnceWhenItIsBack(t *testing.T) {
	t.Parallel()
	p := fleet.StartProcesses(t, &binaries, 1, fleet.Spool(t.TempDir()))
	ledger, stop := newOutageLedger(), make(chan struct{})
	client := p.Client(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	mustPush(t, client, "q", "partition-0", "p0/before/0")
	ledger.accepted["p0/before/0"] = true
	require.NoError(t, p.Postgres.Kill(t.Context()))
	var publishers errgroup.Group
	publishers.Go(func() error { return ledger.publish(ctx, client, 0, "p0", stop) })
	ledger.await(t, func(_ int, buffered [2]int) bool { return buffered[0] > 100 })
	d := p.Hosts[0].Dispatcher

	d.Kill()
	require.NoError(t, p.Postgres.Restart(t.Context()))
	d.Start(t)
	d.AwaitReady(t)
	during, _ := ledger.count()
	ledger.await(t, func(accepted int, _ [2]int) bool { return accepted > during+30 })
	d.Kill() // perhaps in the middle of draining
	d.Start(t)
	d.AwaitReady(t)
	close(stop)
	require.NoError(t, publishers.Wait())

	eventually(t, func() error { return spoolsAreEmpty(t.Context(), client) })
	ledger.consumed(t, client, false)
	lease, err := client.Pop(t.Context(), "q", postrider.PopOptions{Wait: 100 * time.Millisecond})
	require.NoError(t, err)
	require.Nil(t, lease, "more came than was accepted")
}
