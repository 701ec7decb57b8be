package bench

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
)

// The bare limits that figures are compared with.
const (
	oneRow      = "SQL INSERT of one row, 64 connections"
	hundredRows = "SQL INSERT of 100 rows, 8 connections"
)

// Units of figures.
const (
	perSecond = "msg/s"
	p99       = "ms p99"
	seconds   = "s"
	times     = "times"
)

// Figure is something the design promises, and the workload or trial that shows it.
type Figure struct {
	Of     string // the name of the workload or trial
	Unit   string
	Target float64
	AtMost bool // the target is a ceiling
	// Reference is the workload of bare SQL whose value of the same unit, in the same round, tells what the machine was capable of. Without one the
	// target is as good on any machine, and decides.
	Reference string
}

func (f Figure) key() string { return f.Of + ": " + f.Unit }

// Figures are the targets of the design that are measured here.
func Figures() []Figure {
	return []Figure{
		{Of: pushName("gRPC stream", 100, 64), Unit: perSecond, Target: 120_000, Reference: hundredRows},
		{Of: pushName("REST", 100, 64), Unit: perSecond, Target: 60_000, Reference: hundredRows},
		{Of: pushName("gRPC stream", 1, 64), Unit: perSecond, Target: 25_000, Reference: oneRow},
		{Of: pushName("gRPC stream", 1, 64), Unit: p99, Target: 15, AtMost: true, Reference: oneRow},
		{Of: pushName("REST", 1, 64), Unit: perSecond, Target: 10_000, Reference: oneRow},
		{Of: pushName("REST", 1, 64), Unit: p99, Target: 15, AtMost: true, Reference: oneRow},
		{Of: pushName("gRPC stream", 1, 256), Unit: perSecond, Target: 60_000, Reference: oneRow},
		{Of: pushName("gRPC stream", 1, 256) + keyedEach, Unit: perSecond, Target: 40_000, Reference: oneRow},
		{Of: endToEndName(100, 8, 8), Unit: perSecond, Target: 50_000, Reference: hundredRows},
		{Of: drainName, Unit: seconds, Target: 60, AtMost: true},
		{Of: stuckName, Unit: times, Target: 1.5, AtMost: true},
	}
}

// State is what became of a figure.
type State string

// States of a figure.
const (
	OK     State = "ok"     // the target is met
	Short  State = "short"  // it is not, and the ratio to bare SQL is about what was recorded: so is it known, or the machine is a slow one
	Failed State = "FAILED" // it is not, and not as good as recorded
)

// Verdict is a figure with what was measured.
type Verdict struct {
	Figure

	Measured float64 // median over the rounds
	Ratio    float64 // median of the rounds' ratios to the reference
	Floor    float64 // the ratio that must be kept; 0 if none is recorded
	State    State
}

// judge compares a figure's values of each round with those of its reference in the same rounds. strict makes every missed target a failure.
func judge(f Figure, values, reference []float64, floors Floors, strict bool) Verdict {
	v := Verdict{Figure: f, Measured: median(values), State: OK}
	if len(reference) > 0 {
		ratios := make([]float64, 0, len(values))
		for i := range min(len(values), len(reference)) {
			ratios = append(ratios, values[i]/reference[i])
		}
		v.Ratio = median(ratios)
		v.Floor = floors.floor(f)
	}
	if met(f.AtMost, v.Measured, f.Target) {
		return v
	}
	v.State = Failed
	if !strict && v.Floor > 0 && met(f.AtMost, v.Ratio, v.Floor) {
		v.State = Short
	}
	return v
}

func met(atMost bool, value, bound float64) bool {
	if atMost {
		return value <= bound
	}
	return value >= bound
}

// errTargets says that a figure is not as good as it must be.
var errTargets = errors.New("not as good as it must be")

// report prints the verdicts; its error names what failed.
func report(out io.Writer, verdicts []Verdict, floors Floors) error {
	t := table.NewWriter()
	t.SetStyle(table.StyleLight)
	t.AppendHeader(table.Row{"figure", "target", "measured", "to bare SQL", "floor of that", "state"})
	var failed []string
	for _, v := range verdicts {
		sign, ratio, floor := "≥", "", ""
		if v.AtMost {
			sign = "≤"
		}
		if v.Ratio > 0 {
			ratio = fmt.Sprintf("%.3f", v.Ratio)
		}
		if v.Floor > 0 {
			floor = fmt.Sprintf("%s %.3f", sign, v.Floor)
		}
		t.AppendRow(table.Row{v.Of, fmt.Sprintf("%s %s %s", sign, number(v.Target), v.Unit), number(v.Measured), ratio, floor, v.State})
		if v.State == Failed {
			failed = append(failed, v.key())
		}
	}
	if _, err := fmt.Fprintf(out, "%s\nfloors are %.0f %% (of latencies %.0f %%) of what was recorded on %s: %s\n",
		t.Render(), 100*floors.Tolerance, 100*floors.LatencyTolerance, floors.RecordedOn, floors.Machine); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	if len(failed) > 0 {
		return fmt.Errorf("%w: %s", errTargets, strings.Join(failed, "; "))
	}
	return nil
}

func number(v float64) string {
	if v >= 1000 {
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.4g", v)
}

// needed says whether a workload is to be measured when only some are asked for: the references of those are too.
func needed(name string, asked func(string) bool) bool {
	return asked(name) || slices.ContainsFunc(Figures(), func(f Figure) bool { return f.Reference == name && asked(f.Of) })
}
