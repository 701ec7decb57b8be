package demo

import (
	"fmt"
	"io"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/jedib0t/go-pretty/v6/table"

	"postrider.dev/tests/invariant"
)

// Report prints what a run did and whether each promise held; it returns how many did not.
func (o *Outcome) Report(out io.Writer, title string, messages int, groups []string) int {
	_, _ = fmt.Fprintf(out, "\n%s: %d messages, %d MB, %d groups, %.1f s\n", title, messages, o.Bytes>>20, len(groups), o.Took.Seconds())
	t := table.NewWriter()
	t.SetStyle(table.StyleLight)
	t.AppendHeader(table.Row{"verb", "messages/s", "calls", "p50", "p99"})
	t.AppendRow(row("push (host A)", rate(messages, o.PushTook), o.Push))
	t.AppendRow(row("pop (host B)", rate(messages*len(groups), o.Took), o.Pop))
	t.AppendRow(row("ack (host B)", rate(messages*len(groups), o.Took), o.Ack))
	_, _ = fmt.Fprintln(out, t.Render())
	broken := 0
	for _, c := range o.checks(messages, groups) {
		mark := "ok  "
		if c.problem != "" {
			mark = "FAIL"
			broken++
		}
		_, _ = fmt.Fprintf(out, "  %s %s%s\n", mark, c.promise, c.problem)
	}
	return broken
}

func row(verb, rate string, h *hdrhistogram.Histogram) table.Row {
	at := func(q float64) string { return fmt.Sprintf("%.1f ms", float64(h.ValueAtQuantile(q))/1000) }
	return table.Row{verb, rate, h.TotalCount(), at(50), at(99)}
}

func rate(n int, d time.Duration) string { return fmt.Sprintf("%.0f", float64(n)/d.Seconds()) }

type check struct{ promise, problem string }

func (o *Outcome) checks(messages int, groups []string) []check {
	events := o.Recorder.Events()
	list := []check{{promise: fmt.Sprintf("every payload came back as the same JSON (%d redeliveries among them)", o.Redelivered)}}
	if o.PayloadsChanged > 0 {
		list[0].problem = fmt.Sprintf(": %d did not", o.PayloadsChanged)
	}
	once := check{promise: "each message acked exactly once in each group"}
	for _, g := range groups {
		acked := map[string]int{}
		for _, e := range events {
			if a, ok := e.(invariant.Ack); ok && a.Group == g && a.Lease != "" {
				acked[a.ID]++
			}
		}
		for id, n := range acked {
			if n > 1 {
				once.problem = fmt.Sprintf(": message %s was acked %d times in %s", id, n, g)
			}
		}
		if len(acked) > messages {
			once.problem = fmt.Sprintf(": %d messages were acked in %s, of %d", len(acked), g, messages)
		}
	}
	list = append(list, once)
	for _, c := range []struct {
		promise string
		check   invariant.Check
	}{
		{"nothing acknowledged was lost", invariant.NothingLost},
		{"nothing acked came again", invariant.NothingAckedReturns},
		{"in order within each partition", invariant.OrderPerPartition},
		{"in order per publisher", invariant.OrderPerPublisher},
		{"one holder of a partition at a time", invariant.OneHolder},
		{"each message at one place, with its content", all(invariant.OnePlaceEach, invariant.OneMessageEach, invariant.ContentIntact)},
	} {
		k := check{promise: c.promise}
		if violations := c.check(events); len(violations) > 0 {
			k.problem = fmt.Sprintf(": %d violations, the first: %v", len(violations), violations[0])
		}
		list = append(list, k)
	}
	return list
}

func all(checks ...invariant.Check) invariant.Check {
	return func(events []invariant.Event) []invariant.Violation { return invariant.All(events, checks...) }
}
