package server

import (
	"context"

	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/dispatcher/internal/domain/queue"
	"postrider.dev/services/dispatcher/internal/store"
)

// RotateQueueKey implements the contract.
func (s *Queues) RotateQueueKey(ctx context.Context, req *queuev1.RotateQueueKeyRequest) (*queuev1.RotateQueueKeyResponse, error) {
	by, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	if err := queue.CheckName("queue", req.GetQueue()); err != nil {
		return nil, wireError(err)
	}
	rotated := false
	call := controlCall[*queuev1.RotateQueueKeyResponse]{by, queuev1.QueueService_RotateQueueKey_FullMethodName, req, &queuev1.RotateQueueKeyResponse{}}
	resp, err := once(ctx, s, call, func(c *store.Control) (*queuev1.RotateQueueKeyResponse, error) {
		q, err := c.RotateKey(ctx, by, req.GetQueue())
		if err != nil {
			return nil, err
		}
		rotated = true
		return &queuev1.RotateQueueKeyResponse{KeyId: q.Key().ID(), ConfigVersion: q.ConfigVersion}, nil
	})
	if err == nil && rotated {
		s.notify.QueueChanged(by.Tenant, req.GetQueue(), false)
	}
	return resp, err
}
