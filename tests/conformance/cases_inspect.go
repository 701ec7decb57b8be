package conformance

import (
	"testing"

	"github.com/stretchr/testify/require"

	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
)

func seekGroup(t *testing.T, k kit) {
	q := k.name("seek")
	push(t, k, q, item("p", `1`), item("p", `2`), item("p", `3`))
	ackAll(t, k, q, pop(t, k, q, 1))
	held := pop(t, k, q, 1)

	back, err := k.SeekGroup(t.Context(), &queuev1.SeekGroupRequest{Queue: q, Group: "default", To: "earliest"})

	require.NoError(t, err)
	require.EqualValues(t, 1, back.GetFencedLeases())
	require.EqualValues(t, 1, back.GetFencedMessages())
	require.EqualValues(t, 1, back.GetPositions()[0].GetFrom())
	require.EqualValues(t, 0, back.GetPositions()[0].GetTo())
	_, err = k.Ack(t.Context(), &queuev1.AckRequest{Queue: q, Lease: held.GetLease(), AckRest: true})
	require.Equal(t, "STALE_EPOCH", Code(err), "%v", err)
	_, err = k.SeekGroup(t.Context(), &queuev1.SeekGroupRequest{Queue: q, Group: "default", Offsets: []int64{2}})
	require.NoError(t, err)
	require.Equal(t, []string{`3`}, payloadsOf(pop(t, k, q, 9)))
	for field, req := range map[string]*queuev1.SeekGroupRequest{
		"offsets[0]": {Queue: q, Group: "default", Offsets: []int64{9}},
		"offsets":    {Queue: q, Group: "default", Offsets: []int64{0, 0}},
	} {
		_, err = k.SeekGroup(t.Context(), req)
		require.Equal(t, "OUT_OF_RANGE", Code(err), "%s: %v", field, err)
	}
	_, err = k.SeekGroup(t.Context(), &queuev1.SeekGroupRequest{Queue: q, Group: "nobody", To: "latest"})
	require.Equal(t, "GROUP_NOT_FOUND", Code(err), "%v", err)
}
