// Package invariant checks recorded histories of a fleet against the promises of Postrider: our "fsck".
//
// A history is what clients saw: each operation with the instant it was sent and the instant its answer arrived, on one monotonic clock. A check
// never looks at the servers' word about themselves. Where the clients cannot know an order (two operations that overlap), a check gives the
// servers the benefit of the doubt; so a reported violation is one.
package invariant

import (
	"fmt"
	"strings"
	"sync"
	"time"
)

// Instant is a reading of the recorder's monotonic clock.
type Instant = time.Duration

// Push is an acknowledged push of one message.
type Push struct {
	// Tenant is who pushed; Queue is unique over all tenants of the history.
	Tenant           string
	Queue, Partition string
	// Content identifies the message by what the producer put in; unique in a history.
	Content string
	// Digest is of the payload.
	Digest uint64
	// ID and Offset are the answer's.
	ID     string
	Offset int64
	// Buffered says that the answer was that the message waits on a disk: ID is a pending id that no delivery has, and there is no Offset yet.
	Buffered bool
	// Publisher and Seq say which producer sent it, as its how-manieth.
	Publisher      string
	Seq            int64
	Sent, Answered Instant
}

// Delivery is one message handed out by a pop.
type Delivery struct {
	Tenant                  string // who popped
	Queue, Group, Partition string
	ID, Content             string
	Digest                  uint64
	Offset                  int64
	Attempt                 int32
	Lease                   string
	Shared                  bool    // the group's mode: no order is promised
	Sent, Answered          Instant // of the pop
}

// Ack is an ack that was answered as settled.
type Ack struct {
	Queue, Group   string
	ID, Lease      string
	Content        string // as it was delivered
	Sent, Answered Instant
}

// DeadLetter is a message found among the dead letters at the end.
type DeadLetter struct{ Queue, Group, ID string }

// Event is one thing that clients saw.
type Event interface{ event() }

func (Push) event()       {}
func (Delivery) event()   {}
func (Ack) event()        {}
func (DeadLetter) event() {}

// History collects events from many goroutines.
type History struct {
	mu     sync.Mutex // guards events
	events []Event
}

// Add records events.
func (h *History) Add(events ...Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.events = append(h.events, events...)
}

// Events returns what was recorded so far.
func (h *History) Events() []Event {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]Event(nil), h.events...)
}

// Violation is a broken promise and the events that show it: the smallest slice of the history that does.
type Violation struct {
	Invariant string
	Text      string
	Events    []Event
}

// String tells the violation with its events, one a line.
func (v Violation) String() string {
	var b strings.Builder
	b.WriteString(v.Invariant + ": " + v.Text)
	for _, e := range v.Events {
		_, _ = fmt.Fprintf(&b, "\n    %T %+v", e, e)
	}
	return b.String()
}

// log is a history sorted out by what the checks need.
type log struct {
	pushes      map[string]Push    // by message id
	buffered    []Push             // known by their content alone
	settled     map[[3]string]bool // by queue, group, content: what was acked
	byPartition map[[2]string][]Push
	deliveries  map[[3]string][]Delivery // by queue, group, message id
	acks        map[[3]string][]Ack
	dead        map[[3]string]bool
	groups      map[[2]string]bool // queue, group
	shared      map[[2]string]bool // those of them that promise no order
}

func sortOut(events []Event) *log {
	l := &log{
		pushes: map[string]Push{}, byPartition: map[[2]string][]Push{}, deliveries: map[[3]string][]Delivery{},
		acks: map[[3]string][]Ack{}, dead: map[[3]string]bool{}, settled: map[[3]string]bool{}, groups: map[[2]string]bool{}, shared: map[[2]string]bool{},
	}
	for _, e := range events {
		switch e := e.(type) {
		case Push:
			if e.Buffered {
				l.buffered = append(l.buffered, e)
				continue
			}
			l.pushes[e.ID] = e
			key := [2]string{e.Queue, e.Partition}
			l.byPartition[key] = append(l.byPartition[key], e)
		case Delivery:
			key := [3]string{e.Queue, e.Group, e.ID}
			l.deliveries[key] = append(l.deliveries[key], e)
			l.groups[[2]string{e.Queue, e.Group}] = true
			if e.Shared {
				l.shared[[2]string{e.Queue, e.Group}] = true
			}
		case Ack:
			key := [3]string{e.Queue, e.Group, e.ID}
			l.acks[key] = append(l.acks[key], e)
			l.settled[[3]string{e.Queue, e.Group, e.Content}] = true
			l.groups[[2]string{e.Queue, e.Group}] = true
		case DeadLetter:
			l.dead[[3]string{e.Queue, e.Group, e.ID}] = true
		}
	}
	return l
}
