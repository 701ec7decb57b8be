package chaos

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"

	"postrider.dev/tests/invariant"
)

// A run of at least provingLength proves something if it had this much. Shorter ones only show that the machinery works.
const (
	provingLength = 2 * time.Minute
	leastFaults   = 50
	leastKinds    = 6
	leastOps      = 100_000
)

// Report is what happened in a run.
type Report struct {
	Seed   uint64
	Length time.Duration

	mu     sync.Mutex // guards faults
	faults map[Kind]int

	pushes, buffered, deliveries, acks int

	refused int64 // writes of a spool by its full disk
}

// struck counts a fault that was done and mended.
func (r *Report) struck(k Kind) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.faults[k]++
}

// read counts what the clients saw.
func (r *Report) read(events []invariant.Event) {
	for _, e := range events {
		switch e := e.(type) {
		case invariant.Push:
			r.pushes++
			if e.Buffered {
				r.buffered++
			}
		case invariant.Delivery:
			r.deliveries++
		case invariant.Ack:
			r.acks++
		}
	}
}

// Counts says why the run proves too little, or nothing.
func (r *Report) Counts() error {
	total := 0
	for _, n := range r.faults {
		total += n
	}
	if r.Length >= provingLength && (total < leastFaults || len(r.faults) < leastKinds || r.pushes+r.acks < leastOps) {
		return fmt.Errorf("the run does not count: %d faults of %d kinds and %d acknowledged operations; wanted are %d, %d and %d",
			total, len(r.faults), r.pushes+r.acks, leastFaults, leastKinds, leastOps)
	}
	if r.Length >= provingLength && r.refused == 0 {
		return errors.New("the run does not count: no spool met its full disk")
	}
	return nil
}

// String is a table for people.
func (r *Report) String() string {
	t := table.NewWriter()
	t.SetStyle(table.StyleLight)
	t.AppendHeader(table.Row{"fault", "times"})
	total := 0
	for _, k := range order() {
		t.AppendRow(table.Row{k, r.faults[k]})
		total += r.faults[k]
	}
	t.AppendFooter(table.Row{"in all", total})
	return fmt.Sprintf("%s\nseed %d, %s: %d messages pushed (%d of them buffered, %d writes refused by a full disk), %d handed out, %d acked",
		t.Render(), r.Seed, r.Length, r.pushes, r.buffered, r.refused, r.deliveries, r.acks)
}
