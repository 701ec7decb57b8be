package engine

import (
	"context"
	"slices"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	dispatcherv1 "postrider.dev/proto/gen/postrider/private/dispatcher/v1"
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

// Ask calls fn with the best dispatcher for the queue, and with the next while one cannot be reached: fn MUST do nothing that may not happen twice.
// Without a dispatcher in reach it returns ErrNoDispatcher.
func (x *Exchange) Ask(ctx context.Context, tenant, queue string, fn func(context.Context, dispatcherv1.DispatcherServiceClient) error) error {
	peers, err := x.await(ctx, tenant, queue)
	for _, p := range peers {
		if err = fn(ctx, p.client); status.Code(err) != codes.Unavailable {
			return err
		}
	}
	return err
}

// Attach calls fn, once, with the best dispatcher for the queue and a context that ends when that dispatcher is not to be used any more: it hangs, drains or
// is gone from the set.
func (x *Exchange) Attach(ctx context.Context, tenant, queue string, fn func(context.Context, dispatcherv1.DispatcherServiceClient) error) error {
	peers, err := x.await(ctx, tenant, queue)
	if err != nil {
		return err
	}
	p := peers[0]
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var watching sync.WaitGroup
	defer watching.Wait()
	defer cancel(nil)
	watching.Go(func() {
		for {
			changed := x.changes()
			if !x.uses(p) {
				cancel(errMoved)
				return
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return
			}
		}
	})
	return fn(ctx, p.client)
}

// uses says that p may be sent to.
func (x *Exchange) uses(p *peer) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.Contains(x.peers, p) && p.usable()
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
