package server

import (
	"context"

	dispatcherv1 "postrider.dev/proto/gen/postrider/private/dispatcher/v1"
	"postrider.dev/services/dispatcher/internal/domain/invalid"
	"postrider.dev/services/dispatcher/internal/domain/queue"
)

// maxFoundRoutes bounds one question for routes.
const maxFoundRoutes = 1000

// FindRoutes implements the contract.
func (x *Exchange) FindRoutes(ctx context.Context, req *dispatcherv1.FindRoutesRequest) (*dispatcherv1.FindRoutesResponse, error) {
	by, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	if n := len(req.GetQueues()); n > maxFoundRoutes {
		return nil, wireError(invalid.New(invalid.OutOfRange, "queues", "has %d items, at most %d are allowed", n, maxFoundRoutes))
	}
	for _, name := range req.GetQueues() {
		if err := queue.CheckName("queue", name); err != nil {
			return nil, wireError(err)
		}
	}
	found, err := x.routes.FindRoutes(ctx, by.Tenant, req.GetQueues())
	if err != nil {
		return nil, wireError(err)
	}
	resp := &dispatcherv1.FindRoutesResponse{}
	for name, address := range found {
		resp.Routes = append(resp.Routes, &dispatcherv1.FoundRoute{Queue: name, Address: address})
	}
	return resp, nil
}
