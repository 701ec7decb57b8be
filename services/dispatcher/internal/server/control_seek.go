package server

import (
	"context"
	"strconv"

	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/dispatcher/internal/domain/queue"
	"postrider.dev/services/dispatcher/internal/store"
)

// SeekGroup implements the contract. Pops that wait are woken like after any change of the queue's groups.
func (s *Queues) SeekGroup(ctx context.Context, req *queuev1.SeekGroupRequest) (*queuev1.SeekGroupResponse, error) {
	by, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	if err := firstOf(
		queue.CheckName("queue", req.GetQueue()),
		queue.CheckName("group", req.GetGroup()),
		queue.CheckOptionalName("partition", req.GetPartition()),
		between("offsets", len(req.GetOffsets()), 0, queue.MaxShards),
	); err != nil {
		return nil, wireError(err)
	}
	seek := store.Seek{Partition: req.GetPartition()}
	if seek.To, err = queue.ParsePlace("to", req.GetTo(), req.GetOffsets()); err != nil {
		return nil, wireError(err)
	}
	done := false
	call := controlCall[*queuev1.SeekGroupResponse]{by, queuev1.QueueService_SeekGroup_FullMethodName, req, &queuev1.SeekGroupResponse{}}
	resp, err := once(ctx, s, call, func(c *store.Control) (*queuev1.SeekGroupResponse, error) {
		moved, err := c.Seek(ctx, by, req.GetQueue(), req.GetGroup(), seek)
		done = err == nil
		return movedOf(moved), err
	})
	if done {
		s.notify.QueueChanged(by.Tenant, req.GetQueue(), false)
	}
	return resp, err
}

func movedOf(m store.Moved) *queuev1.SeekGroupResponse {
	resp := &queuev1.SeekGroupResponse{FencedLeases: int32(m.Leases), FencedMessages: int64(m.Messages)}
	for _, p := range m.Positions {
		resp.Positions = append(resp.Positions, &queuev1.SeekGroupResponse_Position{
			ShardId: strconv.FormatInt(int64(p.Shard), 10), From: int64(p.From), To: int64(p.To),
		})
	}
	return resp
}
