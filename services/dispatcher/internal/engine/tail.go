package engine

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"postrider.dev/pkg/tenant"
	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/window"
	"postrider.dev/services/dispatcher/internal/engine/catalog"
	"postrider.dev/services/dispatcher/internal/store"
)

// ErrLogReplaced says that the log does not reach where a reader says it has been: another database answers, which lacks the last commits.
var ErrLogReplaced = errors.New("the log ends before the offset")

// Tail follows the log of a queue. It holds no messages: it tells when there are some, and ReadLog reads them, from the cache that all share. It learns of
// commits like parked pops do: at once of this dispatcher's own, by hints of others', and by the shared poll in any case.
type Tail struct {
	e      *Engine
	queue  *catalog.Queue
	shards []*shard
	poll   pollState
	closed atomic.Bool
	served atomic.Int64 // subscribers

	mu       sync.Mutex // guards the rest
	changed  chan struct{}
	doubtful bool // the queue's rows were seen changed: is it still there?
	replaced bool // another database answers
}

// Follow begins to follow a queue, which MUST still be the one with this id, from the offsets given, one a shard. The caller closes the Tail.
func (e *Engine) Follow(ctx context.Context, t tenant.ID, name string, id int64, from []message.Offset) (*Tail, error) {
	q, err := e.logQueue(ctx, t, name, id)
	if err != nil {
		return nil, err
	}
	if len(from) != len(q.Shards) {
		return nil, fmt.Errorf("follow queue %q: %d offsets for %d shards: %w", name, len(from), len(q.Shards), ErrLogReplaced)
	}
	f := &Tail{e: e, queue: q, changed: make(chan struct{})}
	e.mu.Lock()
	for _, id := range q.Shards {
		s := e.shardOf(id)
		s.follow(f)
		f.shards = append(f.shards, s)
	}
	e.tails[f] = struct{}{}
	e.mu.Unlock()
	e.metrics.tails.Inc()
	for i := range from {
		if from[i] > f.Head(i) {
			if err := e.prove(ctx, q, i, from[i]); err != nil {
				f.Close()
				return nil, err
			}
		}
	}
	e.poller.watch(f, true)
	return f, nil
}

// Close ends it.
func (f *Tail) Close() {
	if f.closed.Swap(true) {
		return
	}
	f.e.metrics.tails.Dec()
	f.e.mu.Lock()
	defer f.e.mu.Unlock()
	delete(f.e.tails, f)
	for _, s := range f.shards {
		s.unfollow(f)
		if s.unused() && f.e.shards[s.id] == s {
			delete(f.e.shards, s.id)
		}
	}
}

// Serve says how many subscribers the Tail is for.
func (f *Tail) Serve(subscribers int64) {
	if f.served.Swap(subscribers) > 0 || subscribers <= 0 {
		return
	}
	select {
	case f.e.firstServed <- struct{}{}:
	default: // whoever takes the token sees this one too
	}
}

// FirstSubscribers gets a token when a queue that had no subscribers here may have some.
func (e *Engine) FirstSubscribers() <-chan struct{} { return e.firstServed }

// Subscribers counts what follows logs here, by queue.
func (e *Engine) Subscribers() map[int64]int64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	out := make(map[int64]int64, len(e.tails))
	for f := range e.tails {
		if n := f.served.Load(); n > 0 {
			out[f.belongs().ID] += n
		}
	}
	return out
}

// Shards is how many logs the queue has.
func (f *Tail) Shards() int { return len(f.shards) }

// Head is an offset below which everything of a shard is committed; the true head is there or further.
func (f *Tail) Head(shard int) message.Offset { return message.Offset(f.shards[shard].head.Load()) }

// Changed returns a channel that is closed when a head has moved or Check has something to say. Get it before looking.
func (f *Tail) Changed() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.changed
}

// Check says whether the log is still the queue's: it returns an error matching store.ErrQueueNotFound once the queue is gone, and ErrLogReplaced when
// another database answers. It costs nothing while nothing has changed.
func (f *Tail) Check(ctx context.Context) error {
	f.mu.Lock()
	doubtful, replaced := f.doubtful, f.replaced
	f.doubtful = false
	f.mu.Unlock()
	switch {
	case replaced:
		return ErrLogReplaced
	case !doubtful:
		return nil
	}
	q, err := f.e.logQueue(ctx, f.queue.Tenant, f.queue.Name, f.queue.ID)
	if err != nil {
		f.doubt()
		return err
	}
	f.mu.Lock()
	f.queue = q
	f.mu.Unlock()
	return nil
}

func (f *Tail) wake() {
	f.mu.Lock()
	defer f.mu.Unlock()
	close(f.changed)
	f.changed = make(chan struct{})
}

func (f *Tail) doubt() {
	f.mu.Lock()
	f.doubtful = true
	f.mu.Unlock()
	f.wake()
}

// replace ends it: the log it follows is not the one that answers now.
func (f *Tail) replace() {
	f.mu.Lock()
	f.replaced = true
	f.mu.Unlock()
	f.wake()
}

func (f *Tail) belongs() *catalog.Queue {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.queue
}

func (f *Tail) pace() *pollState { return &f.poll }

func (f *Tail) wanted() bool { return !f.closed.Load() }

func (f *Tail) known(q *question) {
	for _, s := range f.shards {
		q.shard(s)
	}
}

func (f *Tail) found(q *question, heads map[message.ShardID]store.Head, _ map[window.GroupShardID]window.Version) (news bool) {
	row := f.belongs()
	for _, s := range f.shards {
		if q.news(s, heads) {
			news = true
		}
		head, there := heads[s.id]
		if !there {
			f.e.catalog.InvalidateQueue(row.Tenant, row.Name)
		}
		if !there || f.e.catalog.InvalidateOlder(row, head.ConfigVersion) {
			f.doubt()
		}
	}
	return news
}

func (f *Tail) told(uint64, bool) {}

func (f *Tail) failUnchecked(error) {}
