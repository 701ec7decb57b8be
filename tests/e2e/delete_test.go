package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	postrider "postrider.dev/sdk"
	"postrider.dev/tests/fleet"
)

func TestAMessageDeletedThroughOneHostIsGoneOnTheOther(t *testing.T) {
	t.Parallel()
	f := twoHosts(t)
	a, b := f.Client(t, 0), f.Client(t, 1)
	l := listen(t, b, "q", postrider.SubscribeOptions{}, nil) // so that b's ring has them
	pushed, err := a.Push(t.Context(), "q", message("p", "0"), message("p", "1"), message("p", "2"), message("r", "3"))
	require.NoError(t, err)
	l.heard(t, 4)
	held := mustPop(t, b, "q", postrider.PopOptions{Group: "g", Batch: 9})
	require.Len(t, held.Deliveries, 4)

	for range 2 {
		done, err := a.DeleteMessage(t.Context(), "q", pushed[1].MessageID)
		require.NoError(t, err)
		require.Equal(t, pushed[1].MessageID, done.GetMessageId())
	}

	told, err := held.Ack(t.Context(), held.Deliveries[1])
	require.NoError(t, err)
	require.Equal(t, "ACK_STATUS_ALREADY_SETTLED", told[0].Status.String())
	require.NoError(t, held.Release(t.Context()))
	want := []string{"0", "2", "3"}
	require.ElementsMatch(t, want, payloads(mustPop(t, b, "q", postrider.PopOptions{Group: "g", Batch: 9})))
	_, err = a.Seek(t.Context(), "q", "g", postrider.Place{At: "earliest"})
	require.NoError(t, err)
	require.ElementsMatch(t, want, payloads(mustPop(t, b, "q", postrider.PopOptions{Group: "g", Batch: 9})))
	require.ElementsMatch(t, want, payloads(mustPop(t, b, "q", postrider.PopOptions{Group: "new", Batch: 9})))
	for i, c := range []*postrider.Client{a, b} {
		_, err := c.LookupID(t.Context(), "q", pushed[1].MessageID)
		require.Equal(t, "MESSAGE_NOT_FOUND", postrider.Code(err), "%v", err)
		seen, err := c.Peek(t.Context(), "q", postrider.Look{})
		require.NoError(t, err)
		require.Equal(t, want, peeked(seen))
		require.Equal(t, want, subscribed(t, c, len(want)), "a new subscriber of host %d is told of neither the message nor a gap", i+1)
	}
}

// subscribed are the first n messages of the queue "q" for who subscribes now, from its beginning.
func subscribed(t *testing.T, c *postrider.Client, n int) []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var out []string
	require.NoError(t, c.Subscribe(ctx, "q", func(_ context.Context, m *postrider.SubscribedMessage) error {
		if out = append(out, string(m.Payload)); len(out) == n {
			cancel()
		}
		return nil
	}, postrider.SubscribeOptions{From: "earliest", Echo: true, OnGap: func(g postrider.Gap) { t.Errorf("a gap: %+v", g) }}))
	return out
}

func TestADelayedMessageCancelledThroughOneHostNeverComesOnTheOther(t *testing.T) {
	t.Parallel()
	f := twoHosts(t)
	a, b := f.Client(t, 0), f.Client(t, 1)
	soon := func(payload, key string) postrider.Message {
		return postrider.Message{Partition: "p", Payload: []byte(payload), Delay: 2 * time.Second, IdempotencyKey: key}
	}
	pushed, err := a.Push(t.Context(), "q", soon("cancelled", "k"), soon("comes", ""))
	require.NoError(t, err)

	done, err := b.DeleteMessage(t.Context(), "q", pushed[0].MessageID)
	require.NoError(t, err)
	require.True(t, done.GetCancelled())
	again, err := b.Push(t.Context(), "q", soon("cancelled", "k"))
	require.NoError(t, err)
	require.True(t, again[0].Duplicate, "its key stays used")

	require.Equal(t, []string{"comes"}, payloads(mustPop(t, b, "q", postrider.PopOptions{Batch: 9, Wait: patience})))
	none, err := a.Pop(t.Context(), "q", postrider.PopOptions{Group: "other", Partition: "p", Batch: 9, Wait: time.Second})
	require.NoError(t, err)
	require.Equal(t, []string{"comes"}, payloads(none))
}

// graveyard is what was deleted, and when that was answered.
type graveyard struct {
	mu    sync.Mutex
	since map[string]time.Time
}

func (g *graveyard) bury(id string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.since[id] = time.Now()
}

// walked returns a message that was handed out by a pop that was asked for after its delete had been answered.
func (g *graveyard) walked(asked time.Time, l *postrider.Lease) error {
	if l == nil {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, d := range l.Deliveries {
		if at, ok := g.since[d.MessageID]; ok && at.Before(asked) {
			return fmt.Errorf("message %s came %s after its delete was answered", d.MessageID, asked.Sub(at))
		}
	}
	return nil
}

// Consumers of two groups get every message again and again on both hosts, while every third is deleted and the dispatcher that does it is killed.
func TestADeleteThatWasAnsweredHoldsThoughDispatchersDie(t *testing.T) {
	t.Parallel()
	const count = 240
	p := fleet.StartProcesses(t, &binaries, 2)
	a, b := p.Client(t, 0, 1), p.Client(t, 1, 0)
	messages := make([]postrider.Message, count)
	for i := range messages {
		messages[i] = message("p"+strconv.Itoa(i%8), strconv.Itoa(i))
	}
	pushed, err := a.Push(t.Context(), "q", messages...)
	require.NoError(t, err)
	dead := &graveyard{since: map[string]time.Time{}}
	ctx, stop := context.WithTimeout(t.Context(), patience)
	defer stop()
	consuming, enough := context.WithCancel(ctx)
	var consumers errgroup.Group
	for i := range 4 {
		c, group := []*postrider.Client{a, b}[i%2], fmt.Sprint("g", i/2)
		consumers.Go(func() error {
			for consuming.Err() == nil {
				asked := time.Now()
				lease, err := c.Pop(consuming, "q", postrider.PopOptions{Group: group, Batch: 20, Lease: time.Second, Wait: 100 * time.Millisecond})
				if err != nil || lease == nil {
					continue // a dispatcher is away
				}
				if err := dead.walked(asked, lease); err != nil {
					return err
				}
				_ = lease.Release(consuming) // else it runs out
			}
			return nil
		})
	}

	for i := 0; i < count; i += 3 {
		if i == count/2 {
			p.Hosts[0].Dispatcher.Kill()
		}
		_, err := a.DeleteMessage(ctx, "q", pushed[i].MessageID)
		require.NoError(t, err)
		dead.bury(pushed[i].MessageID)
	}
	p.Hosts[0].Dispatcher.Start(t)
	p.Hosts[0].Dispatcher.AwaitReady(t)
	enough()
	require.NoError(t, consumers.Wait())

	for _, group := range []string{"g0", "g1", "new"} {
		var got []string
		eventually(t, func() error { // leases of killed pops run out
			lease, err := b.Pop(ctx, "q", postrider.PopOptions{Group: group, Batch: 100})
			if err != nil {
				return err
			}
			got = append(got, payloads(lease)...)
			if lease != nil {
				_, err = lease.Ack(ctx)
			}
			if err == nil && len(got) < count-count/3 {
				err = fmt.Errorf("%d messages have come", len(got))
			}
			return err
		})
		require.Len(t, got, count-count/3, "everything else is there")
		require.False(t, slices.ContainsFunc(got, func(text string) bool { n, _ := strconv.Atoi(text); return n%3 == 0 }), "a deleted message came")
	}
}

// The dispatcher dies when every group has settled the message and only the audit entry is missing: nothing of it has happened, and another does it.
func TestKillingADispatcherInADeleteLeavesTheMessageThereOrGone(t *testing.T) {
	t.Parallel()
	p := fleet.StartProcesses(t, &binaries, 2)
	a, b := p.Client(t, 0), p.Client(t, 1)
	pushed, err := b.Push(t.Context(), "q", message("p", "0"), message("p", "1"))
	require.NoError(t, err)
	_, err = b.CreateGroup(t.Context(), "q", "g", nil)
	require.NoError(t, err)
	db, block := outboxOf(t, p)

	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	unblock := block()
	deleted := make(chan error, 1)
	go func() {
		_, err := a.DeleteMessage(ctx, "q", pushed[0].MessageID)
		deleted <- err
	}()
	eventually(t, func() error {
		var waits bool
		err := db.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_locks WHERE relation = 'audit.outbox'::regclass AND NOT granted)").Scan(&waits)
		if err == nil && !waits {
			err = errors.New("the delete does not wait for the outbox")
		}
		return err
	})
	p.Hosts[0].Dispatcher.Kill()
	cancel() // so that nobody repeats it
	require.Error(t, <-deleted)
	unblock()

	require.EqualValues(t, 2, groupDepth(t, b), "nothing of it has happened")
	_, err = b.DeleteMessage(t.Context(), "q", pushed[0].MessageID)
	require.NoError(t, err)
	require.EqualValues(t, 1, groupDepth(t, b))
	require.Equal(t, []string{"1"}, payloads(mustPop(t, b, "q", postrider.PopOptions{Group: "g", Batch: 9})))
	var entries int
	require.NoError(t, db.QueryRow(t.Context(), "SELECT count(*) FROM audit.outbox WHERE action = 'message.delete'").Scan(&entries))
	require.Equal(t, 1, entries)
}
