package e2e

import (
	"testing"

	"github.com/stretchr/testify/require"

	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	postrider "postrider.dev/sdk"
)

func TestAPeekOnOneHostShowsWhatIsLeasedThroughTheOtherAndChangesNothing(t *testing.T) {
	t.Parallel()
	f := twoHosts(t)
	a, b := f.Client(t, 0), f.Client(t, 1)
	_, err := a.Push(t.Context(), "q", message("p", "0"), message("p", "1"), message("p", "2"), message("other", "3"))
	require.NoError(t, err)
	_, err = mustPop(t, a, "q", postrider.PopOptions{Group: "g"}).Ack(t.Context())
	require.NoError(t, err)
	held := mustPop(t, a, "q", postrider.PopOptions{Group: "g", Partition: "p", Batch: 2})
	require.Len(t, held.Deliveries, 2)
	before, err := b.Queue(t.Context(), "q")
	require.NoError(t, err)

	all, err := b.Peek(t.Context(), "q", postrider.Look{})
	require.NoError(t, err)
	last, err := b.Peek(t.Context(), "q", postrider.Look{Partition: "p", From: "latest", Limit: 1})
	require.NoError(t, err)

	require.Equal(t, []string{"0", "1", "2", "3"}, peeked(all), "what is settled and what is leased is in the log")
	require.Equal(t, held.Deliveries[0].MessageID, all.GetMessages()[1].GetMessageId())
	require.Equal(t, []string{"2"}, peeked(last))
	after, err := b.Queue(t.Context(), "q")
	require.NoError(t, err)
	require.Equal(t, before.GetGroups()[0].String(), after.GetGroups()[0].String())
	_, err = held.Ack(t.Context())
	require.NoError(t, err, "the lease is what it was")
	require.Equal(t, []string{"3"}, payloads(mustPop(t, b, "q", postrider.PopOptions{Group: "g", Batch: 9})))
}

func peeked(seen *queuev1.PeekMessagesResponse) []string {
	var out []string
	for _, m := range seen.GetMessages() {
		out = append(out, string(m.GetPayload()))
	}
	return out
}
