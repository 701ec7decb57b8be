package server

import (
	"context"

	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/dispatcher/internal/domain/queue"
	"postrider.dev/services/dispatcher/internal/engine/catalog"
	"postrider.dev/services/dispatcher/internal/store"
)

// ConfigureQueue implements the contract.
func (s *Queues) ConfigureQueue(ctx context.Context, req *queuev1.ConfigureQueueRequest) (*queuev1.ConfigureQueueResponse, error) {
	by, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	if err := queue.CheckName("queue", req.GetQueue()); err != nil {
		return nil, wireError(err)
	}
	patch, err := patchOf(req.GetOptions(), req.GetReset_())
	if err != nil {
		return nil, wireError(err)
	}
	var done store.Configured
	call := controlCall[*queuev1.ConfigureQueueResponse]{by, queuev1.QueueService_ConfigureQueue_FullMethodName, req, &queuev1.ConfigureQueueResponse{}}
	resp, err := once(ctx, s, call, func(c *store.Control) (_ *queuev1.ConfigureQueueResponse, err error) {
		if done, err = c.Configure(ctx, by, req.GetQueue(), patch); err != nil {
			return nil, err
		}
		stats, err := c.QueueStats(ctx, []int64{done.Queue.ID})
		if err != nil {
			return nil, err
		}
		shown := queueOf(done.Queue, stats[done.Queue.ID], s.rates.PerSecond(done.Queue.ID))
		return &queuev1.ConfigureQueueResponse{Queue: shown, Created: done.Created}, nil
	})
	if done.Changed {
		s.notify.QueueChanged(by.Tenant, req.GetQueue(), false)
	}
	return resp, err
}

// ListQueues implements the contract.
func (s *Queues) ListQueues(ctx context.Context, req *queuev1.ListQueuesRequest) (*queuev1.ListQueuesResponse, error) {
	by, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	size, err := pageSize(req.GetPageSize())
	if err != nil {
		return nil, wireError(err)
	}
	if err := queue.CheckOptionalName("prefix", req.GetPrefix()); err != nil {
		return nil, wireError(err)
	}
	list := listing{"queues", by.Tenant.String(), req.GetPrefix()}
	after, err := list.nameCursor(req.GetPageToken())
	if err != nil {
		return nil, wireError(err)
	}
	queues, err := s.control.ListQueues(ctx, by.Tenant, req.GetPrefix(), after, size+1)
	if err != nil {
		return nil, wireError(err)
	}
	resp := &queuev1.ListQueuesResponse{}
	if len(queues) > size {
		queues = queues[:size]
		resp.NextPageToken = list.next(queues[size-1].Name)
	}
	ids := make([]int64, len(queues))
	for i, q := range queues {
		ids[i] = q.ID
	}
	stats, err := s.control.QueueStats(ctx, ids)
	if err != nil {
		return nil, wireError(err)
	}
	for _, q := range queues {
		if st, ok := stats[q.ID]; ok { // else deleted between the two reads
			resp.Queues = append(resp.Queues, queueOf(q, st, s.rates.PerSecond(q.ID)))
		}
	}
	return resp, nil
}

// GetQueue implements the contract.
func (s *Queues) GetQueue(ctx context.Context, req *queuev1.GetQueueRequest) (*queuev1.GetQueueResponse, error) {
	by, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	if err := queue.CheckName("queue", req.GetQueue()); err != nil {
		return nil, wireError(err)
	}
	q, err := s.control.FindQueue(ctx, by.Tenant, req.GetQueue())
	if err != nil {
		return nil, wireError(err)
	}
	d, err := s.control.QueueDetail(ctx, q)
	if err != nil {
		return nil, wireError(err)
	}
	r, err := s.control.Route(ctx, q.ID)
	if err != nil {
		return nil, wireError(err)
	}
	resp := &queuev1.GetQueueResponse{Queue: queueOf(q, d.Stats, s.rates.PerSecond(q.ID)), Route: routeOf(r)}
	for _, shard := range d.Shards {
		resp.Shards = append(resp.Shards, shardOf(q, shard))
	}
	for _, g := range d.Groups {
		resp.Groups = append(resp.Groups, groupOf(q.Config, g, d.States[g.ID]))
	}
	return resp, nil
}

// DeleteQueue implements the contract.
func (s *Queues) DeleteQueue(ctx context.Context, req *queuev1.DeleteQueueRequest) (*queuev1.DeleteQueueResponse, error) {
	by, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	if err := queue.CheckName("queue", req.GetQueue()); err != nil {
		return nil, wireError(err)
	}
	done := false
	call := controlCall[*queuev1.DeleteQueueResponse]{by, queuev1.QueueService_DeleteQueue_FullMethodName, req, &queuev1.DeleteQueueResponse{}}
	resp, err := once(ctx, s, call, func(c *store.Control) (*queuev1.DeleteQueueResponse, error) {
		_, err := c.DeleteQueue(ctx, by, req.GetQueue(), req.GetForce())
		done = err == nil
		return &queuev1.DeleteQueueResponse{}, err
	})
	if done {
		s.notify.QueueChanged(by.Tenant, req.GetQueue(), true)
	}
	return resp, err
}

// ListPartitions implements the contract.
func (s *Queues) ListPartitions(ctx context.Context, req *queuev1.ListPartitionsRequest) (*queuev1.ListPartitionsResponse, error) {
	by, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	if err := queue.CheckName("queue", req.GetQueue()); err != nil {
		return nil, wireError(err)
	}
	size, err := pageSize(req.GetPageSize())
	if err != nil {
		return nil, wireError(err)
	}
	list := listing{"partitions", by.Tenant.String(), req.GetQueue()}
	after, shard, err := list.partitionCursor(req.GetPageToken())
	if err != nil {
		return nil, wireError(err)
	}
	q, err := s.control.FindQueue(ctx, by.Tenant, req.GetQueue())
	if err != nil {
		return nil, wireError(err)
	}
	page, err := s.control.ListPartitions(ctx, q, after, shard, size+1)
	if err != nil {
		return nil, wireError(err)
	}
	resp := &queuev1.ListPartitionsResponse{}
	if len(page) > size {
		page = page[:size]
		resp.NextPageToken = list.next(partitionCursor(page[size-1]))
	}
	for _, p := range page {
		resp.Partitions = append(resp.Partitions, partitionOf(q, p))
	}
	return resp, nil
}

// CreateGroup implements the contract. The queue is made by this first use too.
func (s *Queues) CreateGroup(ctx context.Context, req *queuev1.CreateGroupRequest) (*queuev1.CreateGroupResponse, error) {
	by, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	if err := firstOf(queue.CheckName("queue", req.GetQueue()), queue.CheckName("group", req.GetGroup())); err != nil {
		return nil, wireError(err)
	}
	options, err := groupOptions(req.GetOptions())
	if err != nil {
		return nil, wireError(err)
	}
	made := false
	call := controlCall[*queuev1.CreateGroupResponse]{by, queuev1.QueueService_CreateGroup_FullMethodName, req, &queuev1.CreateGroupResponse{}}
	resp, err := once(ctx, s, call, func(c *store.Control) (_ *queuev1.CreateGroupResponse, err error) {
		q, isNew, err := c.EnsureQueue(ctx, by.Tenant, req.GetQueue())
		if err != nil {
			return nil, err
		}
		made = isNew
		g, created, err := c.CreateGroup(ctx, by, req.GetQueue(), req.GetGroup(), options)
		if err != nil {
			return nil, err
		}
		st, err := c.GroupStats(ctx, g)
		return &queuev1.CreateGroupResponse{Group: groupOf(q.Config, g, st), Created: created}, err
	})
	if made {
		s.catalog.InvalidateQueue(by.Tenant, req.GetQueue()) // it may remember that there was none
	}
	return resp, err
}

// DeleteGroup implements the contract.
func (s *Queues) DeleteGroup(ctx context.Context, req *queuev1.DeleteGroupRequest) (*queuev1.DeleteGroupResponse, error) {
	by, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	if err := firstOf(queue.CheckName("queue", req.GetQueue()), queue.CheckName("group", req.GetGroup())); err != nil {
		return nil, wireError(err)
	}
	var g store.Group
	call := controlCall[*queuev1.DeleteGroupResponse]{by, queuev1.QueueService_DeleteGroup_FullMethodName, req, &queuev1.DeleteGroupResponse{}}
	resp, err := once(ctx, s, call, func(c *store.Control) (_ *queuev1.DeleteGroupResponse, err error) {
		g, err = c.DeleteGroup(ctx, by, req.GetQueue(), req.GetGroup())
		return &queuev1.DeleteGroupResponse{}, err
	})
	if g.ID != 0 {
		s.catalog.InvalidateGroup(&catalog.Group{Group: g})
		s.notify.QueueChanged(by.Tenant, req.GetQueue(), false)
	}
	return resp, err
}
