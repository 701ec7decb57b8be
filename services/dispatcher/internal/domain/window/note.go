package window

import (
	"time"

	"postrider.dev/services/dispatcher/internal/domain/trace"
)

// note records what a plan does to a message, where the queue wants that. The store writes the events with the change: what is not committed is not told.
func (p *planner) note(kind trace.Kind, off Offset, e trace.Event) {
	if !p.v.policy.Trace {
		return
	}
	e.Kind, e.Offset = kind, off
	p.change.Events = append(p.change.Events, e)
}

// noteOf is note of a message of a lease.
func (p *planner) noteOf(kind trace.Kind, l *leaseState, i int, after time.Duration, text string) {
	p.note(kind, l.entries[i].off, trace.Event{Epoch: uint64(l.epoch), After: after, Text: text})
}

// noteGrant records a lease.
func (p *planner) noteGrant(epoch Epoch, length time.Duration, holder string, messages []Message) {
	if !p.v.policy.Trace {
		return
	}
	for _, m := range messages {
		p.note(trace.Delivered, m.Offset, trace.Event{Epoch: uint64(epoch), Attempt: m.Attempt, After: length, Text: holder})
	}
}

// noteSettleAt records a verdict that came without a lease; l holds the message, if any does.
func (p *planner) noteSettleAt(r *SettleAt, l *leaseState, kind trace.Kind) {
	e := trace.Event{Text: r.Reason}
	if l != nil {
		e.Epoch = uint64(l.epoch)
	}
	if r.Verdict == Reject {
		p.note(trace.Rejected, r.Offset, e)
		p.noteDead(r.Offset, DeadRejected)
		return
	}
	p.note(kind, r.Offset, e)
}

// noteDead records a dead letter.
func (p *planner) noteDead(off Offset, reason DeadReason) {
	p.note(trace.DeadLettered, off, trace.Event{Text: reason.Code()})
}

// Code is the reason as it is stored; empty if it is none.
func (r DeadReason) Code() string {
	switch r {
	case DeadAttempts:
		return "attempts"
	case DeadExpired:
		return "expired"
	case DeadRejected:
		return "rejected"
	case DeadTrimmed:
		return "trimmed"
	}
	return ""
}
