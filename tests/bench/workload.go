package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Workload is one thing to measure.
type Workload struct {
	Name string
	// Class says what an acknowledged message survives.
	Class string
	// Callers run side by side; each call of Op does one round trip and says how many messages it moved.
	Callers int
	// Prepare runs before each round, untimed. nil: nothing.
	Prepare func(ctx context.Context) error
	Op      func(ctx context.Context, caller int) (messages int, err error)
}

// Sample is one round of a workload.
type Sample struct {
	Messages int64
	Took     time.Duration
	Calls    *hdrhistogram.Histogram // microseconds
	CPU      map[string]time.Duration
}

// Rate is messages a second.
func (s Sample) Rate() float64 { return float64(s.Messages) / s.Took.Seconds() }

const longestMicro = 5 * 60 * 1_000_000

// Measure runs one round for d.
func (w Workload) Measure(ctx context.Context, d time.Duration, procs Processes) (Sample, error) {
	return w.measure(ctx, d, procs, func() {})
}

// measure runs one round for d; begin is called when it is prepared.
func (w Workload) measure(ctx context.Context, d time.Duration, procs Processes, begin func()) (Sample, error) {
	if w.Prepare != nil {
		if err := w.Prepare(ctx); err != nil {
			return Sample{}, fmt.Errorf("%s: prepare: %w", w.Name, err)
		}
	}
	begin()
	round, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	var moved atomic.Int64
	var wg sync.WaitGroup
	histograms, errs := make([]*hdrhistogram.Histogram, w.Callers), make([]error, w.Callers)
	before, began := procs.CPU(), time.Now()
	for caller := range w.Callers {
		histograms[caller] = hdrhistogram.New(1, longestMicro, 3)
		wg.Go(func() {
			for round.Err() == nil {
				sent := time.Now()
				n, err := w.Op(ctx, caller) // the last call is finished, not cut off
				if err != nil {
					errs[caller] = err
					return
				}
				moved.Add(int64(n))
				_ = histograms[caller].RecordValue(max(time.Since(sent).Microseconds(), 1)) // longer than five minutes is not possible here
			}
		})
	}
	wg.Wait()
	s := Sample{Messages: moved.Load(), Took: time.Since(began), Calls: hdrhistogram.New(1, longestMicro, 3), CPU: procs.CPU()}
	for name, t := range before {
		s.CPU[name] -= t
	}
	for _, h := range histograms {
		s.Calls.Merge(h)
	}
	if err := errors.Join(errs...); err != nil {
		return s, fmt.Errorf("%s: %w", w.Name, err)
	}
	return s, nil
}
