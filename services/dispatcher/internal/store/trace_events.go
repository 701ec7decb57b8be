package store

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"postrider.dev/pkg/pg"
	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/queue"
	"postrider.dev/services/dispatcher/internal/domain/trace"
	"postrider.dev/services/dispatcher/internal/domain/window"
)

// traceScan is how many rows one look at the events of a message reads at most.
const traceScan = 2_000

// TraceEvent is an event as it was recorded.
type TraceEvent struct {
	trace.Event

	At    time.Time
	Group string // empty: of no group
}

// TracePage says which events of a message are wanted.
type TracePage struct {
	Group string // empty: of all
	After int64  // TraceEvents.Next of the page before; 0: from the first
	Limit int    // about how many: those that were recorded together are not parted
}

// TraceEvents are events of one message, in their order.
type TraceEvents struct {
	Events []TraceEvent
	Next   int64 // where to go on, also where there are no events; 0: there are no more
}

// traceEvents reads what was recorded of a message. One call reads a bounded number of rows.
func (c *Control) traceEvents(ctx context.Context, q Queue, of *Traced, page TracePage) (out TraceEvents, err error) {
	if page.After == 0 {
		if err := c.tracePushed(ctx, of, &out); err != nil {
			return out, err
		}
	}
	rows, err := c.on().Query(ctx, c.s.sql.text("trace_events"),
		tracePlace(of.Shard, trace.Page(of.Offset)), page.After, traceScan, tracePlace(of.Shard, trace.WholeShard))
	if err != nil {
		return out, fmt.Errorf("read trace events: %w", err)
	}
	read, err := pgx.CollectRows(rows, pgx.RowToStructByPos[traceRow])
	if err != nil {
		return out, fmt.Errorf("read trace events: %w", err)
	}
	for i := range read {
		r := &read[i]
		if len(out.Events) >= page.Limit {
			return out, nil
		}
		out.Next = r.ID
		if r.Group != "" && page.Group != "" && r.Group != page.Group {
			continue
		}
		if err := r.tell(q, of, &out); err != nil {
			return out, err
		}
	}
	if len(read) < traceScan {
		out.Next = 0
	}
	return out, nil
}

// traceRow is one row of trace_events.
type traceRow struct {
	ID     int64
	At     time.Time
	Group  string
	Events []byte
	From   message.Offset // of what was trimmed
	To     message.Offset
}

// tell adds the row's events about a message.
func (r *traceRow) tell(q Queue, of *Traced, out *TraceEvents) error {
	if r.From <= of.Offset && of.Offset < r.To {
		out.Events = append(out.Events, TraceEvent{Event: trace.Event{Kind: trace.Trimmed, Offset: of.Offset}, At: r.At})
	}
	events, err := trace.Of(r.Events, of.Offset)
	if err != nil {
		return fmt.Errorf("trace event %d: %w", r.ID, err)
	}
	for _, e := range events {
		if e.Kind == trace.Sought && e.Hash != 0 && !of.Trimmed && e.Hash != q.Hash(of.Partition) {
			continue // another partition was moved
		}
		out.Events = append(out.Events, TraceEvent{Event: e, At: r.At, Group: r.Group})
	}
	return nil
}

// tracePushed begins with the push: the log tells of it, or what was noted when it was trimmed.
func (c *Control) tracePushed(ctx context.Context, of *Traced, out *TraceEvents) error {
	at := of.CreatedAt
	if of.Trimmed {
		err := c.on().QueryRow(ctx, c.s.sql.text("trace_pushed"), tracePlace(of.Shard, trace.Page(of.Offset)), of.Offset).Scan(&at)
		if pg.IsNoRows(err) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read trace events: %w", err)
		}
	}
	out.Events = append(out.Events, TraceEvent{Event: trace.Event{Kind: trace.Pushed, Offset: of.Offset}, At: at})
	return nil
}

func tracePlace(shard message.ShardID, page int64) [16]byte {
	return pairKey(window.GroupShardID(shard), uint64(page))
}

// noted are events that are not of a change of a group-shard.
type noted struct {
	shard  message.ShardID
	group  string
	events []trace.Event
}

// notedArgs are the arguments of trace_put.
func notedArgs(list []noted) []any {
	var places [][16]byte
	var groups []string
	var events [][]byte
	for _, n := range list {
		for _, row := range trace.Rows(n.events) {
			places, groups, events = append(places, tracePlace(n.shard, row.Page)), append(groups, n.group), append(events, row.Bytes)
		}
	}
	return []any{places, groups, events}
}

// appendEventArgs adds what a change tells of the messages. Of an encrypted queue no reason is written in clear.
func appendEventArgs(args []any, c *window.Change) []any {
	if len(c.Events) == 0 {
		return args
	}
	for i := range c.Events {
		switch e := &c.Events[i]; {
		case c.Private && (e.Kind == trace.Nacked || e.Kind == trace.Rejected):
			e.Text = ""
		default:
			e.Text = cleanText(e.Text)
		}
	}
	rows := trace.Rows(c.Events)
	pages, events := make([]int64, len(rows)), make([][]byte, len(rows))
	for i, r := range rows {
		pages[i], events[i] = r.Page, r.Bytes
	}
	return append(args, pages, events)
}

// traceRedriven notes that dead letters were appended again, where the queue is traced and the messages they were made of are its own.
func (c *Control) traceRedriven(ctx context.Context, tx pg.Tx, q Queue, ids []DeadLetterID) error {
	if !q.Config.Trace || len(ids) == 0 {
		return nil
	}
	rows, err := tx.Query(ctx, c.s.sql.text("trace_letters"), ids, q.Shards)
	if err != nil {
		return fmt.Errorf("read dead letters: %w", err)
	}
	var list []noted
	var n noted
	var at message.Offset
	_, err = pgx.ForEachRow(rows, []any{&n.shard, &at, &n.group}, func() error {
		if at < 0 { // it never was in the log
			return nil
		}
		list = append(list, noted{shard: n.shard, group: n.group, events: []trace.Event{{Kind: trace.Redriven, Offset: at}}})
		return nil
	})
	if err != nil {
		return fmt.Errorf("read dead letters: %w", err)
	}
	if len(list) == 0 {
		return nil
	}
	return c.exec(ctx, tx, "trace_put", notedArgs(list)...)
}

// TrimTraces forgets up to most rows of events that are older than queue.TraceKept, and returns how many.
func (c *Control) TrimTraces(ctx context.Context, most int) (int, error) {
	tag, err := c.s.db.Exec(ctx, c.s.sql.text("trim_traces"), queue.TraceKept, most)
	if err != nil {
		return 0, fmt.Errorf("trim trace events: %w", err)
	}
	return int(tag.RowsAffected()), nil
}
