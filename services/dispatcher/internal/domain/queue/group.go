package queue

import (
	"time"

	"postrider.dev/services/dispatcher/internal/domain/invalid"
)

// DefaultGroup is the group of a pop that names none.
const DefaultGroup = "default"

// ParseStart reads where a group begins: earliest (also for the empty text), latest, or an RFC 3339 instant. A bad value is an error,
// never "from the beginning".
func ParseStart(s string) (Start, error) {
	if s == "" || s == string(Earliest) {
		return Start{Kind: Earliest}, nil
	}
	if s == string(Latest) {
		return Start{Kind: Latest}, nil
	}
	at, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		return Start{}, invalid.New(invalid.EnumUnknown, "start", "must be %q, %q or an RFC 3339 timestamp", Earliest, Latest)
	}
	return Start{Kind: AtTime, Time: at.UTC().Truncate(time.Microsecond)}, nil
}

// String is the text ParseStart reads.
func (s Start) String() string {
	if s.Kind == AtTime {
		return s.Time.UTC().Format(time.RFC3339Nano)
	}
	return string(s.Kind)
}

// CheckSame refuses to use an existing group under other fixed settings. Empty settings of asked do not disagree with anything.
func (g Group) CheckSame(asked Group) error {
	switch {
	case asked.Mode != "" && asked.Mode != g.Mode:
		return invalid.New(invalid.GroupMismatch, "mode", "group %q is %s", g.Name, g.Mode)
	case asked.OnFailure != "" && asked.OnFailure != g.OnFailure:
		return invalid.New(invalid.GroupMismatch, "on_failure", "group %q has %s", g.Name, g.OnFailure)
	case asked.Start.Kind != "" && asked.Start.String() != g.Start.String():
		return invalid.New(invalid.GroupMismatch, "start", "group %q started at %s", g.Name, g.Start)
	}
	return nil
}

// Next is the wait before the next attempt after the given number of failures (1 = the first). draw in [0,1) is the jitter: full,
// from nothing to a ceiling that doubles from Base to Cap.
func (b Backoff) Next(failures int, draw float64) time.Duration {
	ceiling := b.Base
	for range failures - 1 {
		if ceiling >= b.Cap/2 {
			ceiling = b.Cap
			break
		}
		ceiling *= 2
	}
	ceiling = min(ceiling, b.Cap)
	return time.Duration(draw * float64(ceiling)).Truncate(time.Microsecond)
}
