package store_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"postrider.dev/services/dispatcher/internal/domain/lease"
	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/queue"
	"postrider.dev/services/dispatcher/internal/domain/window"
	"postrider.dev/services/dispatcher/internal/domain/window/windowtest"
	"postrider.dev/services/dispatcher/internal/store"
)

// arena is what the engines share: the logs of two queues, and the groups of each with their consumers.
type arena struct {
	bench  *bench
	logs   []*arenaLog
	groups []*arenaGroup

	changes, locked, lost, early, letters atomic.Int64

	kinds kinds
}

// arenaLog is the log of a queue as the engines see it. What commits is told in any order; a message is there once all before it are.
type arenaLog struct {
	shard message.ShardID

	mu    sync.RWMutex // guards the rest
	log   windowtest.Log
	early map[window.Offset][]uint64 // what is told and not there yet
}

func (l *arenaLog) add(base window.Offset, hashes []uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.early[base] = hashes
	for {
		head := l.log.Head()
		next, ok := l.early[head]
		if !ok {
			return
		}
		delete(l.early, head)
		l.log.Append(next...)
	}
}

func (l *arenaLog) head() window.Offset {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.log.Head()
}

func (l *arenaLog) hash(off window.Offset) (uint64, bool) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.log.Hash(off)
}

// arenaGroup is one group's state: its consumers, and the history so far.
type arenaGroup struct {
	id     lease.GroupShardID
	log    *arenaLog
	policy window.Policy

	mu       sync.Mutex // guards all below
	idle     []*consumer
	checker  *windowtest.Checker
	pending  map[window.Version][]windowtest.Record
	next     window.Version // the first that is not checked
	max      window.Version
	low      window.Offset
	refusals int
}

// consumer holds at most one lease.
type consumer struct {
	epoch window.Epoch
	open  []window.Message
}

func newArena(b *bench) *arena {
	a := &arena{bench: b}
	for range queueCount {
		a.logs = append(a.logs, &arenaLog{shard: b.shard(), early: map[window.Offset][]uint64{}})
	}
	for i := range groupCount {
		log := a.logs[i/4%queueCount]
		p := window.Policy{Mode: queue.Ordered, OnFailure: queue.Block, MaxAttempts: 3, Backoff: queue.Backoff{Base: 5 * time.Millisecond, Cap: 40 * time.Millisecond}}
		switch i % 4 {
		case 1:
			p.OnFailure = queue.Skip
		case 2:
			p.Mode = queue.Shared
		}
		g := &arenaGroup{id: b.groupShard(log.shard), log: log, policy: p, pending: make(map[window.Version][]windowtest.Record), next: 1, max: 1}
		g.checker = windowtest.NewChecker(g.policy, 0, log.hash)
		for range consumerCount {
			g.idle = append(g.idle, &consumer{})
		}
		a.groups = append(a.groups, g)
	}
	return a
}

// push keeps some messages in front of the fastest group of each queue. Few keys have most of them.
func (a *arena) push(ctx context.Context) error {
	rnd := rand.New(rand.NewPCG(7, 7))
	ticker := time.NewTicker(2 * time.Millisecond)
	defer ticker.Stop()
	for i := 0; ; i++ {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		log := a.logs[i%len(a.logs)]
		if !a.wants(log) {
			continue
		}
		hashes := someHashes(rnd, 60)
		one := appendOf(log.shard, hashes...)
		one.Known = log.head()
		results, err := a.bench.store.Flush(context.WithoutCancel(ctx), []store.Append{one})
		if err != nil {
			return err
		}
		if results[0].Status != store.StatusAppended {
			return fmt.Errorf("push: status %v", results[0].Status)
		}
		log.add(results[0].Base, hashes)
	}
}

// wants says whether a log has too few messages in front of its groups.
func (a *arena) wants(log *arenaLog) bool {
	low := window.Offset(0)
	for _, g := range a.groups {
		if g.log == log {
			g.mu.Lock()
			low = max(low, g.low)
			g.mu.Unlock()
		}
	}
	return log.head()-low <= 2000
}

func someHashes(rnd *rand.Rand, most int) []uint64 {
	hashes := make([]uint64, 1+rnd.IntN(most))
	for i := range hashes {
		if hashes[i] = uint64(rnd.IntN(1 + rnd.IntN(60))); rnd.IntN(4) == 0 {
			hashes[i] = rnd.Uint64()
		}
	}
	return hashes
}

// checkLag is how many versions a record may be late.
const checkLag = 1500

// record takes one part of the history; parts come in about the order of versions.
func (g *arenaGroup) record(r windowtest.Record) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.pending[r.Change.From] = append(g.pending[r.Change.From], r)
	if r.Change.Empty() {
		g.refusals++
		return
	}
	g.max, g.low = max(g.max, r.Change.To), max(g.low, r.Change.Low)
	for g.next+checkLag < g.max {
		g.check()
	}
}

// check replays what is known of the next version. The lock is held.
func (g *arenaGroup) check() {
	records := g.pending[g.next]
	delete(g.pending, g.next)
	slices.SortStableFunc(records, func(x, y windowtest.Record) int { return int(x.Change.To - y.Change.To) })
	for _, r := range records {
		g.checker.Check(r)
	}
	g.next++
}

func (g *arenaGroup) finish() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for g.next <= g.max {
		g.check()
	}
}
