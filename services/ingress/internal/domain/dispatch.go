package domain

// Dispatch says where an operation of a queue goes.
type Dispatch int

// Where it may go.
const (
	// Unknown is that no dispatcher in reach is known to hold the queue's route: the own host's serves it.
	Unknown Dispatch = iota
	// Local is that the own host's dispatcher holds the route: nothing leaves the host.
	Local
	// Remote is that another host's holds it.
	Remote
)

// String is the name in metrics.
func (d Dispatch) String() string {
	switch d {
	case Local:
		return "local"
	case Remote:
		return "remote"
	case Unknown:
	}
	return "unknown"
}
