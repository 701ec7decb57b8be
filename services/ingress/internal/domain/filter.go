package domain

// OriginHeader keeps with a message who pushed it, where the publisher says so.
const OriginHeader = "postrider-origin"

// MaxPartitions is how many partitions a subscription may name.
const MaxPartitions = 100

// Filter says which messages of a queue a subscription wants. The zero value wants all.
type Filter struct {
	Partitions map[string]bool   // empty: all
	Headers    map[string]string // each must be there, with exactly this value
	SkipOrigin string            // what has this origin is not wanted; empty: everything is
}

// All says that nothing is left out.
func (f Filter) All() bool {
	return len(f.Partitions) == 0 && len(f.Headers) == 0 && f.SkipOrigin == ""
}

// Wants says whether a message belongs to the subscription.
func (f Filter) Wants(partition string, headers map[string]string) bool {
	if len(f.Partitions) > 0 && !f.Partitions[partition] {
		return false
	}
	if f.SkipOrigin != "" && headers[OriginHeader] == f.SkipOrigin {
		return false
	}
	for name, value := range f.Headers {
		if have, ok := headers[name]; !ok || have != value {
			return false
		}
	}
	return true
}
