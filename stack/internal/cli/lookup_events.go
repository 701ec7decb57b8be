package cli

import (
	"context"
	"fmt"
	"strings"

	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	postrider "postrider.dev/sdk"
)

// mostEvents is how many events of one message are shown; what there is beyond is left to who asks by itself.
const mostEvents = 10_000

// moreEvents adds the events that the first answer had no room for.
func moreEvents(ctx context.Context, c *postrider.Client, queue, group string, m *queuev1.LookupMessageResponse) error {
	for m.GetNextPageToken() != "" && len(m.GetTraceEvents()) < mostEvents {
		events, next, err := c.TraceEvents(ctx, queue, m.GetMessageId(), group, m.GetNextPageToken())
		if err != nil {
			return err
		}
		m.TraceEvents, m.NextPageToken = append(m.TraceEvents, events...), next
	}
	return nil
}

func (g *globals) printEvents(events []*queuev1.TraceEvent) error {
	if len(events) == 0 {
		return nil
	}
	rows := [][]any{}
	for _, e := range events {
		kind := strings.ToLower(strings.TrimPrefix(e.GetKind().String(), "TRACE_EVENT_KIND_"))
		rows = append(rows, []any{when(e.GetAt().AsTime()), strings.ReplaceAll(kind, "_", " "), e.GetGroup(), eventDetail(e)})
	}
	return g.printTable("", []string{"At", "Event", "Group", ""}, rows)
}

// eventDetail says what there is to say of an event.
func eventDetail(e *queuev1.TraceEvent) string {
	var parts []string
	if e.GetKind() == queuev1.TraceEventKind_TRACE_EVENT_KIND_DELIVERED {
		parts = append(parts, fmt.Sprintf("attempt %d to %q", e.GetAttempt(), e.GetConsumer()))
	}
	if e.GetLeaseEpoch() != 0 {
		parts = append(parts, fmt.Sprintf("lease %d", e.GetLeaseEpoch()))
	}
	if e.GetUntil() != nil {
		parts = append(parts, "until "+when(e.GetUntil().AsTime()))
	}
	if e.GetReason() != "" {
		parts = append(parts, "reason: "+e.GetReason())
	}
	if e.GetPendingId() != "" {
		parts = append(parts, "waited as "+e.GetPendingId())
	}
	if e.ToOffset != nil {
		parts = append(parts, fmt.Sprintf("to offset %d", e.GetToOffset()))
	}
	return strings.Join(parts, "; ")
}
