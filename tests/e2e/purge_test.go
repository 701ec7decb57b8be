package e2e

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/timestamppb"

	"postrider.dev/pkg/pg"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	postrider "postrider.dev/sdk"
)

func TestDeadLettersArePurgedOnceWhileTheyAreRedrivenFromAnotherHost(t *testing.T) {
	t.Parallel()
	f := twoHosts(t)
	a, b := f.Client(t, 0), f.Client(t, 1)
	const n = 40
	for i := range n {
		mustPush(t, a, "orders", fmt.Sprint("p", i), fmt.Sprint("m", i))
	}
	lease := mustPop(t, a, "orders", postrider.PopOptions{Group: "g", Batch: n, Lease: time.Minute})
	for len(lease.Deliveries) > 0 {
		for _, d := range lease.Deliveries {
			_, err := lease.Reject(t.Context(), d, "no")
			require.NoError(t, err)
		}
		next, err := a.Pop(t.Context(), "orders", postrider.PopOptions{Group: "g", Batch: n, Lease: time.Minute})
		require.NoError(t, err)
		if next == nil {
			break
		}
		lease = next
	}
	var ids []string
	for d, err := range a.DeadLetters(t.Context(), "orders", "g") {
		require.NoError(t, err)
		ids = append(ids, d.GetId())
	}
	require.Len(t, ids, n)

	redriven := make(chan int32, 1)
	go func() {
		total := int32(0)
		for chunk := range slices.Chunk(ids, 5) {
			resp, err := a.Redrive(t.Context(), "orders", chunk...)
			if err != nil {
				break
			}
			total += resp.GetRedriven()
		}
		redriven <- total
	}()
	purged := int32(0)
	for {
		resp, err := b.PurgeAs(t.Context(), &queuev1.PurgeDeadLettersRequest{Queue: "orders", Group: "g", Limit: 3})
		require.NoError(t, err)
		if purged += resp.GetPurged(); !resp.GetMore() {
			break
		}
	}
	appended := <-redriven
	last, err := b.PurgeAs(t.Context(), &queuev1.PurgeDeadLettersRequest{Queue: "orders", All: true})
	require.NoError(t, err)

	require.EqualValues(t, n, appended+purged+last.GetPurged(), "each is redriven or purged")
	again, err := b.Queue(t.Context(), "orders")
	require.NoError(t, err)
	require.EqualValues(t, n+appended, again.GetQueue().GetMessages())
	require.Zero(t, again.GetQueue().GetDeadLetters())
	past := &queuev1.PurgeDeadLettersRequest{Queue: "orders", All: true, IncludeRedriven: true, FailedBefore: timestamppb.New(time.Unix(1, 0))}
	none, err := a.PurgeAs(t.Context(), past)
	require.NoError(t, err)
	require.Zero(t, none.GetPurged())
	past.FailedBefore = timestamppb.New(time.Now().Add(time.Hour))
	rest, err := a.PurgeAs(t.Context(), past)
	require.NoError(t, err)
	require.Equal(t, appended, rest.GetPurged())
	require.NotZero(t, entries(t, f.DB.Open(pg.Options{}), "dead_letter.purge", "queue/orders"))
}
