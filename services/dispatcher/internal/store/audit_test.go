package store_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/queue"
	"postrider.dev/services/dispatcher/internal/store"
)

// controlActions is every action that changes something, by what its audit entry says, on a queue q with a group g that has a dead letter.
func controlActions() map[string]func(*cold) error {
	return map[string]func(*cold) error{
		"queue.configure queue/q": func(c *cold) error {
			_, err := c.control.Configure(c.t.Context(), by("a"), "q", queue.Patch{Set: queue.Options{MaxAttempts: ptr(2)}})
			return err
		},
		"queue.configure queue/new": func(c *cold) error {
			_, err := c.control.Configure(c.t.Context(), by("a"), "new", queue.Patch{})
			return err
		},
		"queue.delete queue/q": func(c *cold) error {
			_, err := c.control.DeleteQueue(c.t.Context(), by("a"), "q", false)
			return err
		},
		"group.create queue/q/group/h": func(c *cold) error {
			_, _, err := c.control.CreateGroup(c.t.Context(), by("a"), "q", "h", store.GroupOptions{})
			return err
		},
		"group.delete queue/q/group/g": func(c *cold) error {
			_, err := c.control.DeleteGroup(c.t.Context(), by("a"), "q", "g")
			return err
		},
		"group.seek queue/q/group/g": func(c *cold) error {
			_, err := c.control.Seek(c.t.Context(), by("a"), "q", "g", store.Seek{To: queue.Place{Start: queue.Start{Kind: queue.Latest}}})
			return err
		},
		"message.delete queue/q": func(c *cold) error {
			q, err := c.control.FindQueue(c.t.Context(), "a", "q")
			require.NoError(c.t, err)
			_, err = c.control.DeleteMessage(c.t.Context(), by("a"), "q", store.MessageName{ID: &message.ID{Shard: q.Shards[0]}})
			return err
		},
		"dead_letter.purge queue/q": func(c *cold) error {
			_, err := c.control.PurgeDeadLetters(c.t.Context(), by("a"), "q", store.PurgeRequest{Limit: 10})
			return err
		},
		"dead_letter.redrive queue/q": func(c *cold) error {
			_, err := c.control.Redrive(c.t.Context(), by("a"), "q", store.RedriveRequest{Group: "g", Limit: 10})
			return err
		},
	}
}

func TestControlActionAndItsAuditEntryCommitTogether(t *testing.T) {
	t.Parallel()
	for name, do := range controlActions() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCold(t)
			q := c.queue("a", "q")
			c.group(q, "g", store.GroupOptions{})
			c.push(q, msg("p", "x"))
			c.deadLetter(q, "g", "p", "dead")
			before := c.everything()

			require.NoError(t, do(c))
			require.Equal(t, []string{"a ann " + name}, c.audited())
			require.NotEqual(t, before, c.everything())

			broken := newCold(t)
			q = broken.queue("a", "q")
			broken.group(q, "g", store.GroupOptions{})
			broken.push(q, msg("p", "x"))
			broken.deadLetter(q, "g", "p", "dead")
			broken.breakAudit()
			before = broken.everything()
			require.Error(t, do(broken))
			require.Equal(t, before, broken.everything(), "no effect without its entry")

			broken.mendAudit()
			broken.breakCommit()
			require.Error(t, do(broken))
			require.Empty(t, broken.audited(), "no entry without its effect")
			require.Equal(t, before, broken.everything())
		})
	}
}
