package e2e

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	postrider "postrider.dev/sdk"
	"postrider.dev/tests/fleet"
)

func TestADelayedMessageComesOnTheOtherHostWhenItIsDueAndNotBefore(t *testing.T) {
	t.Parallel()
	f := twoHosts(t)
	a, b := f.Client(t, 0), f.Client(t, 1)
	results, err := a.Push(t.Context(), "reminders",
		postrider.Message{Payload: []byte("later"), Delay: 1500 * time.Millisecond, IdempotencyKey: "k"},
		postrider.Message{Payload: []byte("soon"), DeliverAt: time.Now().Add(time.Second)},
		postrider.Message{Payload: []byte("now"), DeliverAt: time.Unix(1, 0)})
	require.NoError(t, err)
	waiting, err := b.LookupID(t.Context(), "reminders", results[0].MessageID)
	require.NoError(t, err)
	require.Equal(t, "later", string(waiting.GetPayload()))
	require.Equal(t, results[0].AvailableAt, waiting.GetAvailableAt().AsTime())

	for i, want := range []string{"now", "soon", "later"} {
		lease := mustPop(t, b, "reminders", postrider.PopOptions{Batch: 10, Wait: patience})
		require.Equal(t, []string{want}, payloads(lease))
		created := lease.Deliveries[0].CreatedAt
		require.False(t, created.Before(results[2-i].AvailableAt), "%s came %s early", want, results[2-i].AvailableAt.Sub(created))
		_, err := lease.Ack(t.Context(), lease.Deliveries...)
		require.NoError(t, err)
	}

	again, err := b.Push(t.Context(), "reminders", postrider.Message{Payload: []byte("later"), Delay: 1500 * time.Millisecond, IdempotencyKey: "k"})
	require.NoError(t, err)
	require.True(t, again[0].Duplicate)
	require.Equal(t, results[0].MessageID, again[0].MessageID)
	came, err := b.LookupID(t.Context(), "reminders", results[0].MessageID)
	require.NoError(t, err)
	require.EqualValues(t, 2, came.GetOffset(), "the pending id leads to its place")
}

// TestKillingADispatcherWhileMessagesComeDueLosesNoneAndBringsNoneTwiceOrEarly kills the dispatcher that accepted them in the midst of their coming.
func TestKillingADispatcherWhileMessagesComeDueLosesNoneAndBringsNoneTwiceOrEarly(t *testing.T) {
	t.Parallel()
	const count, batch = 3000, 500
	p := fleet.StartProcesses(t, &binaries, 2)
	a, b := p.Client(t, 0, 1), p.Client(t, 1)
	due := map[string]time.Time{}
	for from := 0; from < count; from += batch {
		messages := make([]postrider.Message, batch)
		for i := range messages {
			n := from + i
			messages[i] = postrider.Message{
				Partition: fmt.Sprint("p", n%16), Payload: []byte(strconv.Itoa(n)), Delay: 3*time.Second + time.Duration(n%100)*20*time.Millisecond,
				IdempotencyKey: strconv.Itoa(n),
			}
		}
		results, err := a.Push(t.Context(), "q", messages...)
		require.NoError(t, err)
		for i, r := range results {
			require.NoError(t, r.Err)
			due[string(messages[i].Payload)] = r.AvailableAt
		}
	}

	came := map[string]time.Time{}
	killed := false
	for len(came) < count {
		lease := mustPop(t, b, "q", postrider.PopOptions{Batch: 100, Wait: patience})
		for _, d := range lease.Deliveries {
			require.Zero(t, came[string(d.Payload)], "%s came twice", d.Payload)
			came[string(d.Payload)] = d.CreatedAt
		}
		_, err := lease.Ack(t.Context(), lease.Deliveries...)
		require.NoError(t, err)
		if !killed && len(came) > count/4 {
			killed = true
			p.Hosts[0].Dispatcher.Kill()
		}
	}
	none, err := b.Pop(t.Context(), "q", postrider.PopOptions{Wait: time.Second})
	require.NoError(t, err)

	require.Nil(t, none)
	for name, at := range came {
		require.False(t, at.Before(due[name]), "%s came %s early", name, due[name].Sub(at))
	}
	shown, err := b.Queue(t.Context(), "q")
	require.NoError(t, err)
	require.EqualValues(t, count, shown.GetQueue().GetMessages())
	require.Zero(t, shown.GetQueue().GetDelayed())
}
