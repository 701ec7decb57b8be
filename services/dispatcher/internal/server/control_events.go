package server

import (
	"strconv"
	"strings"

	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/dispatcher/internal/domain/invalid"
	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/trace"
	"postrider.dev/services/dispatcher/internal/store"
)

const (
	defaultEvents = 100
	maxEvents     = 1_000
)

// checkEvents accepts a page of events, with trace.
func checkEvents(req *queuev1.LookupMessageRequest) error {
	switch {
	case req.GetPageSize() < 0 || req.GetPageSize() > maxEvents:
		return invalid.New(invalid.OutOfRange, "page_size", "is %d, must be 1 to %d", req.GetPageSize(), maxEvents)
	case !req.GetTrace() && req.GetPageSize() != 0:
		return invalid.New(invalid.OutOfRange, "page_size", "goes with trace only")
	case !req.GetTrace() && req.GetPageToken() != "":
		return invalid.New(invalid.OutOfRange, "page_token", "goes with trace only")
	}
	return nil
}

// eventListing is the events of one message.
type eventListing struct{ listing }

func eventsOf(q store.Queue, id message.ID, req *queuev1.LookupMessageRequest) eventListing {
	return eventListing{listing{"trace events", string(q.Tenant), q.Name, id.String(), req.GetGroup()}}
}

// page says which events a request that passed checkEvents wants.
func (l eventListing) page(req *queuev1.LookupMessageRequest) (store.TracePage, error) {
	page := store.TracePage{Group: req.GetGroup(), Limit: int(req.GetPageSize())}
	if page.Limit == 0 {
		page.Limit = defaultEvents
	}
	cursor, err := l.cursor(req.GetPageToken())
	if err != nil || cursor == "" {
		return page, err
	}
	if page.After, err = strconv.ParseInt(cursor, 10, 64); err != nil || page.After <= 0 {
		return page, badToken("is damaged")
	}
	return page, nil
}

func eventOf(e *store.TraceEvent) *queuev1.TraceEvent {
	out := &queuev1.TraceEvent{
		At: instant(e.At.UTC()), Kind: kindOf(e.Kind), Group: e.Group, LeaseEpoch: int64(e.Epoch), Attempt: int32(e.Attempt),
	}
	switch e.Kind {
	case trace.Delivered:
		out.Consumer = consumerOf(e.Text)
	case trace.Due:
		out.PendingId = e.Text
	case trace.Sought:
		out.ToOffset = new(int64(e.Offset))
	default:
		out.Reason = e.Text
	}
	if e.After > 0 {
		out.Until = instant(e.At.Add(e.After).UTC())
	}
	return out
}

// consumerOf is a lease's holder without what tells the dispatcher.
func consumerOf(holder string) string {
	if i := strings.LastIndexByte(holder, '@'); i >= 0 {
		return holder[:i]
	}
	return holder
}

func kindOf(k trace.Kind) queuev1.TraceEventKind {
	switch k {
	case trace.Pushed:
		return queuev1.TraceEventKind_TRACE_EVENT_KIND_PUSHED
	case trace.Due:
		return queuev1.TraceEventKind_TRACE_EVENT_KIND_DUE
	case trace.Delivered:
		return queuev1.TraceEventKind_TRACE_EVENT_KIND_DELIVERED
	case trace.Acked:
		return queuev1.TraceEventKind_TRACE_EVENT_KIND_ACKED
	case trace.Nacked:
		return queuev1.TraceEventKind_TRACE_EVENT_KIND_NACKED
	case trace.Rejected:
		return queuev1.TraceEventKind_TRACE_EVENT_KIND_REJECTED
	case trace.DeadLettered:
		return queuev1.TraceEventKind_TRACE_EVENT_KIND_DEAD_LETTERED
	case trace.Expired:
		return queuev1.TraceEventKind_TRACE_EVENT_KIND_EXPIRED
	case trace.Released:
		return queuev1.TraceEventKind_TRACE_EVENT_KIND_RELEASED
	case trace.Returned:
		return queuev1.TraceEventKind_TRACE_EVENT_KIND_RETURNED
	case trace.Sought:
		return queuev1.TraceEventKind_TRACE_EVENT_KIND_SOUGHT
	case trace.Redriven:
		return queuev1.TraceEventKind_TRACE_EVENT_KIND_REDRIVEN
	case trace.Deleted:
		return queuev1.TraceEventKind_TRACE_EVENT_KIND_DELETED
	case trace.Trimmed:
		return queuev1.TraceEventKind_TRACE_EVENT_KIND_TRIMMED
	}
	return queuev1.TraceEventKind_TRACE_EVENT_KIND_UNSPECIFIED
}
