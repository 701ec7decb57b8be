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
	// Match limits the workloads and trials by name; nil takes all. What they are compared with is measured too.
	Match *regexp.Regexp
	// Strict makes every missed target a failure, also where the ratio to bare SQL is as recorded.
	Strict bool
	// Record is the file that takes the ratios as new floors; empty: none.
	Record string
	// Profiles is the folder that takes CPU profiles of the workloads, instead of their measurement; empty: none.
	Profiles string
	// Dir is where the fsync latency is measured: on PostgreSQL's disk.
	Dir string
	Out io.Writer
	// Log is told what runs.
	Log io.Writer
}

func (p Plan) asked(name string) bool { return p.Match == nil || p.Match.MatchString(name) }

// measured is what the rounds of everything gave, by name.
type measured struct {
	samples map[string][]Sample
	trials  map[string][]float64
	syncs   []float64
}

// values are a figure's values, one a round.
func (m measured) values(name, unit string) []float64 {
	if list := m.trials[name]; list != nil {
		return list
	}
	var list []float64
	for _, s := range m.samples[name] {
		if unit == p99 {
			list = append(list, float64(s.Calls.ValueAtQuantile(99))/1000)
		} else {
			list = append(list, s.Rate())
		}
	}
	return list
}

// Run measures the workloads and trials, their rounds interleaved, prints one table, and another of targets. Its error says which were missed.
func Run(ctx context.Context, p Plan, procs Processes, workloads []Workload, trials []Trial, postgres string) error {
	workloads = slices.DeleteFunc(workloads, func(w Workload) bool { return !needed(w.Name, p.asked) })
	trials = slices.DeleteFunc(trials, func(t Trial) bool { return !p.asked(t.Name) })
	m := measured{samples: map[string][]Sample{}, trials: map[string][]float64{}}
	for round := range p.Rounds {
		if err := m.round(ctx, p, round, procs, workloads, trials); err != nil {
			return err
		}
	}
	if len(workloads) > 0 {
		if err := render(p, procs, workloads, m); err != nil {
			return err
		}
	}
	floors, err := RecordedFloors()
	if err != nil {
		return err
	}
	verdicts := m.verdicts(floors, p.Strict)
	if p.Record != "" {
		if err := record(p.Record, p, floors, verdicts, postgres); err != nil {
			return err
		}
	}
	return report(p.Out, verdicts, floors)
}

// round measures everything once.
func (m *measured) round(ctx context.Context, p Plan, round int, procs Processes, workloads []Workload, trials []Trial) error {
	m.syncs = append(m.syncs, fsyncMicros(p.Dir))
	say := func(format string, args ...any) { _, _ = fmt.Fprintf(p.Log, format, args...) }
	for _, w := range workloads {
		say("round %d/%d  %-70s", round+1, p.Rounds, w.Name)
		s, err := w.Measure(ctx, p.Duration, procs)
		if err != nil {
			return err
		}
		say("%9.0f msg/s\n", s.Rate())
		m.samples[w.Name] = append(m.samples[w.Name], s)
	}
	for _, t := range trials {
		say("round %d/%d  %-70s", round+1, p.Rounds, t.Name)
		v, err := t.Run(ctx, round)
		if err != nil {
			return fmt.Errorf("%s: %w", t.Name, err)
		}
		say("%9s\n", number(v))
		m.trials[t.Name] = append(m.trials[t.Name], v)
	}
	return nil
}

// verdicts judges every figure that was measured.
func (m *measured) verdicts(floors Floors, strict bool) []Verdict {
	var list []Verdict
	for _, f := range Figures() {
		if values := m.values(f.Of, f.Unit); len(values) > 0 {
			list = append(list, judge(f, values, m.values(f.Reference, f.Unit), floors, strict))
		}
	}
	return list
}

func render(p Plan, procs Processes, workloads []Workload, m measured) error {
	t := table.NewWriter()
	t.SetStyle(table.StyleLight)
	names := []string{"postrider", "postgres", "client"}
	header := table.Row{"workload", "durable", "msg/s", "spread", "p50 ms", "p99 ms"}
	for _, n := range names {
		header = append(header, "µs/msg "+n)
	}
	t.AppendHeader(header)
	for _, w := range workloads {
		rates, p50s, p99s := make([]float64, 0), make([]float64, 0), make([]float64, 0)
		for _, s := range m.samples[w.Name] {
			rates = append(rates, s.Rate())
			p50s = append(p50s, float64(s.Calls.ValueAtQuantile(50))/1000)
			p99s = append(p99s, float64(s.Calls.ValueAtQuantile(99))/1000)
		}
		row := table.Row{
			w.Name, w.Class, fmt.Sprintf("%.0f", median(rates)), fmt.Sprintf("%.0f–%.0f", slices.Min(rates), slices.Max(rates)),
			fmt.Sprintf("%.2f", median(p50s)), fmt.Sprintf("%.2f", median(p99s)),
		}
		for _, n := range names {
			per := make([]float64, 0)
			for _, s := range m.samples[w.Name] {
				if s.Messages > 0 {
					per = append(per, float64(s.CPU[n].Microseconds())/float64(s.Messages))
				}
			}
			row = append(row, fmt.Sprintf("%.1f", median(per)))
		}
		t.AppendRow(row)
	}
	_, err := fmt.Fprintf(p.Out, "%s\nmedians of %d rounds of %s; fsync of 8 KiB takes %.0f µs (median) here; postrider holds %d MiB resident at the end\n",
		t.Render(), p.Rounds, p.Duration, median(m.syncs), procs.RSS("postrider")>>20)
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
