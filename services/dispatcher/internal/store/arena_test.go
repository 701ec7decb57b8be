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

// arena is what the engines share: the log and the groups with their consumers.
type arena struct {
	bench  *bench
	shard  message.ShardID
	groups []*arenaGroup

	mu  sync.RWMutex // guards log
	log windowtest.Log

	changes, locked, lost, early, letters atomic.Int64

	kinds kinds
}

// arenaGroup is one group's state: its consumers, and the history so far.
type arenaGroup struct {
	id     lease.GroupShardID
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
	a := &arena{bench: b, shard: b.shard()}
	for i := range groupCount {
		p := window.Policy{Mode: queue.Ordered, OnFailure: queue.Block, MaxAttempts: 3, Backoff: queue.Backoff{Base: 5 * time.Millisecond, Cap: 40 * time.Millisecond}}
		switch i % 4 {
		case 1:
			p.OnFailure = queue.Skip
		case 2:
			p.Mode = queue.Shared
		}
		g := &arenaGroup{id: b.groupShard(a.shard), policy: p, pending: make(map[window.Version][]windowtest.Record), next: 1, max: 1}
		g.checker = windowtest.NewChecker(g.policy, 0, a.hash)
		for range consumerCount {
			g.idle = append(g.idle, &consumer{})
		}
		a.groups = append(a.groups, g)
	}
	return a
}

func (a *arena) hash(off window.Offset) (uint64, bool) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return a.log.Hash(off)
}

// push keeps some messages in front of the slowest group. Few keys have most of them.
func (a *arena) push(ctx context.Context) error {
	rnd := rand.New(rand.NewPCG(7, 7))
	ticker := time.NewTicker(2 * time.Millisecond)
	defer ticker.Stop()
	var head window.Offset
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		behind := window.Offset(0)
		for _, g := range a.groups {
			g.mu.Lock()
			behind = max(behind, g.low)
			g.mu.Unlock()
		}
		if head-behind > 2000 {
			continue
		}
		hashes := make([]uint64, 1+rnd.IntN(60))
		for i := range hashes {
			if hashes[i] = uint64(rnd.IntN(1 + rnd.IntN(60))); rnd.IntN(4) == 0 {
				hashes[i] = rnd.Uint64()
			}
		}
		append1 := appendOf(a.shard, hashes...)
		append1.Known = head
		results, err := a.bench.store.Flush(context.WithoutCancel(ctx), []store.Append{append1})
		if err != nil {
			return err
		}
		a.mu.Lock()
		head = a.log.Append(hashes...)
		a.mu.Unlock()
		if want := results[0].Base + message.Offset(len(hashes)); head != want {
			return fmt.Errorf("head %d, want %d", head, want)
		}
	}
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
