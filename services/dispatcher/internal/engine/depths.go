package engine

import (
	"context"
	"sync"
	"time"

	"postrider.dev/services/dispatcher/internal/engine/catalog"
	"postrider.dev/services/dispatcher/internal/store"
)

const (
	// depthEvery is how often what is pending is counted of queues that are pushed to and have a limit of messages.
	depthEvery = 500 * time.Millisecond
	// depthAge is the oldest count that a push is measured by.
	depthAge = time.Second
	// depthUsed is how long after its last push a queue is counted.
	depthUsed = 2 * time.Second
)

// depths knows what is pending of queues that limit it. A count is of one moment with the heads it counts to, so what this dispatcher appends is added
// exactly; what others append and what consumers settle is in the next count.
type depths struct {
	e    *Engine
	wake chan struct{}

	mu    sync.Mutex // guards known
	known map[int64]*counted
}

// counted is a count of one queue.
type counted struct {
	store.Depth

	at   time.Time // when it was asked for
	used time.Time
}

func newDepths(e *Engine) *depths {
	return &depths{e: e, wake: make(chan struct{}, 1), known: map[int64]*counted{}}
}

// room is how many messages a queue with such a limit takes now.
func (d *depths) room(ctx context.Context, q *catalog.Queue) (int64, error) {
	c := d.of(q.ID)
	if c == nil {
		if err := d.count(ctx, []int64{q.ID}); err != nil {
			return 0, err
		}
		if c = d.of(q.ID); c == nil {
			return 0, store.ErrQueueNotFound
		}
	}
	pending := c.Pending
	for shard, head := range c.Heads {
		pending += int64(max(d.e.headOf(shard)-head, 0))
	}
	room := int64(q.Config.Limits.Messages) - pending
	if room <= 0 {
		select {
		case d.wake <- struct{}{}: // somebody may have settled since
		default:
		}
	}
	return room, nil
}

// of returns a count that is not too old, and notes that it is used.
func (d *depths) of(queueID int64) *counted {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := d.e.clk.Now()
	c := d.known[queueID]
	if c == nil || now.Sub(c.at) >= depthAge {
		return nil
	}
	c.used = now
	return c
}

// count reads what is pending.
func (d *depths) count(ctx context.Context, queues []int64) error {
	at := d.e.clk.Now()
	ctx, cancel := context.WithTimeout(ctx, d.e.cfg.StatementTimeout)
	defer cancel()
	found, err := d.e.control.Depths(ctx, queues)
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, id := range queues {
		depth, ok := found[id]
		if !ok {
			delete(d.known, id)
			continue
		}
		used := at
		if old := d.known[id]; old != nil {
			used = old.used
		}
		d.known[id] = &counted{Depth: depth, at: at, used: used}
	}
	return nil
}

// run counts again what is used until ctx ends.
func (d *depths) run(ctx context.Context) error {
	timer := d.e.clk.NewTimer(depthEvery)
	defer timer.Stop()
	for {
		select {
		case <-d.wake:
			if d.e.clk.Sleep(ctx, depthEvery/5) != nil { // a full queue that is pushed to all the time is not counted all the time
				return nil
			}
		case <-timer.C():
		case <-ctx.Done():
			return nil
		}
		if queues := d.due(); len(queues) > 0 {
			if err := d.count(ctx, queues); err != nil && ctx.Err() == nil {
				d.e.trouble("count what is pending", err)
			}
		}
		timer.Reset(depthEvery)
	}
}

// due lists the queues in use and forgets the others.
func (d *depths) due() []int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := d.e.clk.Now()
	var queues []int64
	for id, c := range d.known {
		if now.Sub(c.used) > depthUsed {
			delete(d.known, id)
			continue
		}
		queues = append(queues, id)
	}
	return queues
}
