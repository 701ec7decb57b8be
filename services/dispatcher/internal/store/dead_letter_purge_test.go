package store_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"postrider.dev/services/dispatcher/internal/domain/queue"
	"postrider.dev/services/dispatcher/internal/store"
)

// purge asks for a purge that must succeed.
func (c *cold) purge(name string, req store.PurgeRequest) store.PurgedLetters {
	c.t.Helper()
	done, err := c.control.PurgeDeadLetters(c.t.Context(), by("a"), name, req)
	require.NoError(c.t, err)
	return done
}

// letters are all dead letters of a queue's name, oldest first, with those that were redriven.
func (c *cold) letters(name string) []store.DeadLetterID {
	c.t.Helper()
	page, err := c.control.ListDeadLetters(c.t.Context(), "a", name, store.DeadLetterFilter{Redriven: true, Limit: 10_000})
	require.NoError(c.t, err)
	ids := []store.DeadLetterID{}
	for _, d := range page {
		ids = append(ids, d.ID)
	}
	return ids
}

func TestAPurgeDeletesWhatIsNamedAndTellsWhatBecameOfEach(t *testing.T) {
	t.Parallel()
	c := newCold(t)
	q, other := c.queue("a", "q"), c.queue("a", "other")
	first, second, redriven := c.deadLetter(q, "g", "p", "1"), c.deadLetter(q, "h", "p", "2"), c.deadLetter(q, "g", "p", "3")
	elsewhere := c.deadLetter(other, "g", "p", "4")
	_, err := c.control.Redrive(t.Context(), by("a"), "q", store.RedriveRequest{IDs: []store.DeadLetterID{redriven}})
	require.NoError(t, err)
	ids := []store.DeadLetterID{redriven, second, elsewhere, second}

	require.Equal(t, store.PurgedLetters{Purged: 1, Already: 1, NotFound: []store.DeadLetterID{elsewhere}}, c.purge("q", store.PurgeRequest{IDs: ids}))
	require.Equal(t, []store.DeadLetterID{first, redriven}, c.letters("q"))
	require.Equal(t, []store.DeadLetterID{elsewhere}, c.letters("other"), "of another queue")

	again := c.purge("q", store.PurgeRequest{IDs: []store.DeadLetterID{second}})
	require.Equal(t, store.PurgedLetters{NotFound: []store.DeadLetterID{second}}, again)
	require.Equal(t, 1, c.purge("q", store.PurgeRequest{IDs: []store.DeadLetterID{redriven}, Redriven: true}).Purged)
	require.Equal(t, []store.DeadLetterID{first}, c.letters("q"))
	require.Equal(t, []string{"3"}, payloads(c.log(q)), "what was redriven stays in the log")
}

func TestAPurgeOfAGroupTakesItsOldestThatFailedBeforeAnInstantAndNoOthers(t *testing.T) {
	t.Parallel()
	c := newCold(t)
	q := c.queue("a", "q")
	foreign := c.queue("b", "q")
	theirs := c.deadLetter(foreign, "g", "p", "x")
	noon := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	var ofG, ofH []store.DeadLetterID
	for i := range 10 {
		id := c.deadLetter(q, []string{"g", "h"}[i%2], "p", "x")
		c.exec("UPDATE dispatcher.dead_letters SET failed_at = $2 WHERE id = $1", id, noon.Add(time.Duration(i)*time.Minute))
		if i%2 == 0 {
			ofG = append(ofG, id)
		} else {
			ofH = append(ofH, id)
		}
	}

	require.Equal(t, store.PurgedLetters{Purged: 2, More: true}, c.purge("q", store.PurgeRequest{Group: "g", Limit: 2}))
	require.Equal(t, store.PurgedLetters{}, c.purge("q", store.PurgeRequest{Group: "g", Limit: 9, Before: ptr(noon.Add(4 * time.Minute))}), "not before its own instant")
	require.Equal(t, store.PurgedLetters{Purged: 1}, c.purge("q", store.PurgeRequest{Group: "g", Limit: 9, Before: ptr(noon.Add(5 * time.Minute))}))
	require.Equal(t, store.PurgedLetters{}, c.purge("q", store.PurgeRequest{Limit: 9, Before: &time.Time{}}), "the first of all instants is one")
	require.ElementsMatch(t, slices.Concat(ofG[3:], ofH), c.letters("q"))

	_, err := c.control.Redrive(t.Context(), by("a"), "q", store.RedriveRequest{IDs: ofG[3:4]})
	require.NoError(t, err)
	require.Equal(t, store.PurgedLetters{Purged: 1}, c.purge("q", store.PurgeRequest{Group: "g", Limit: 9}), "what was redriven stays")
	require.Equal(t, store.PurgedLetters{Purged: 1}, c.purge("q", store.PurgeRequest{Group: "g", Limit: 9, Redriven: true}))
	require.Equal(t, store.PurgedLetters{Purged: 5}, c.purge("q", store.PurgeRequest{Limit: 5, Redriven: true}))
	require.Empty(t, c.letters("q"))
	require.True(t, scan[bool](c.bench, "SELECT EXISTS (SELECT FROM dispatcher.dead_letters WHERE id = $1)", theirs), "another tenant's")
}

func TestAPurgeOfManyIsSeveralBoundedTransactions(t *testing.T) {
	t.Parallel()
	c := newCold(t)
	q := c.queue("a", "q")
	for range 1001 {
		c.deadLetter(q, "g", "p", "x")
	}
	require.Equal(t, store.PurgedLetters{Purged: 1000, More: true}, c.purge("q", store.PurgeRequest{Limit: 1000}))
	require.Len(t, c.audited(), 2)
	require.Len(t, c.letters("q"), 1)

	large := c.queue("a", "large")
	payload := string(make([]byte, 16<<20))
	for range 5 {
		c.deadLetter(large, "g", "p", payload)
	}
	require.Equal(t, 5, c.purge("large", store.PurgeRequest{Limit: 1000}).Purged)
	require.Len(t, c.audited(), 4, "64 MiB a transaction")
}

func TestRacingPurgesAndRedrivesDoEachDeadLetterOnce(t *testing.T) {
	t.Parallel()
	c := newCold(t)
	done, err := c.control.Configure(t.Context(), by("a"), "q", queue.Patch{Set: queue.Options{Shards: ptr(4)}})
	require.NoError(t, err)
	q := done.Queue
	var ids []store.DeadLetterID
	for i := range 60 {
		ids = append(ids, c.deadLetter(q, "g", string(rune('a'+i%26)), fmt.Sprint("p", i)))
	}
	controls := []*store.Control{c.control, c.another(), c.another()}
	var purged, redriven [9]int

	noErrors(t, race(len(purged), func(i int) error {
		mine := slices.Clone(ids)
		if i%2 == 0 {
			slices.Reverse(mine)
		}
		if i%3 == 0 {
			out, err := controls[i%3].Redrive(t.Context(), by("a"), "q", store.RedriveRequest{IDs: mine[:40]})
			redriven[i] = out.Redriven
			return err
		}
		req := store.PurgeRequest{IDs: mine[:25]}
		if i%3 == 1 {
			req = store.PurgeRequest{Group: "g", Limit: 7}
		}
		out, err := controls[i%3].PurgeDeadLetters(t.Context(), by("a"), "q", req)
		purged[i] = out.Purged
		return err
	}))

	gone, kept := 0, len(c.letters("q"))
	appended := len(c.log(q))
	total := 0
	for i := range purged {
		gone += purged[i]
		total += redriven[i]
	}
	require.Equal(t, total, appended, "each that was redriven is in the log once")
	require.Equal(t, len(ids), gone+kept, "each purged one was counted once")
	open := scan[int](c.bench, "SELECT count(*) FROM dispatcher.dead_letters WHERE redriven_at IS NULL")
	require.Equal(t, len(ids), gone+total+open, "none was both redriven and purged")
	got := payloads(c.log(q))
	slices.Sort(got)
	require.Len(t, slices.Compact(got), appended)
}

func TestTheLastDeadLetterOfADeletedQueueTakesItsRowAndItsKeysAlong(t *testing.T) {
	t.Parallel()
	c := newCold(t)
	q := c.queue("a", "q")
	c.exec("INSERT INTO dispatcher.queue_keys (id, queue_id, purpose, master_id, wrapped) VALUES (99, $1, 'data', 'm', '')", q.ID)
	ids := []store.DeadLetterID{c.deadLetter(q, "g", "p", "1"), c.deadLetter(q, "g", "p", "2"), c.deadLetter(q, "g", "p", "3")}
	_, err := c.control.DeleteQueue(t.Context(), by("a"), "q", false)
	require.NoError(t, err)
	c.purgeAll()
	left := func() string {
		return scan[string](c.bench, `SELECT concat((SELECT count(*) FROM dispatcher.queues WHERE id = $1), (SELECT count(*) FROM dispatcher.queue_keys WHERE queue_id = $1))`, q.ID)
	}

	c.purge("q", store.PurgeRequest{IDs: ids[:1]})
	c.purgeAll()
	require.Equal(t, "11", left())
	noErrors(t, race(2, func(i int) error {
		_, err := c.another().PurgeDeadLetters(t.Context(), by("a"), "q", store.PurgeRequest{IDs: ids[1+i : 2+i]})
		return err
	}))
	c.purgeAll()
	require.Equal(t, "00", left())
	_, err = c.control.PurgeDeadLetters(t.Context(), by("a"), "q", store.PurgeRequest{Limit: 1})
	require.ErrorIs(t, err, store.ErrQueueNotFound)
}

func TestAPurgeThatIsCutOffIsAllOrNothingAndGoesOn(t *testing.T) {
	t.Parallel()
	c := newCold(t)
	s, p := c.behindProxy()
	control := store.NewControl(s, c.enc, c.dec)
	made := 0
	attempt := func(n int, how cut) (func(), int) {
		made++
		q := c.queue("a", fmt.Sprint("q", made))
		id := c.deadLetter(q, "g", "p", "x")
		p.arm(n, how)
		accounted := 0
		for try := 0; accounted == 0; try++ {
			require.Less(t, try, 5, "cut %d at message %d", how, n)
			if done, err := control.PurgeDeadLetters(t.Context(), by("a"), q.Name, store.PurgeRequest{IDs: []store.DeadLetterID{id}}); err == nil {
				accounted = done.Purged + len(done.NotFound)
			}
		}
		messages, did := p.count()
		require.Equal(t, n > 0, did)
		return func() {
			require.Empty(t, c.letters(q.Name), "cut %d at message %d", how, n)
			require.Equal(t, 1, scan[int](c.bench, "SELECT count(*) FROM audit.outbox WHERE resource = $1 AND detail->'purged' <> '[]'", "queue/"+q.Name))
		}, messages
	}
	attempt(0, 0) // prepares the statements
	verify, messages := attempt(0, 0)
	verify()

	for n := messages - 1; n <= messages; n++ {
		for how := cutBefore; how <= cutSplitEnd; how++ {
			attempt(0, 0) // the connection is as it was
			verify, _ := attempt(n, how)
			p.deliver()
			require.NoError(t, c.settle())
			verify()
		}
	}
}
