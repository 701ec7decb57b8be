package bench

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"
)

//go:embed floors.json
var recorded []byte

// Floors are ratios to bare SQL that were measured on a quiet machine. Ratios, because rates say more about the machine than about the code.
type Floors struct {
	RecordedOn string `json:"recorded_on"`
	Machine    string `json:"machine"`
	Rounds     int    `json:"rounds"`
	// Tolerance is the part of a recorded ratio that must be reached; latencies, which move more, have their own.
	Tolerance        float64            `json:"tolerance"`
	LatencyTolerance float64            `json:"latency_tolerance"`
	Ratios           map[string]float64 `json:"ratios"` // by figure
}

// RecordedFloors are those of floors.json.
func RecordedFloors() (Floors, error) {
	var f Floors
	if err := json.Unmarshal(recorded, &f); err != nil {
		return f, fmt.Errorf("floors.json: %w", err)
	}
	return f, nil
}

// floor is the ratio a figure must keep, 0 if none is recorded.
func (f Floors) floor(of Figure) float64 {
	tolerance := f.Tolerance
	if of.Unit == p99 {
		tolerance = f.LatencyTolerance
	}
	if of.AtMost {
		return f.Ratios[of.key()] / tolerance
	}
	return f.Ratios[of.key()] * tolerance
}

// record writes the verdicts' ratios to a file as the new floors.
func record(path string, p Plan, old Floors, verdicts []Verdict, postgres string) error {
	f := Floors{
		RecordedOn: time.Now().UTC().Format(time.DateOnly), Machine: machine(postgres), Rounds: p.Rounds,
		Tolerance: old.Tolerance, LatencyTolerance: old.LatencyTolerance, Ratios: map[string]float64{},
	}
	for key, ratio := range old.Ratios {
		f.Ratios[key] = ratio // of what was not measured now
	}
	for _, v := range verdicts {
		if v.Ratio > 0 {
			f.Ratios[v.key()] = float64(int(v.Ratio*10_000)) / 10_000
		}
	}
	text, err := json.MarshalIndent(f, "", "  ")
	if err != nil {
		return fmt.Errorf("record: %w", err)
	}
	if err := os.WriteFile(path, append(text, '\n'), 0o644); err != nil { //nolint:gosec // a file of the repository
		return fmt.Errorf("record: %w", err)
	}
	return nil
}

// machine describes what the figures were measured on.
func machine(postgres string) string {
	parts := []string{fmt.Sprintf("%d cores", runtime.NumCPU())}
	if text, err := os.ReadFile("/proc/meminfo"); err == nil {
		var kib int64
		if _, err := fmt.Sscanf(string(text), "MemTotal: %d kB", &kib); err == nil {
			parts = append(parts, fmt.Sprintf("%d GiB", (kib+1<<19)>>20))
		}
	}
	return strings.Join(append(parts, runtime.GOOS+"/"+runtime.GOARCH, runtime.Version(), "PostgreSQL "+postgres+", fsync on"), ", ")
}
