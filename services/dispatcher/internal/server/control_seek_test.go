package server

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
)

// seekRules breaks the rules of where a group is to stand.
func (r *rules) seekRules() {
	good := &queuev1.SeekGroupRequest{Queue: "q", Group: "g", To: "earliest"}
	for _, c := range []struct {
		reason, field string
		breaks        func(*queuev1.SeekGroupRequest)
	}{
		{"NAME_TOO_LONG", "partition", func(m *queuev1.SeekGroupRequest) { m.Partition = tooLong() }},
		{"NAME_EMPTY", "to", func(m *queuev1.SeekGroupRequest) { m.To = "" }},
		{"ENUM_UNKNOWN", "to", func(m *queuev1.SeekGroupRequest) { m.To = "yesterday" }},
		{bad, "to", func(m *queuev1.SeekGroupRequest) { m.Offsets = []int64{1} }},
		{bad, "offsets[1]", func(m *queuev1.SeekGroupRequest) { m.To, m.Offsets = "", []int64{1, -1} }},
		{bad, "offsets", func(m *queuev1.SeekGroupRequest) { m.To, m.Offsets = "", make([]int64, 65) }},
	} {
		m := proto.CloneOf(good)
		c.breaks(m)
		r.add(c.reason, c.field, func() error { _, err := r.SeekGroup(r.ctx, m); return err })
	}
}

func TestASeekUnderAKeyIsDoneOnceAndToldToTheEngine(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	ctx := b.as("a")
	_, err := b.CreateGroup(ctx, &queuev1.CreateGroupRequest{Queue: "q", Group: "g"})
	require.NoError(t, err)
	b.notes.taken()
	keyed, _ := b.keyed("a", "once")
	req := &queuev1.SeekGroupRequest{Queue: "q", Group: "g", To: "latest"}

	first, err := b.SeekGroup(keyed, req)
	require.NoError(t, err)
	noted := b.notes.taken()
	again, err := b.SeekGroup(keyed, req)

	require.NoError(t, err)
	require.True(t, proto.Equal(first, again))
	require.Len(t, first.GetPositions(), 1)
	require.NotEmpty(t, noted)
	require.Empty(t, b.notes.taken())
	_, err = b.SeekGroup(keyed, &queuev1.SeekGroupRequest{Queue: "q", Group: "g", To: "earliest"})
	refused(t, err, codes.FailedPrecondition, "IDEMPOTENCY_KEY_REUSED", "idempotency_key")
}
