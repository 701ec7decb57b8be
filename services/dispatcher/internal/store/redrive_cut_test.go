package store_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"postrider.dev/services/dispatcher/internal/store"
)

// TestRedriveCutOffAtItsEndAppendsOnce breaks the connection at the append and at the COMMIT of a redrive, in each way, and asks again as a client would.
func TestRedriveCutOffAtItsEndAppendsOnce(t *testing.T) {
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
		redriven, already := 0, 0
		for try := 0; redriven+already == 0; try++ {
			require.Less(t, try, 5, "cut %d at message %d", how, n)
			done, err := control.Redrive(t.Context(), by("a"), q.Name, store.RedriveRequest{IDs: []store.DeadLetterID{id}})
			if err == nil {
				redriven, already = done.Redriven, done.Already
			}
		}
		messages, did := p.count()
		require.Equal(t, n > 0, did)
		return func() {
			require.Equal(t, []string{"x"}, payloads(c.log(q)), "cut %d at message %d", how, n)
			require.Equal(t, 1, scan[int](c.bench, "SELECT head FROM dispatcher.shards WHERE id = $1", q.Shards[0]))
			require.Equal(t, 1, scan[int](c.bench, "SELECT count(*) FROM audit.outbox WHERE resource = $1 AND detail->'redriven' <> '[]'", "queue/"+q.Name))
		}, messages
	}
	attempt(0, 0) // prepares the statements
	verify, messages := attempt(0, 0)
	verify()

	for n := messages - 1; n <= messages; n++ {
		for how := cutBefore; how <= cutSplitEnd; how++ {
			attempt(0, 0) // the connection is as it was
			verify, _ := attempt(n, how)
			verify()
			p.deliver()
			require.NoError(t, c.settle())
			verify()
		}
	}
}
