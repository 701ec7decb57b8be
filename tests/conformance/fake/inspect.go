package fake

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"postrider.dev/pkg/apierr"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
)

func (c *control) PeekMessages(ctx context.Context, req *queuev1.PeekMessagesRequest) (*queuev1.PeekMessagesResponse, error) {
	tenant, end := c.begin(ctx, req)
	defer end()
	q, err := c.need(tenant, req.GetQueue())
	if err != nil {
		return nil, err
	}
	if req.GetShard() > 0 {
		return nil, apierr.InvalidArgument("OUT_OF_RANGE", "shard", "the queue has fewer")
	}
	limit := int(req.GetLimit())
	if limit == 0 {
		limit = 10
	}
	look := slices.Clone(q.messages)
	from, _ := strconv.ParseInt(req.GetFrom(), 10, 64)
	look = slices.DeleteFunc(look, func(m *message) bool {
		other := m.item.GetPartition() != req.GetPartition() || m.item.GetPriority() != req.GetPriority()
		return m.hidden || m.offset < from || req.GetPartition() != "" && other
	})
	head := int64(len(q.messages))
	resp := &queuev1.PeekMessagesResponse{FromOffset: from, NextOffset: max(from, head), Head: head}
	if over := len(look) - limit; over > 0 && req.GetFrom() == "latest" {
		look = look[over:]
		resp.FromOffset = look[0].offset
	}
	size := 0
	for _, m := range look {
		size += proto.Size(m.item)
		if n := len(resp.GetMessages()); n == limit || n > 0 && req.GetMaxBytes() > 0 && size > int(req.GetMaxBytes()) {
			resp.NextOffset = m.offset
			break
		}
		resp.Messages = append(resp.Messages, &queuev1.PeekedMessage{
			MessageId: m.id, Partition: m.item.GetPartition(), Offset: m.offset, Payload: m.item.GetPayload(), ContentType: m.item.GetContentType(),
			Headers: m.item.GetHeaders(), ClientId: m.item.GetClientId(), CreatedAt: timestamppb.New(m.createdAt),
			Priority: m.item.GetPriority(),
		})
	}
	return resp, nil
}

// trace adds where the message stands in the groups.
func (q *queue) trace(only string, found *queuev1.LookupMessageResponse) error {
	if only != "" && q.groups[only] == nil {
		return apierr.NotFound("GROUP_NOT_FOUND", "there is no group of that name")
	}
	found.TraceEvents = append(found.TraceEvents, &queuev1.TraceEvent{At: found.GetCreatedAt(), Kind: queuev1.TraceEventKind_TRACE_EVENT_KIND_PUSHED})
	found.TraceEvents = append(found.TraceEvents, q.events[found.GetOffset()]...)
	for _, name := range slices.Sorted(maps.Keys(q.groups)) {
		if only == "" || only == name {
			found.Traces = append(found.Traces, q.traceIn(name, found))
		}
	}
	return nil
}

// note records an event, where the queue wants that; the suite has one group.
func (q *queue) note(m *message, kind queuev1.TraceEventKind, reason string) {
	if q.options.GetTrace() {
		q.events[m.offset] = append(q.events[m.offset], &queuev1.TraceEvent{At: timestamppb.Now(), Kind: kind, Group: "default", Reason: reason})
	}
}

func (q *queue) traceIn(name string, found *queuev1.LookupMessageResponse) *queuev1.MessageTrace {
	g, at := q.groups[name], found.GetOffset()
	t := &queuev1.MessageTrace{Group: name, State: queuev1.TraceState_TRACE_STATE_READY, Failures: g.fails[at]}
	if g.settled[at] {
		t.State = queuev1.TraceState_TRACE_STATE_SETTLED
		for _, d := range q.dead {
			if d.GetGroup() == name && d.GetMessageId() == found.GetMessageId() {
				t.State, t.DeadLetterId, t.DeadLetterReason = queuev1.TraceState_TRACE_STATE_DEAD_LETTERED, d.GetId(), d.GetReason()
			}
		}
		return t
	}
	if g.leased[at] != "" {
		t.State, t.Attempt = queuev1.TraceState_TRACE_STATE_LEASED, g.tries[at]
		return t
	}
	if at := q.ripe(g, q.messages[at]); at.After(time.Now()) {
		t.State, t.AvailableAt = queuev1.TraceState_TRACE_STATE_WAITING, timestamppb.New(at)
		return t
	}
	for offset := range g.leased {
		if m := q.messages[offset]; m.item.GetPartition() == found.GetPartition() {
			t.State, t.BlockedBy = queuev1.TraceState_TRACE_STATE_BLOCKED, m.id
		}
	}
	return t
}
