package engine

import (
	"sync"
	"time"

	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/store"
)

// maxSightings bounds the partitions that are remembered for the catalogue between two rounds. What is over is read from the log.
const maxSightings = 200_000

// sightings collects which partitions this process appended to, for the catalogue that is written behind.
type sightings struct {
	mu     sync.Mutex // guards the rest
	shards map[message.ShardID]*sighted
	total  int
}

// sighted is a gapless stretch of one shard.
type sighted struct {
	from, to message.Offset
	names    map[string]*store.Sighting
}

// note adds a part that was appended at base. A gap, which another dispatcher's commit makes, begins a new stretch; the old one is read from the log.
func (s *sightings) note(c *part, base message.Offset, at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	x := s.shards[c.shard]
	if x == nil || x.to != base || s.total > maxSightings {
		if x != nil {
			s.total -= len(x.names)
		}
		x = &sighted{from: base, names: map[string]*store.Sighting{}}
		s.shards[c.shard] = x
	}
	x.to = base + message.Offset(len(c.frames))
	for i := range c.frames {
		name, err := message.FramePartition(c.frames[i].Bytes)
		if err != nil {
			continue // we wrote it; a reader of the log would complain
		}
		offset := base + message.Offset(i)
		if seen := x.names[string(name)]; seen != nil {
			seen.Last, seen.At = offset, at
			continue
		}
		x.names[string(name)] = &store.Sighting{Name: string(name), First: offset, Last: offset, At: at}
		s.total++
	}
}

// Seen is what was appended to one shard without a gap, and which partitions were in it.
type Seen struct {
	Shard     message.ShardID
	From, To  message.Offset
	Sightings []store.Sighting
}

// TakeSeen returns what this process appended since the last call.
func (e *Engine) TakeSeen() []Seen {
	s := &e.sightings
	s.mu.Lock()
	shards := s.shards
	s.shards, s.total = map[message.ShardID]*sighted{}, 0
	s.mu.Unlock()
	out := make([]Seen, 0, len(shards))
	for id, x := range shards {
		seen := Seen{Shard: id, From: x.from, To: x.to, Sightings: make([]store.Sighting, 0, len(x.names))}
		for _, n := range x.names {
			seen.Sightings = append(seen.Sightings, *n)
		}
		out = append(out, seen)
	}
	return out
}
