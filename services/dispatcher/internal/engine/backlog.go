package engine

import (
	"fmt"
	"sync"
	"sync/atomic"

	"postrider.dev/services/dispatcher/internal/domain/placement"
	"postrider.dev/services/dispatcher/internal/spool"
)

// maxHeld bounds the partitions that a Backlog tells apart. Beyond it all of a queue counts as one.
const maxHeld = 1 << 18

// Backlog knows of which partitions the spool holds messages, so that later ones queue behind them. It is made before the spool is opened, and filled by it.
type Backlog struct {
	records atomic.Int64
	bytes   atomic.Int64

	mu     sync.Mutex // guards the rest
	queues map[queueName]*heldQueue
	held   int // partitions told apart
}

// heldQueue is what is held of one queue.
type heldQueue struct {
	records    int
	partitions map[uint64]int // records by partition hash; nil: all of the queue is held
}

// NewBacklog returns an empty one.
func NewBacklog() *Backlog { return &Backlog{queues: map[queueName]*heldQueue{}} }

// Visit adds a record that the spool found when it was opened.
func (b *Backlog) Visit(e spool.Entry) error {
	s, err := parseSpooled(e.Payload)
	if err != nil {
		return fmt.Errorf("read the spool: %w", err)
	}
	b.add(queueName{s.tenant, s.req.GetQueue()}, s.hashes(), len(e.Payload))
	return nil
}

// hashes are of the partitions of the accepted items, each once.
func (s *spooledPush) hashes() []uint64 {
	if len(s.keyedHashes) > 0 {
		return s.keyedHashes
	}
	seen := make(map[uint64]bool, len(s.accepted))
	out := make([]uint64, 0, len(s.accepted))
	for _, i := range s.accepted {
		name := s.req.GetItems()[i].GetPartition()
		if name == "" {
			name = DefaultPartition
		}
		if h := placement.Hash(name); !seen[h] {
			seen[h] = true
			out = append(out, h)
		}
	}
	return out
}

func (b *Backlog) add(name queueName, hashes []uint64, bytes int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.records.Add(1)
	b.bytes.Add(int64(bytes))
	q := b.queues[name]
	if q == nil {
		q = &heldQueue{partitions: map[uint64]int{}}
		b.queues[name] = q
	}
	q.records++
	if q.partitions == nil {
		return
	}
	for _, h := range hashes {
		if q.partitions[h]++; q.partitions[h] == 1 {
			b.held++
		}
	}
	if b.held > maxHeld {
		b.held -= len(q.partitions)
		q.partitions = nil
	}
}

func (b *Backlog) remove(name queueName, hashes []uint64, bytes int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.records.Add(-1)
	b.bytes.Add(-int64(bytes))
	q := b.queues[name]
	if q.records--; q.records == 0 {
		b.held -= len(q.partitions)
		delete(b.queues, name)
		return
	}
	if q.partitions == nil {
		return
	}
	for _, h := range hashes {
		if q.partitions[h]--; q.partitions[h] == 0 {
			delete(q.partitions, h)
			b.held--
		}
	}
}

// holds says whether a message of one of the push's partitions is in the spool.
func (b *Backlog) holds(p *push) bool {
	if b.records.Load() == 0 {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	q := b.queues[queueName{p.tenant, p.name}]
	if q == nil || q.partitions == nil {
		return q != nil
	}
	for i := range p.items {
		if q.partitions[p.items[i].frame.Hash] > 0 {
			return true
		}
	}
	return false
}
