package server

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"postrider.dev/pkg/clock"
	"postrider.dev/pkg/tenant"
	dispatcherv1 "postrider.dev/proto/gen/postrider/private/dispatcher/v1"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/dispatcher/internal/domain/route"
)

// routed is a registry in which every queue but "free" is routed to its tenant and name.
type routed struct{}

func (routed) FindRoutes(_ context.Context, t tenant.ID, queues []string) (map[string]string, error) {
	out := map[string]string{}
	for _, q := range queues {
		if q != "free" {
			out[q] = string(t) + "@" + q
		}
	}
	return out, nil
}

func TestRoutesAreFoundForTheCallersTenantAndBadQuestionsAreRefused(t *testing.T) {
	t.Parallel()
	x := NewExchange(nil, nil, routed{}, calm{}, clock.Real{}, zap.NewNop(), nil)
	ctx := tenant.NewContext(t.Context(), tenant.Caller{Tenant: "acme", Actor: "ann", Role: tenant.Read})

	resp, err := x.FindRoutes(ctx, &dispatcherv1.FindRoutesRequest{Queues: []string{"q", "free"}})
	require.NoError(t, err)
	require.Len(t, resp.GetRoutes(), 1)
	require.Equal(t, "acme@q", resp.GetRoutes()[0].GetAddress())
	_, err = x.FindRoutes(t.Context(), &dispatcherv1.FindRoutesRequest{Queues: []string{"q"}})
	require.Error(t, err, "nobody asks")
	for _, queues := range [][]string{{""}, {"a\x00b"}, {strings.Repeat("q", 256)}, make([]string, 1001)} {
		_, err := x.FindRoutes(ctx, &dispatcherv1.FindRoutesRequest{Queues: queues})
		require.Equal(t, codes.InvalidArgument, status.Code(err), "%.20q", queues)
	}
}

func TestAQueueShowsItsRoute(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	ctx := b.as("acme")
	_, err := b.ConfigureQueue(ctx, &queuev1.ConfigureQueueRequest{Queue: "q"})
	require.NoError(t, err)
	shown := func() *queuev1.Route {
		t.Helper()
		resp, err := b.GetQueue(ctx, &queuev1.GetQueueRequest{Queue: "q"})
		require.NoError(t, err)
		return resp.GetRoute()
	}
	require.Nil(t, shown())
	b.exec(`SELECT mesh.announce('[{"id":"n","host_id":"h","zone":"z","service":"dispatcher","state":"online","version":"v","addresses":{"internal":"a:1"}}]')`)
	q, err := b.control.FindQueue(ctx, "acme", "q")
	require.NoError(t, err)

	_, err = b.control.ClaimRoutes(ctx, route.Node{ID: "n", Host: "h"}, []int64{q.ID})
	require.NoError(t, err)

	require.Equal(t, "n", shown().GetNodeId())
	require.Equal(t, "h", shown().GetHostId())
	require.EqualValues(t, 1, shown().GetEpoch())
	require.NotNil(t, shown().GetClaimedAt())
	b.exec("UPDATE mesh.nodes SET state = 'draining'")
	require.Empty(t, shown().GetHostId(), "it is not online")
}
