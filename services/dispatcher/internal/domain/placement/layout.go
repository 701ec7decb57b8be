package placement

// Layout says how the shards of a queue are arranged: lane after lane, the lane of the lowest priority first, each of equally many shards. So a queue of
// one lane is what a queue was before there were lanes, and the lane of a shard follows from its place alone.
//
// The zero value is a queue of one shard.
type Layout struct {
	Lanes  int
	Shards int // in each lane
}

// Of is the layout of shards shards in lanes lanes, each of which has one at least.
func Of(lanes, shards int) Layout {
	lanes = max(min(lanes, shards), 1)
	return Layout{Lanes: lanes, Shards: max(shards/lanes, 1)}
}

// Shard is the index of the shard where messages with this priority of the partition with this hash live. A priority beyond the highest lane means that.
func (l Layout) Shard(priority int, hash uint64) int {
	priority = min(max(priority, 0), max(l.Lanes, 1)-1)
	return priority*l.width() + Shard(hash, l.width())
}

// Priority is that of the messages of a shard: the number of its lane.
func (l Layout) Priority(shard int) int { return shard / l.width() }

// Homes are the shards of one partition, one in each lane, the lowest first.
func (l Layout) Homes(hash uint64) []int {
	homes := make([]int, max(l.Lanes, 1))
	for lane := range homes {
		homes[lane] = l.Shard(lane, hash)
	}
	return homes
}

// Turns is how many shards a look at all of them takes.
func (l Layout) Turns() int { return max(l.Lanes, 1) * l.width() }

// Turn is the n-th shard of a look at all of them, n in 0..Turns-1: the lanes in the order of their priority, the highest first, and in each one shard after
// the other, beginning with the one that first says. Every shard has one turn.
func (l Layout) Turn(first, n int) int {
	lane := max(l.Lanes, 1) - 1 - n/l.width()
	return lane*l.width() + (first+n)%l.width()
}

// NamedTurn is the n-th shard of a look at one partition, n in 0..Lanes-1: the highest lane first.
func (l Layout) NamedTurn(hash uint64, n int) int { return l.Shard(max(l.Lanes, 1)-1-n, hash) }

func (l Layout) width() int { return max(l.Shards, 1) }
