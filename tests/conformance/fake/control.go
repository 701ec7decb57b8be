package fake

import (
	"context"
	"maps"
	"slices"
	"strings"

	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"postrider.dev/pkg/apierr"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
)

// control serves the control calls that the ingress forwards.
type control struct {
	queuev1.UnimplementedQueueServiceServer

	d *Dispatcher
}

// begin notes the request, locks the dispatcher and returns the tenant that the ingress named.
func (c *control) begin(ctx context.Context, req proto.Message) (string, func()) {
	c.d.note(req)
	c.d.mu.Lock()
	return tenantOf(ctx), c.d.mu.Unlock
}

// tenantOf is the tenant that the ingress named, empty if it named none.
func tenantOf(ctx context.Context) string {
	tenant := metadata.ValueFromIncomingContext(ctx, "postrider-tenant")
	if len(tenant) != 1 {
		return ""
	}
	return tenant[0]
}

func (c *control) need(tenant, name string) (*queue, error) {
	if q := c.d.find(tenant, name); q != nil {
		return q, nil
	}
	return nil, apierr.NotFound("QUEUE_NOT_FOUND", "there is no queue of that name")
}

func (q *queue) show() *queuev1.Queue {
	return &queuev1.Queue{
		Id: q.id, Name: q.name, Options: q.options, ConfigVersion: q.version, CreatedAt: timestamppb.New(q.created),
		Messages: int64(len(q.messages)), Groups: int32(len(q.groups)), DeadLetters: int64(len(q.dead)), Delayed: q.waiting(),
	}
}

func (c *control) ConfigureQueue(ctx context.Context, req *queuev1.ConfigureQueueRequest) (*queuev1.ConfigureQueueResponse, error) {
	tenant, end := c.begin(ctx, req)
	defer end()
	created := c.d.find(tenant, req.GetQueue()) == nil
	q := c.d.ensure(tenant, req.GetQueue())
	if lanes := req.GetOptions(); !created && lanes != nil && lanes.Lanes != nil && lanes.GetLanes() != q.options.GetLanes() {
		return nil, apierr.InvalidArgument("OPTION_FIXED", "lanes", "is fixed since the queue was created")
	}
	if req.GetOptions() != nil {
		req.GetOptions().ProtoReflect().Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
			q.options.ProtoReflect().Set(fd, v)
			return true
		})
	}
	for _, name := range req.GetReset_() {
		fd := q.options.ProtoReflect().Descriptor().Fields().ByName(protoreflect.Name(name))
		q.options.ProtoReflect().Set(fd, defaults().ProtoReflect().Get(fd))
	}
	if !created {
		q.version++
	}
	return &queuev1.ConfigureQueueResponse{Queue: q.show(), Created: created}, nil
}

func (c *control) ListQueues(ctx context.Context, req *queuev1.ListQueuesRequest) (*queuev1.ListQueuesResponse, error) {
	tenant, end := c.begin(ctx, req)
	defer end()
	resp := &queuev1.ListQueuesResponse{}
	for _, key := range slices.Sorted(maps.Keys(c.d.queues)) {
		if name, ok := strings.CutPrefix(key, tenant+"\x00"); ok && strings.HasPrefix(name, req.GetPrefix()) {
			resp.Queues = append(resp.Queues, c.d.queues[key].show())
		}
	}
	return resp, nil
}

func (c *control) GetQueue(ctx context.Context, req *queuev1.GetQueueRequest) (*queuev1.GetQueueResponse, error) {
	tenant, end := c.begin(ctx, req)
	defer end()
	q, err := c.need(tenant, req.GetQueue())
	if err != nil {
		return nil, err
	}
	resp := &queuev1.GetQueueResponse{Queue: q.show(), Shards: []*queuev1.Shard{{Id: "1", Head: int64(len(q.messages))}}}
	for _, name := range slices.Sorted(maps.Keys(q.groups)) {
		g := q.groups[name]
		resp.Groups = append(resp.Groups, &queuev1.Group{
			Name: name, Mode: g.mode, OnFailure: queuev1.OnFailure_ON_FAILURE_BLOCK, Start: "earliest",
			Depth: int64(len(q.messages) - len(g.settled)), Leased: int64(len(g.leased)), CreatedAt: timestamppb.New(q.created),
		})
	}
	return resp, nil
}

func (c *control) DeleteQueue(ctx context.Context, req *queuev1.DeleteQueueRequest) (*queuev1.DeleteQueueResponse, error) {
	tenant, end := c.begin(ctx, req)
	defer end()
	q, err := c.need(tenant, req.GetQueue())
	if err != nil {
		return nil, err
	}
	for _, g := range q.groups {
		if len(g.leased) > 0 && !req.GetForce() {
			return nil, apierr.FailedPrecondition("QUEUE_LEASED", "messages are leased")
		}
	}
	delete(c.d.queues, tenant+"\x00"+req.GetQueue())
	return &queuev1.DeleteQueueResponse{}, nil
}

func (c *control) ListPartitions(ctx context.Context, req *queuev1.ListPartitionsRequest) (*queuev1.ListPartitionsResponse, error) {
	tenant, end := c.begin(ctx, req)
	defer end()
	q, err := c.need(tenant, req.GetQueue())
	if err != nil {
		return nil, err
	}
	byName := map[string]*queuev1.Partition{}
	for _, m := range q.messages {
		p := byName[m.item.GetPartition()]
		if p == nil {
			p = &queuev1.Partition{Name: m.item.GetPartition(), ShardId: "1", FirstOffset: m.offset}
			byName[p.GetName()] = p
		}
		p.LastOffset, p.LastSeenAt = m.offset, timestamppb.New(m.createdAt)
	}
	resp := &queuev1.ListPartitionsResponse{}
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		resp.Partitions = append(resp.Partitions, byName[name])
	}
	return resp, nil
}

func (c *control) CreateGroup(ctx context.Context, req *queuev1.CreateGroupRequest) (*queuev1.CreateGroupResponse, error) {
	tenant, end := c.begin(ctx, req)
	defer end()
	q := c.d.ensure(tenant, req.GetQueue())
	_, existed := q.groups[req.GetGroup()]
	g, err := q.group(req.GetGroup(), req.GetOptions())
	if err != nil {
		return nil, err
	}
	return &queuev1.CreateGroupResponse{Group: &queuev1.Group{Name: req.GetGroup(), Mode: g.mode}, Created: !existed}, nil
}

func (c *control) DeleteGroup(ctx context.Context, req *queuev1.DeleteGroupRequest) (*queuev1.DeleteGroupResponse, error) {
	tenant, end := c.begin(ctx, req)
	defer end()
	q, err := c.need(tenant, req.GetQueue())
	if err != nil {
		return nil, err
	}
	if q.groups[req.GetGroup()] == nil {
		return nil, apierr.NotFound("GROUP_NOT_FOUND", "there is no group of that name")
	}
	delete(q.groups, req.GetGroup())
	return &queuev1.DeleteGroupResponse{}, nil
}

func (c *control) SeekGroup(ctx context.Context, req *queuev1.SeekGroupRequest) (*queuev1.SeekGroupResponse, error) {
	tenant, end := c.begin(ctx, req)
	defer end()
	q, err := c.need(tenant, req.GetQueue())
	if err != nil {
		return nil, err
	}
	g := q.groups[req.GetGroup()]
	if g == nil {
		return nil, apierr.NotFound("GROUP_NOT_FOUND", "there is no group of that name")
	}
	head := int64(len(q.messages))
	to := map[string]int64{"earliest": 0, "latest": head}[req.GetTo()]
	if offsets := req.GetOffsets(); len(offsets) > 0 {
		if len(offsets) > 1 || offsets[0] > head {
			return nil, apierr.InvalidArgument("OUT_OF_RANGE", "offsets", "is not in the log")
		}
		to = offsets[0]
	}
	open := slices.Sorted(maps.Values(g.leased))
	resp := &queuev1.SeekGroupResponse{FencedLeases: int32(len(slices.Compact(open))), FencedMessages: int64(len(g.leased))}
	from := int64(0)
	for g.settled[from] {
		from++
	}
	resp.Positions = []*queuev1.SeekGroupResponse_Position{{ShardId: q.id, From: from, To: to}}
	clear(g.settled)
	clear(g.leased)
	clear(g.leases)
	for offset := range to {
		g.settled[offset] = true
	}
	return resp, nil
}

func (c *control) LookupMessage(ctx context.Context, req *queuev1.LookupMessageRequest) (*queuev1.LookupMessageResponse, error) {
	tenant, end := c.begin(ctx, req)
	defer end()
	q, err := c.need(tenant, req.GetQueue())
	if err != nil {
		return nil, err
	}
	found, err := q.lookup(req)
	if err != nil || !req.GetTrace() || found.GetAvailableAt() != nil {
		return found, err
	}
	return found, q.trace(req.GetGroup(), found)
}

// lookup finds a message by any of its names.
func (q *queue) lookup(req *queuev1.LookupMessageRequest) (*queuev1.LookupMessageResponse, error) {
	if req.GetMessageId() != "" {
		return q.lookupID(req.GetMessageId())
	}
	if m := q.named(req.GetPartition(), req.GetClientId()); m != nil && !m.hidden {
		return m.found(), nil
	}
	return nil, apierr.NotFound("MESSAGE_NOT_FOUND", "there is no such message")
}

func (c *control) ListDeadLetters(ctx context.Context, req *queuev1.ListDeadLettersRequest) (*queuev1.ListDeadLettersResponse, error) {
	tenant, end := c.begin(ctx, req)
	defer end()
	q, err := c.need(tenant, req.GetQueue())
	if err != nil {
		return nil, err
	}
	resp := &queuev1.ListDeadLettersResponse{}
	for _, dl := range q.dead {
		if dl.GetRedrivenAt() != nil && !req.GetIncludeRedriven() {
			continue
		}
		listed := proto.CloneOf(dl)
		listed.Payload = nil
		resp.DeadLetters = append(resp.DeadLetters, listed)
	}
	return resp, nil
}

func (c *control) GetDeadLetter(ctx context.Context, req *queuev1.GetDeadLetterRequest) (*queuev1.GetDeadLetterResponse, error) {
	tenant, end := c.begin(ctx, req)
	defer end()
	q, err := c.need(tenant, req.GetQueue())
	if err != nil {
		return nil, err
	}
	for _, dl := range q.dead {
		if dl.GetId() == req.GetId() {
			return &queuev1.GetDeadLetterResponse{DeadLetter: dl}, nil
		}
	}
	return nil, apierr.NotFound("DEAD_LETTER_NOT_FOUND", "there is no such dead letter")
}

func (c *control) RedriveDeadLetters(ctx context.Context, req *queuev1.RedriveDeadLettersRequest) (*queuev1.RedriveDeadLettersResponse, error) {
	tenant, end := c.begin(ctx, req)
	defer end()
	q, err := c.need(tenant, req.GetQueue())
	if err != nil {
		return nil, err
	}
	resp := &queuev1.RedriveDeadLettersResponse{}
	for _, id := range req.GetIds() {
		i := slices.IndexFunc(q.dead, func(dl *queuev1.DeadLetter) bool { return dl.GetId() == id })
		switch {
		case i < 0:
			resp.NotFound = append(resp.NotFound, id)
		case q.dead[i].GetRedrivenAt() != nil:
			resp.AlreadyRedriven++
		default:
			dl := q.dead[i]
			q.append(&queuev1.PushItem{Partition: dl.GetPartition(), Payload: dl.GetPayload(), ContentType: dl.GetContentType(), Headers: dl.GetHeaders(), ClientId: dl.GetClientId()})
			dl.RedrivenAt = timestamppb.Now()
			resp.Redriven++
		}
	}
	c.d.wake()
	return resp, nil
}

func (c *control) PurgeDeadLetters(ctx context.Context, req *queuev1.PurgeDeadLettersRequest) (*queuev1.PurgeDeadLettersResponse, error) {
	tenant, end := c.begin(ctx, req)
	defer end()
	q, err := c.need(tenant, req.GetQueue())
	if err != nil {
		return nil, err
	}
	resp, left := &queuev1.PurgeDeadLettersResponse{}, []*queuev1.DeadLetter{}
	limit := req.GetLimit()
	if limit == 0 {
		limit = 1000
	}
	for _, dl := range q.dead {
		named := slices.Contains(req.GetIds(), dl.GetId())
		chosen := named || req.GetAll() || req.GetGroup() != "" && req.GetGroup() == dl.GetGroup()
		if before := req.GetFailedBefore(); before != nil && !dl.GetFailedAt().AsTime().Before(before.AsTime()) {
			chosen = false
		}
		redriven := dl.GetRedrivenAt() != nil && !req.GetIncludeRedriven()
		switch {
		case chosen && !redriven && resp.GetPurged() < limit:
			resp.Purged++
			continue
		case chosen && !redriven:
			resp.More = true
		case named:
			resp.AlreadyRedriven++
		}
		left = append(left, dl)
	}
	for _, id := range req.GetIds() {
		if !slices.ContainsFunc(q.dead, func(dl *queuev1.DeadLetter) bool { return dl.GetId() == id }) {
			resp.NotFound = append(resp.NotFound, id)
		}
	}
	q.dead = left
	return resp, nil
}
