package domain

import "time"

// Mode is something that is on or off for the whole fleet.
type Mode struct {
	Name      string
	Enabled   bool
	Reason    string    // what the administrator wrote
	ChangedAt time.Time // zero: never
	ChangedBy string
	Version   int64
}

// Names of the modes.
const (
	Maintenance    = "maintenance"     // pushes are diverted
	PopMaintenance = "pop_maintenance" // pops hand out nothing
)

// ModeNames returns the names of all modes.
func ModeNames() []string { return []string{Maintenance, PopMaintenance} }
