package bench

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/pprof/profile"
	"github.com/stretchr/testify/require"
)

func TestAFigureIsOKShortOrFailed(t *testing.T) {
	t.Parallel()
	rate := Figure{Of: "w", Unit: perSecond, Target: 100, Reference: oneRow}
	late := Figure{Of: "w", Unit: p99, Target: 15, AtMost: true, Reference: oneRow}
	alone := Figure{Of: "t", Unit: seconds, Target: 60, AtMost: true}
	floors := Floors{Tolerance: 0.8, LatencyTolerance: 0.5, Ratios: map[string]float64{rate.key(): 2, late.key(): 1}}
	for name, c := range map[string]struct {
		figure            Figure
		values, reference []float64
		floors            Floors
		strict            bool
		want              State
	}{
		"met, although the ratio fell":           {rate, []float64{110, 100, 90}, []float64{100, 100, 100}, floors, false, OK},
		"missed on a slow machine":               {rate, []float64{50, 48, 46}, []float64{30, 30, 30}, floors, false, Short},
		"missed, and worse than recorded":        {rate, []float64{50, 48, 46}, []float64{31, 31, 31}, floors, false, Failed},
		"missed on a slow machine, strictly":     {rate, []float64{50, 48, 46}, []float64{30, 30, 30}, floors, true, Failed},
		"missed, with nothing recorded":          {rate, []float64{99}, []float64{1}, Floors{Tolerance: 0.8}, false, Failed},
		"a latency that the machine has too":     {late, []float64{20}, []float64{10}, floors, false, Short},
		"a latency far above the machine's":      {late, []float64{20}, []float64{9.9}, floors, false, Failed},
		"a bound that needs no reference":        {alone, []float64{59, 60, 61}, nil, floors, false, OK},
		"a bound that needs no reference missed": {alone, []float64{61, 60, 61}, nil, floors, false, Failed},
	} {
		require.Equal(t, c.want, judge(c.figure, c.values, c.reference, c.floors, c.strict).State, name)
	}
}

func TestTheReportFailsByNameAndPrintsEveryFigure(t *testing.T) {
	t.Parallel()
	good := Verdict{Figure: Figure{Of: "good", Unit: perSecond, Target: 1}, State: OK}
	short := Verdict{Figure: Figure{Of: "small", Unit: perSecond, Target: 1}, State: Short}
	bad := Verdict{Figure: Figure{Of: "bad", Unit: seconds, Target: 1, AtMost: true}, State: Failed}
	var out bytes.Buffer

	require.NoError(t, report(&out, []Verdict{good, short}, Floors{}))
	err := report(&out, []Verdict{good, short, bad}, Floors{})

	require.ErrorIs(t, err, errTargets)
	require.ErrorContains(t, err, "bad: s")
	require.NotContains(t, err.Error(), "small")
	for _, want := range []string{"good", "small", "bad", "short", "FAILED", "≤ 1 s"} {
		require.Contains(t, out.String(), want)
	}
}

func TestEveryFloorIsOfAFigure(t *testing.T) {
	t.Parallel()
	floors, err := RecordedFloors()
	require.NoError(t, err)
	known := map[string]bool{}
	for _, f := range Figures() {
		known[f.key()] = true
	}

	require.NotEmpty(t, floors.Machine)
	for key := range floors.Ratios {
		require.True(t, known[key], "%q is no figure", key)
	}
}

func TestARecordKeepsWhatWasNotMeasured(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "floors.json")
	old := Floors{Tolerance: 0.8, LatencyTolerance: 0.5, Ratios: map[string]float64{"a: msg/s": 1, "b: msg/s": 2}}

	err := record(path, Plan{Rounds: 5}, old, []Verdict{{Figure: Figure{Of: "a", Unit: perSecond}, Ratio: 1.5}}, "15")

	require.NoError(t, err)
	text, err := os.ReadFile(path) //nolint:gosec // the test's own
	require.NoError(t, err)
	var f Floors
	require.NoError(t, json.Unmarshal(text, &f))
	require.Equal(t, map[string]float64{"a: msg/s": 1.5, "b: msg/s": 2}, f.Ratios)
	require.Contains(t, f.Machine, "PostgreSQL 15")
}

func TestWhatAFigureIsComparedWithIsMeasuredToo(t *testing.T) {
	t.Parallel()
	asked := func(name string) bool { return name == pushName("REST", 1, 64) }

	require.True(t, needed(pushName("REST", 1, 64), asked))
	require.True(t, needed(oneRow, asked))
	require.False(t, needed(hundredRows, asked))
}

func TestSharesAddUpAndRecursionCountsOnce(t *testing.T) {
	t.Parallel()
	line := func(name string) *profile.Location {
		return &profile.Location{Line: []profile.Line{{Function: &profile.Function{Name: name}}}}
	}
	alloc, decode := line("runtime.mallocgc"), line("a.b/wire.(*T[go.shape.int]).Decode")
	prof := &profile.Profile{Sample: []*profile.Sample{
		{Location: []*profile.Location{alloc, decode, decode}, Value: []int64{1, 30}},
		{Location: []*profile.Location{decode}, Value: []int64{1, 70}},
	}}

	packages, functions := shares(prof)

	require.Equal(t, []share{{"a.b/wire", 70, 100}, {"runtime", 30, 30}}, packages)
	require.Equal(t, []share{{"a.b/wire.(*T[go.shape.int]).Decode", 70, 100}, {"runtime.mallocgc", 30, 30}}, functions)
	require.InDelta(t, 30, withCallees(functions, "runtime.mallocgc"), 0.001)
	require.Zero(t, withCallees(functions, "runtime.gcBgMarkWorker"))
}
