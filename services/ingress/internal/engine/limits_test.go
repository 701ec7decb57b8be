package engine_test

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protowire"

	"postrider.dev/pkg/grpcclient"
	dispatcherv1 "postrider.dev/proto/gen/postrider/private/dispatcher/v1"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/ingress/internal/engine"
)

// roomy lets anything through that a frame could carry.
func roomy(c *engine.Config) { c.MaxBytes = 1 << 30 }

func TestAnOperationThatNoFrameCarriesIsRefusedAndDisturbsNobody(t *testing.T) {
	t.Parallel()
	b := setup(t, roomy)
	got := b.do(t.Context(), pop())
	parked := b.own.next()
	headers := map[string]string{}
	for i := range 64 {
		headers[strconv.Itoa(i)] = strings.Repeat("h", 120)
	}
	heavy := &dispatcherv1.Operation{Tenant: "t", Op: &dispatcherv1.Operation_Push{Push: &queuev1.PushRequest{Queue: "q"}}}
	for range 1000 { // 32 MiB of payload, and as many headers as the rules allow
		heavy.GetPush().Items = append(heavy.GetPush().GetItems(), &queuev1.PushItem{Payload: make([]byte, 32<<10), Headers: headers})
	}
	stuffed := pop() // the rules look at the fields they know
	stuffed.GetPop().ProtoReflect().SetUnknown(protowire.AppendBytes(protowire.AppendTag(nil, 999, protowire.BytesType), make([]byte, grpcclient.MaxMessageBytes)))

	for _, op := range []*dispatcherv1.Operation{heavy, stuffed} {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		_, err := b.Do(ctx, op)
		cancel()
		var large *engine.TooLargeError
		require.ErrorAs(t, err, &large)
		require.Greater(t, large.Size, large.Limit)
	}

	parked.answer(popped("l"))
	o := <-got
	require.NoError(t, o.err)
	require.Equal(t, "l", o.res.GetPop().GetLease(), "its stream lives")
	require.Empty(t, b.other.arrived)
}

func TestTheLargestOperationFitsAFrame(t *testing.T) {
	t.Parallel()
	b := setup(t, roomy)
	b.own.auto = true

	_, err := b.Do(t.Context(), push("q", "", string(make([]byte, grpcclient.MaxMessageBytes-4<<20-100))))

	require.NoError(t, err)
}

// A server of the tests takes what a dispatcher's takes.
func serverOptions() []grpc.ServerOption {
	return []grpc.ServerOption{grpc.MaxRecvMsgSize(grpcclient.MaxMessageBytes)}
}
