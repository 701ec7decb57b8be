package engine

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
)

// Control calls fn with the control surface of the best dispatcher for the queue. With repeat, a call that found its dispatcher unreachable is made
// again on the next one; it MUST only be set for what may happen twice. Without a dispatcher in reach it returns ErrNoDispatcher.
func (x *Exchange) Control(ctx context.Context, tenant, queue string, repeat bool, fn func(context.Context, queuev1.QueueServiceClient) error) error {
	peers, err := x.await(ctx, tenant, queue)
	if err != nil {
		return err
	}
	for i, p := range peers {
		err = fn(ctx, p.control)
		if status.Code(err) != codes.Unavailable || !repeat || i == len(peers)-1 {
			return err
		}
	}
	return err
}

// await returns the usable dispatchers, waiting for one for at most the patience of the engine.
func (x *Exchange) await(ctx context.Context, tenant, queue string) ([]*peer, error) {
	timer := x.clk.NewTimer(x.cfg.Patience)
	defer timer.Stop()
	for {
		changed := x.changes()
		if peers := x.candidates(tenant, queue); len(peers) > 0 {
			return peers, nil
		}
		select {
		case <-changed:
		case <-timer.C():
			return nil, ErrNoDispatcher
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}
