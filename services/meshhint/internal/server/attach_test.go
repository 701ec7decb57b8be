package server_test

import (
	"context"
	"errors"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"postrider.dev/pkg/clock"
	meshv1 "postrider.dev/proto/gen/postrider/private/mesh/v1"
	"postrider.dev/services/meshhint/internal/engine"
	"postrider.dev/services/meshhint/internal/server"
)

// broken is the stream of a service that announced itself; sends fail after the first few.
type broken struct {
	grpc.BidiStreamingServer[meshv1.AttachRequest, meshv1.AttachResponse]

	ctx       context.Context //nolint:containedctx // a stream has one
	announced bool
	sends     int
	err       error
}

func (b *broken) Context() context.Context { return b.ctx }

func (b *broken) Recv() (*meshv1.AttachRequest, error) {
	if b.announced {
		<-b.ctx.Done()
		return nil, b.ctx.Err()
	}
	b.announced = true
	return &meshv1.AttachRequest{Announce: &meshv1.Announce{NodeId: "n", Service: "s", State: "online"}}, nil
}

func (b *broken) Send(*meshv1.AttachResponse) error {
	if b.sends--; b.sends < 0 {
		return b.err
	}
	return nil
}

// attach serves a stream whose sends fail with err, after as many that do not.
func attach(t *testing.T, sends int, err error) error {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	m := server.NewMesh(engine.NewHub(engine.NewMetrics(prometheus.NewRegistry())), server.View{}, clock.Real{}, server.Host{ID: "h"}, func() {},
		func() <-chan struct{} { return nil })
	return m.Attach(&broken{ctx: ctx, sends: sends, err: err})
}

func TestAServiceThatHasLeftIsNoFailureWhicheverWayItIsNoticed(t *testing.T) {
	t.Parallel()
	gone := status.Error(codes.Unavailable, "transport is closing")

	require.ErrorIs(t, attach(t, 0, gone), context.Canceled, "at the first frame")
	require.ErrorIs(t, attach(t, 1, gone), context.Canceled, "at a later one")

	other := errors.New("too large")
	require.ErrorIs(t, attach(t, 0, other), other)
	require.ErrorIs(t, attach(t, 1, other), other)
}
