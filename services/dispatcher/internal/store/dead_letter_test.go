package store_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/queue"
	"postrider.dev/services/dispatcher/internal/store"
)

func TestDeadLettersArePagedOldestFirstWithoutPayloads(t *testing.T) {
	t.Parallel()
	c := newCold(t)
	q := c.queue("a", "q")
	var all, ofG []store.DeadLetterID
	for i := range 25 {
		group := []string{"g", "h"}[i%2]
		id := c.deadLetter(q, group, "p", "payload")
		all = append(all, id)
		if group == "g" {
			ofG = append(ofG, id)
		}
	}
	_, err := c.control.Redrive(t.Context(), by("a"), "q", store.RedriveRequest{IDs: all[:3]})
	require.NoError(t, err)
	pages := func(f store.DeadLetterFilter) (out []store.DeadLetterID) {
		for {
			f.Limit = 4
			page, err := c.control.ListDeadLetters(t.Context(), "a", "q", f)
			require.NoError(t, err)
			for _, d := range page {
				require.Nil(t, d.Payload)
				require.Equal(t, 7, d.PayloadBytes)
				out = append(out, d.ID)
			}
			if len(page) < 4 {
				return out
			}
			f.After = page[3].ID
		}
	}
	require.Equal(t, all, pages(store.DeadLetterFilter{Redriven: true}))
	require.Equal(t, all[3:], pages(store.DeadLetterFilter{}))
	require.Equal(t, ofG, pages(store.DeadLetterFilter{Group: "g", Redriven: true}))
	require.Equal(t, ofG[2:], pages(store.DeadLetterFilter{Group: "g"}))
}

func TestDeadLetterShowsTheWholeMessage(t *testing.T) {
	t.Parallel()
	c := newCold(t)
	q := c.queue("a", "q")
	id := c.deadLetter(q, "g", "p", "pay")

	d, err := c.control.GetDeadLetter(t.Context(), "a", "q", id)
	require.NoError(t, err)
	require.Equal(t, message.Message{
		Partition: "p", ClientID: "cid", ContentType: "text/plain", Headers: []message.Header{{Name: "a", Value: "1"}}, Payload: []byte("pay"),
	}, d.Message)
	require.Equal(t, 4, d.Failures)
	require.Equal(t, "boom", d.LastError)
	require.Equal(t, "attempts", d.Reason)
	require.True(t, d.RedrivenAt.IsZero())
	require.False(t, d.Trimmed)

	_, err = c.control.GetDeadLetter(t.Context(), "a", "q", store.DeadLetterID{9})
	require.ErrorIs(t, err, store.ErrDeadLetterNotFound)
}

func TestRedriveAppendsEachOnceHoweverOftenItIsAsked(t *testing.T) {
	t.Parallel()
	c := newCold(t)
	q := c.queue("a", "q")
	c.push(q, msg("p", "live"))
	first, second := c.deadLetter(q, "g", "p", "dead 1"), c.deadLetter(q, "g", "p2", "dead 2")
	unknown := store.DeadLetterID{7}

	done, err := c.control.Redrive(t.Context(), by("a"), "q", store.RedriveRequest{IDs: []store.DeadLetterID{second, first, unknown, first}})
	require.NoError(t, err)
	require.Equal(t, 2, done.Redriven)
	require.Zero(t, done.Already)
	require.Equal(t, []store.DeadLetterID{unknown}, done.NotFound)
	require.Equal(t, map[message.ShardID]message.Offset{q.Shards[0]: 3}, done.Heads)

	again, err := c.control.Redrive(t.Context(), by("a"), "q", store.RedriveRequest{IDs: []store.DeadLetterID{first, second}})
	require.NoError(t, err)
	require.Zero(t, again.Redriven)
	require.Equal(t, 2, again.Already)
	require.Empty(t, again.Heads)

	log := c.log(q)
	require.Equal(t, []string{"live", "dead 1", "dead 2"}, payloads(log))
	require.Equal(t, message.Message{
		Partition: "p", ClientID: "cid", ContentType: "text/plain", Headers: []message.Header{{Name: "a", Value: "1"}}, Payload: []byte("dead 1"),
	}, log[1])
	d, err := c.control.GetDeadLetter(t.Context(), "a", "q", first)
	require.NoError(t, err)
	require.False(t, d.RedrivenAt.IsZero())
	require.Equal(t, []byte("dead 1"), d.Payload, "the letter stays")
}

func TestRacingRedrivesAppendEachOnce(t *testing.T) {
	t.Parallel()
	c := newCold(t)
	done, err := c.control.Configure(t.Context(), by("a"), "q", queue.Patch{Set: queue.Options{Shards: ptr(4)}})
	require.NoError(t, err)
	q := done.Queue
	var ids []store.DeadLetterID
	for i := range 60 {
		ids = append(ids, c.deadLetter(q, "g", string(rune('a'+i%26)), string(rune('0'+i))))
	}
	controls := []*store.Control{c.control, c.another(), c.another()}
	counts := make([]int, 9)

	noErrors(t, race(len(counts), func(i int) error {
		req := store.RedriveRequest{Group: "g", Limit: 40}
		if i%3 == 0 {
			mine := slices.Clone(ids)
			slices.Reverse(mine)
			req = store.RedriveRequest{IDs: mine[:50]}
		}
		out, err := controls[i%3].Redrive(t.Context(), by("a"), "q", req)
		counts[i] = out.Redriven
		return err
	}))
	last, err := c.control.Redrive(t.Context(), by("a"), "q", store.RedriveRequest{IDs: ids})
	require.NoError(t, err)

	total := last.Redriven
	for _, n := range counts {
		total += n
	}
	require.Equal(t, 60, total)
	got := payloads(c.log(q))
	slices.Sort(got)
	require.Len(t, got, 60)
	require.Len(t, slices.Compact(got), 60)
}

func TestRedriveThatFailsHalfWayIsDoneByTheNext(t *testing.T) {
	t.Parallel()
	c := newCold(t)
	q := c.queue("a", "q")
	id := c.deadLetter(q, "g", "p", "x")
	c.breakAudit() // the transaction ends before its commit, as if the process had died

	_, err := c.control.Redrive(t.Context(), by("a"), "q", store.RedriveRequest{IDs: []store.DeadLetterID{id}})
	require.Error(t, err)
	require.Empty(t, c.log(q))

	c.mendAudit()
	done, err := c.control.Redrive(t.Context(), by("a"), "q", store.RedriveRequest{IDs: []store.DeadLetterID{id}})
	require.NoError(t, err)
	require.Equal(t, 1, done.Redriven)
	require.Equal(t, []string{"x"}, payloads(c.log(q)))
}

func TestRedriveOfManyIsSeveralBoundedTransactions(t *testing.T) {
	t.Parallel()
	c := newCold(t)
	q := c.queue("a", "q")
	var ids []store.DeadLetterID
	for range 600 {
		ids = append(ids, c.deadLetter(q, "g", "p", "x"))
	}
	done, err := c.control.Redrive(t.Context(), by("a"), "q", store.RedriveRequest{IDs: ids})
	require.NoError(t, err)
	require.Equal(t, 600, done.Redriven)
	require.Len(t, c.audited(), 3)
	require.Equal(t, message.Offset(600), done.Heads[q.Shards[0]])
}

func TestLargeDeadLettersAreRedrivenAFewAtATime(t *testing.T) {
	t.Parallel()
	c := newCold(t)
	q := c.queue("a", "q")
	big := string(make([]byte, 5<<20))
	for range 3 {
		c.deadLetter(q, "g", "p", big)
	}
	done, err := c.control.Redrive(t.Context(), by("a"), "q", store.RedriveRequest{Group: "g", Limit: 10})
	require.NoError(t, err)
	require.Equal(t, 3, done.Redriven)
	require.Len(t, c.audited(), 3)
	require.Len(t, c.log(q), 3)
}

func TestRedriveByGroupTakesTheOldestOfThatGroup(t *testing.T) {
	t.Parallel()
	c := newCold(t)
	q := c.queue("a", "q")
	c.deadLetter(q, "h", "p", "other group")
	trimmed := c.deadLetter(q, "g", "p", "trimmed")
	c.exec("UPDATE dispatcher.dead_letters SET payload = NULL, partition = NULL WHERE id = $1", trimmed)
	for _, payload := range []string{"1", "2", "3"} {
		c.deadLetter(q, "g", "p", payload)
	}
	for want, n := range map[string]int{"1": 2} {
		done, err := c.control.Redrive(t.Context(), by("a"), "q", store.RedriveRequest{Group: "g", Limit: n})
		require.NoError(t, err)
		require.Equal(t, n, done.Redriven)
		require.Equal(t, []string{want, "2"}, payloads(c.log(q)))
	}
	_, err := c.control.Redrive(t.Context(), by("a"), "q", store.RedriveRequest{IDs: []store.DeadLetterID{trimmed}})
	require.ErrorIs(t, err, store.ErrTrimmed)
	d, err := c.control.GetDeadLetter(t.Context(), "a", "q", trimmed)
	require.NoError(t, err)
	require.True(t, d.Trimmed)
}

func TestDeadLettersOutliveTheirQueueAndGoToItsSuccessor(t *testing.T) {
	t.Parallel()
	c := newCold(t)
	ctx := t.Context()
	old := c.queue("a", "q")
	id := c.deadLetter(old, "g", "p", "kept")
	_, err := c.control.DeleteQueue(ctx, by("a"), "q", false)
	require.NoError(t, err)
	c.purgeAll()

	page, err := c.control.ListDeadLetters(ctx, "a", "q", store.DeadLetterFilter{Limit: 10})
	require.NoError(t, err)
	require.Len(t, page, 1)
	_, err = c.control.Redrive(ctx, by("a"), "q", store.RedriveRequest{IDs: []store.DeadLetterID{id}})
	require.ErrorIs(t, err, store.ErrQueueNotFound, "nowhere to append it")

	next := c.queue("a", "q")
	c.deadLetter(next, "g", "p", "new")
	page, err = c.control.ListDeadLetters(ctx, "a", "q", store.DeadLetterFilter{Limit: 10})
	require.NoError(t, err)
	require.Len(t, page, 2)
	done, err := c.control.Redrive(ctx, by("a"), "q", store.RedriveRequest{IDs: []store.DeadLetterID{id}})
	require.NoError(t, err)
	require.Equal(t, 1, done.Redriven)
	require.Equal(t, []string{"kept"}, payloads(c.log(next)))
}

func TestRedriveIntoAQueueThatIsBeingDeletedLosesNothing(t *testing.T) {
	t.Parallel()
	c := newCold(t)
	for i := range 15 {
		name := string(rune('a' + i))
		q := c.queue("a", name)
		id := c.deadLetter(q, "g", "p", "x")
		errs := race(2, func(i int) error {
			if i == 0 {
				_, err := c.control.DeleteQueue(t.Context(), by("a"), name, true)
				return err
			}
			_, err := c.control.Redrive(t.Context(), by("a"), name, store.RedriveRequest{IDs: []store.DeadLetterID{id}})
			return err
		})
		require.NoError(t, errs[0])
		redriven := scan[bool](c.bench, "SELECT redriven_at IS NOT NULL FROM dispatcher.dead_letters WHERE queue_id = $1", q.ID)
		if errs[1] != nil {
			require.ErrorIs(t, errs[1], store.ErrQueueNotFound)
		}
		require.Equal(t, errs[1] == nil, redriven)
		require.Equal(t, redriven, len(c.log(q)) == 1)
	}
}

func TestListingDeadLettersWalksNoOthersWhateverThePlannerBelieves(t *testing.T) {
	t.Parallel()
	c := newCold(t)
	const byQueue, byGroup, redriven = "dead_letters_open_queue_id_id_idx", "dead_letters_open_group_name_queue_id_id_idx", "dead_letters_redriven_queue_id_id_idx"
	want := map[string][]string{
		"dead_letters_page_open":         {byQueue},
		"dead_letters_page":              {byQueue, redriven},
		"dead_letters_page_group_open":   {byGroup},
		"dead_letters_page_group":        {byGroup, redriven},
		"dead_letters_oldest":            {byGroup},
		"dead_letters_to_purge":          {byQueue, redriven},
		"dead_letters_to_purge_of_group": {byGroup, redriven},
	}
	verify := func(when string) {
		for name, indexes := range want {
			var used []string
			for _, root := range explain(c.bench, store.Statement(name)) {
				used = append(used, indexesOf(root)...)
			}
			require.Equal(t, indexes, used, "%s %s", name, when)
		}
	}

	c.exec("VACUUM ANALYZE")
	verify("on an empty table")
	c.exec(`INSERT INTO dispatcher.dead_letters (id, tenant_id, queue_id, group_id, group_name, shard_id, "offset", partition_hash, partition, payload,
			deliveries, failures, reason, failed_at)
		SELECT gen_random_uuid(), 'a', 1, 1, 'large', 1, i, 0, 'p', '', 1, 1, 'attempts', now() FROM generate_series(1, 20000) i`)
	verify("before the planner has looked")
	c.exec("VACUUM ANALYZE")
	verify("when nearly all are of one group")
}

// indexesOf returns the indexes a plan uses, in its order.
func indexesOf(p plan) (used []string) {
	if p.Index != "" {
		used = append(used, p.Index)
	}
	for _, child := range p.Plans {
		used = append(used, indexesOf(child)...)
	}
	return used
}
