package queue

import "postrider.dev/services/dispatcher/internal/domain/invalid"

// OptLanes is how many lanes a queue has. It is fixed when the queue is created, as the shards of each lane are.
const OptLanes Option = "lanes"

// Bounds of lanes, and so of priorities, which are 0 to lanes-1.
const (
	MinLanes     = 1
	DefaultLanes = 1
	MaxLanes     = 10
)

// checkLanes bounds what a queue costs: a group has a row of state for each of its shards.
func (c Config) checkLanes() error {
	if c.Lanes*c.Shards > MaxShards {
		return invalid.New(invalid.OutOfRange, string(OptLanes), "times %s is %d, must be at most %d", OptShards, c.Lanes*c.Shards, MaxShards)
	}
	return nil
}

// CheckPriority says whether the queue has a lane for messages of that priority.
func (c Config) CheckPriority(priority int) error {
	if priority < 0 || priority >= max(c.Lanes, MinLanes) {
		return invalid.New(invalid.LaneUnknown, "priority", "is %d, the queue has lanes for 0 to %d", priority, max(c.Lanes, MinLanes)-1)
	}
	return nil
}

// checkFixed refuses a change of what is fixed when a queue is created: of what says where a partition is, and by which number it is blocked.
func checkFixed(before, after Config) error {
	switch {
	case after.Shards != before.Shards:
		return invalid.New(invalid.OptionFixed, string(OptShards), "is fixed at %d since the queue was created", before.Shards)
	case after.Lanes != before.Lanes:
		return invalid.New(invalid.OptionFixed, string(OptLanes), "is fixed at %d since the queue was created", before.Lanes)
	// A partition is found and blocked by its hash, and that of an encrypted queue is keyed: with two hashes there would be no order between old and new.
	case after.Encryption != before.Encryption:
		return invalid.New(invalid.OptionFixed, string(OptEncryption), "is fixed at %t since the queue was created", before.Encryption)
	}
	return nil
}
