package server

import (
	"context"
	"strconv"

	"github.com/google/uuid"

	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/window"
	"postrider.dev/services/dispatcher/internal/store"
)

// trace tells where a message of the log stands in the groups.
func (s *Queues) trace(ctx context.Context, q store.Queue, text string, req *queuev1.LookupMessageRequest) (*queuev1.LookupMessageResponse, error) {
	id, err := message.ParseID(text)
	if err != nil {
		return nil, wireError(err)
	}
	events := eventsOf(q, id, req)
	page, err := events.page(req)
	if err != nil {
		return nil, wireError(err)
	}
	t, err := s.control.Trace(ctx, q, id, page)
	if err != nil {
		return nil, wireError(err)
	}
	resp := foundOf(q, t.Found)
	if resp.Trimmed = t.Trimmed; t.Trimmed {
		resp.CreatedAt = nil
	}
	for _, g := range t.Groups {
		resp.Traces = append(resp.Traces, traceOf(g, id.Shard, t.Trimmed))
	}
	if t.Events.Next != 0 {
		resp.NextPageToken = events.next(strconv.FormatInt(t.Events.Next, 10))
	}
	for i := range t.Events.Events {
		resp.TraceEvents = append(resp.TraceEvents, eventOf(&t.Events.Events[i]))
	}
	return resp, nil
}

func traceOf(g store.GroupTrace, shard message.ShardID, trimmed bool) *queuev1.MessageTrace {
	t := &queuev1.MessageTrace{Group: g.Group, State: stateOf(g, trimmed), Failures: int32(g.Failures), LastError: g.LastError, Attempt: int32(g.Attempt)}
	switch t.GetState() {
	case queuev1.TraceState_TRACE_STATE_LEASED:
		t.Consumer, t.LeaseExpiresAt = consumerOf(g.Holder), instant(g.ExpiresAt.Time())
	case queuev1.TraceState_TRACE_STATE_WAITING:
		t.AvailableAt = instant(g.RetryAt.Time())
	case queuev1.TraceState_TRACE_STATE_BLOCKED:
		t.BlockedBy = message.ID{Shard: shard, Offset: g.BlockedBy}.String()
	default:
	}
	if l := g.Letter; l != nil {
		t.DeadLetterId, t.DeadLetterReason = uuid.UUID(l.ID).String(), deadReason(store.DeadLetter{Reason: l.Reason, LastError: l.LastError})
	}
	return t
}

func stateOf(g store.GroupTrace, trimmed bool) queuev1.TraceState {
	switch {
	case g.Place == window.Leased:
		return queuev1.TraceState_TRACE_STATE_LEASED
	case g.Letter != nil && (trimmed || g.Place == window.Settled):
		return queuev1.TraceState_TRACE_STATE_DEAD_LETTERED
	case trimmed:
		return queuev1.TraceState_TRACE_STATE_TRIMMED
	case g.Place == window.Settled:
		return queuev1.TraceState_TRACE_STATE_SETTLED
	case g.Place == window.Waiting:
		return queuev1.TraceState_TRACE_STATE_WAITING
	case g.Place == window.Blocked:
		return queuev1.TraceState_TRACE_STATE_BLOCKED
	}
	return queuev1.TraceState_TRACE_STATE_READY
}
