// Package trace holds what a queue with the option trace remembers of its messages: events, and the bytes they are kept as. It is pure.
//
// Events of a change of a group are written by the statement that makes the change, one row for each page of PageLen neighbouring offsets, and they are
// found again by the page. That a message was pushed is not an event: the log says so, and trimming leaves a note of it.
package trace

import (
	"time"

	"postrider.dev/services/dispatcher/internal/domain/message"
)

// Kind is what happened. The numbers are stored: they never change.
type Kind uint8

// The kinds.
const (
	Pushed       Kind = 1  // it is in the log
	Due          Kind = 2  // it was accepted for later, and its time has come
	Delivered    Kind = 3  // leased to a consumer
	Acked        Kind = 4  // settled for good
	Nacked       Kind = 5  // failed, and comes again unless a dead letter follows
	Rejected     Kind = 6  // a dead letter follows
	DeadLettered Kind = 7  // settled, and kept as a dead letter
	Expired      Kind = 8  // its lease ran out and was taken back
	Released     Kind = 9  // its consumer gave it back, or never got it
	Returned     Kind = 10 // came back uncharged: one before it in its partition failed
	Sought       Kind = 11 // the group, or this partition of it, was moved
	Redriven     Kind = 12 // its dead letter was appended to the log again
	Trimmed      Kind = 13 // the log does not hold it any more
	Deleted      Kind = 14 // taken away by request
	lastKind          = Deleted
)

// PageLen is how many neighbouring offsets share rows.
const PageLen = 256

// MaxText bounds the reason or name kept with an event; what is longer is cut.
const MaxText = 256

// Event is what happened to one message.
type Event struct {
	Kind    Kind
	Offset  message.Offset // of Sought: where the group stands
	Epoch   uint64         // of the lease; 0: there was none
	Attempt int            // of Delivered
	After   time.Duration  // Delivered: how long the lease is; Nacked, Expired: when it comes again. Counted from the event
	Text    string         // Delivered: the holder; Due: the pending id; else the reason
	Hash    uint64         // of Sought: the partition, 0 for all of the group
}

// Page is the page that holds an offset.
func Page(at message.Offset) int64 { return int64(at / PageLen) }

// OfAll says that the event is about more messages than its page holds.
func (k Kind) OfAll() bool { return k == Sought }
