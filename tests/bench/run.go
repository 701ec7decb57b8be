package bench

import (
	"context"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
)

// Plan says how long and how often.
type Plan struct {
	Rounds   int
	Duration time.Duration
	// Match limits the workloads by name; nil takes all.
	Match *regexp.Regexp
	// Dir is where the fsync latency is measured: on PostgreSQL's disk.
	Dir string
	Out io.Writer
	// Log is told what runs.
	Log io.Writer
}

// Run measures the workloads, their rounds interleaved, and prints one table.
func Run(ctx context.Context, p Plan, procs Processes, workloads []Workload) error {
	if p.Match != nil {
		workloads = slices.DeleteFunc(workloads, func(w Workload) bool { return !p.Match.MatchString(w.Name) })
	}
	samples := make([][]Sample, len(workloads))
	var syncs []float64
	for round := range p.Rounds {
		syncs = append(syncs, fsyncMicros(p.Dir))
		for i, w := range workloads {
			_, _ = fmt.Fprintf(p.Log, "round %d/%d  %-70s", round+1, p.Rounds, w.Name)
			s, err := w.Measure(ctx, p.Duration, procs)
			if err != nil {
				return err
			}
			_, _ = fmt.Fprintf(p.Log, "%9.0f msg/s\n", s.Rate())
			samples[i] = append(samples[i], s)
		}
	}
	return render(p, procs, workloads, samples, syncs)
}

func render(p Plan, procs Processes, workloads []Workload, samples [][]Sample, syncs []float64) error {
	t := table.NewWriter()
	t.SetStyle(table.StyleLight)
	names := []string{"postrider", "postgres", "client"}
	header := table.Row{"workload", "durable", "msg/s", "spread", "p50 ms", "p99 ms"}
	for _, n := range names {
		header = append(header, "µs/msg "+n)
	}
	t.AppendHeader(header)
	for i, w := range workloads {
		rates, p50, p99 := make([]float64, 0), make([]float64, 0), make([]float64, 0)
		for _, s := range samples[i] {
			rates = append(rates, s.Rate())
			p50 = append(p50, float64(s.Calls.ValueAtQuantile(50))/1000)
			p99 = append(p99, float64(s.Calls.ValueAtQuantile(99))/1000)
		}
		row := table.Row{
			w.Name, w.Class, fmt.Sprintf("%.0f", median(rates)), fmt.Sprintf("%.0f–%.0f", slices.Min(rates), slices.Max(rates)),
			fmt.Sprintf("%.2f", median(p50)), fmt.Sprintf("%.2f", median(p99)),
		}
		for _, n := range names {
			per := make([]float64, 0)
			for _, s := range samples[i] {
				if s.Messages > 0 {
					per = append(per, float64(s.CPU[n].Microseconds())/float64(s.Messages))
				}
			}
			row = append(row, fmt.Sprintf("%.1f", median(per)))
		}
		t.AppendRow(row)
	}
	_, err := fmt.Fprintf(p.Out, "%s\nmedians of %d rounds of %s; fsync of 8 KiB takes %.0f µs (median) here; postrider holds %d MiB resident at the end\n",
		t.Render(), p.Rounds, p.Duration, median(syncs), procs.RSS("postrider")>>20)
	return err
}

func median(v []float64) float64 {
	if len(v) == 0 {
		return math.NaN()
	}
	s := slices.Clone(v)
	slices.Sort(s)
	return s[len(s)/2]
}

// fsyncMicros is the median time of an 8 KiB write with fsync.
func fsyncMicros(dir string) float64 {
	f, err := os.CreateTemp(dir, "fsync")
	if err != nil {
		return math.NaN()
	}
	defer os.Remove(filepath.Clean(f.Name())) //nolint:errcheck // a temporary file
	defer f.Close()                           //nolint:errcheck // a temporary file
	page, took := make([]byte, 8192), make([]float64, 0, 50)
	for range 50 {
		began := time.Now()
		if _, err := f.WriteAt(page, 0); err != nil {
			return math.NaN()
		}
		if err := f.Sync(); err != nil {
			return math.NaN()
		}
		took = append(took, float64(time.Since(began).Microseconds()))
	}
	return median(took)
}
