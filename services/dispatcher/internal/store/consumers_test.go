package store_test

import (
	"slices"
	"sync"
	"time"

	"postrider.dev/services/dispatcher/internal/domain/settled"
	"postrider.dev/services/dispatcher/internal/domain/window"
)

// wish is what a consumer asks for next: with a lease it settles, renews, releases or forgets; without one it pops.
func (e *engine) wish(c *consumer) window.Request {
	if len(c.open) == 0 {
		return e.popWish()
	}
	switch dice := e.rnd.IntN(20); {
	case dice == 0: // crashed: the lease runs out
		e.arena.kinds.saw("crash")
		c.open = nil
		return e.popWish()
	case dice == 1:
		return &window.Renew{Epoch: c.epoch, Lease: e.leaseTime()}
	case dice == 2:
		return &window.Release{Epoch: c.epoch}
	case dice == 3:
		return &window.Release{Epoch: c.epoch, Offsets: []window.Offset{c.open[e.rnd.IntN(len(c.open))].Offset}}
	case dice == 4:
		return &window.Settle{Epoch: c.epoch, Items: []window.Item{{Offset: window.MaxOffset, Through: true, Verdict: window.Ack}}}
	case dice < 9:
		return &window.Settle{Epoch: c.epoch, Items: e.verdicts(c, 1+e.rnd.IntN(len(c.open)))}
	case dice == 9: // again what was settled, or by a lease that is gone
		return &window.Settle{Epoch: c.epoch - window.Epoch(e.rnd.IntN(2))<<16, Items: []window.Item{{Offset: c.open[0].Offset, Verdict: window.Ack}}}
	default:
		return &window.Settle{Epoch: c.epoch, Items: e.verdicts(c, len(c.open))}
	}
}

func (e *engine) leaseTime() time.Duration {
	if e.rnd.IntN(3) == 0 {
		return time.Duration(1+e.rnd.IntN(20)) * time.Millisecond // many come too late
	}
	return time.Duration(50+e.rnd.IntN(400)) * time.Millisecond
}

func (e *engine) popWish() window.Request {
	p := &window.Pop{MaxMessages: 1 + e.rnd.IntN(12), MaxBytes: 1 << 20, Lease: e.leaseTime(), Holder: "c"}
	if e.rnd.IntN(5) == 0 {
		p.Named, p.Hash = true, uint64(e.rnd.IntN(20))
	}
	if e.rnd.IntN(4) == 0 {
		p.MaxPartitions = 1
	}
	return p
}

// wantSeeks is about how often a group is moved in a history: the checker looks at the whole log each time.
const wantSeeks = 25

// seekWish moves a group, or one of its keys, to somewhere near the end of the log. It is planned under the lock and alone.
func (e *engine) seekWish(log *arenaLog) window.Request {
	head := log.head()
	s := &window.Seek{To: head - window.Offset(e.rnd.Int64N(min(int64(head), 500)+1)), Deleted: &settled.Marks{}}
	if s.Keyed = e.rnd.IntN(2) == 0; s.Keyed {
		s.Hash = uint64(e.rnd.IntN(20))
	}
	return s
}

func (t *turn) seeks() bool {
	return slices.ContainsFunc(t.requests, func(r window.Request) bool { _, ok := r.(*window.Seek); return ok })
}

// verdicts are about n messages of the lease, mostly good ones.
func (e *engine) verdicts(c *consumer, n int) []window.Item {
	open := slices.Clone(c.open)
	e.rnd.Shuffle(len(open), func(i, j int) { open[i], open[j] = open[j], open[i] })
	items := make([]window.Item, 0, n)
	for _, m := range open[:n] {
		item := window.Item{Offset: m.Offset, Verdict: window.Ack}
		switch e.rnd.IntN(24) {
		case 0:
			item.Verdict, item.Reason = window.Nack, "try again"
		case 1:
			item.Verdict, item.Reason, item.HasDelay, item.Delay = window.Nack, "soon", true, time.Duration(e.rnd.IntN(10))*time.Millisecond
		case 2:
			item.Verdict, item.Reason = window.Reject, "no"
		}
		items = append(items, item)
	}
	return items
}

// kinds counts what happened, by name.
type kinds struct {
	mu     sync.Mutex // guards counts
	counts map[string]int
}

// wantKinds must have happened in a history that is to prove anything.
func wantKinds() []string {
	return []string{
		"ack", "partial settlement", "nack", "reject", "late settlement", "repeated ack", "renew", "late renew", "release", "crash", "engine crash", "seek", "seek of a key", "fenced lease",
		"transaction", "transaction over two queues", "refused transaction", "repeated transaction",
	}
}

func (k *kinds) saw(kind string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.counts == nil {
		k.counts = map[string]int{}
	}
	k.counts[kind]++
}

// sawOutcome notes of which kind a wish with its outcome was.
func (k *kinds) sawOutcome(c *consumer, wish window.Request, out window.Outcome) {
	late := out.Result == window.Stale
	switch r := wish.(type) {
	case *window.Release:
		if !late {
			k.saw("release")
		}
	case *window.Renew:
		k.saw(map[bool]string{false: "renew", true: "late renew"}[late])
	case *window.Settle:
		if late {
			k.saw("late settlement")
			return
		}
		if len(r.Items) < len(c.open) && !r.Items[0].Through {
			k.saw("partial settlement")
		}
		for j, item := range out.Items {
			switch verdict := r.Items[j].Verdict; {
			case item.Result == window.AlreadySettled && verdict == window.Ack:
				k.saw("repeated ack")
			case item.Result == window.Done || item.Result == window.Retrying || item.Result == window.DeadLettered:
				k.saw(map[window.Verdict]string{window.Ack: "ack", window.Nack: "nack", window.Reject: "reject"}[verdict])
			}
		}
	}
}

// sawSeek notes of which kind a seek was, and whether somebody lost a lease by it.
func (k *kinds) sawSeek(wish window.Request, out window.Outcome) {
	if seek, ok := wish.(*window.Seek); ok {
		k.saw(map[bool]string{false: "seek", true: "seek of a key"}[seek.Keyed])
	}
	if out.Leases > 0 {
		k.saw("fenced lease")
	}
}

// tell lets consumers know what came of their wishes.
func (e *engine) tell(t *turn) {
	outcomes := t.outcomes
	if t.seeks() {
		e.arena.kinds.sawSeek(t.requests[0], outcomes[0])
	}
	for i, c := range t.users {
		e.arena.kinds.sawOutcome(c, t.requests[i], outcomes[i])
		switch r := t.requests[i].(type) {
		case *window.Pop:
			if c.open = nil; outcomes[i].Result == window.Done {
				c.epoch, c.open = outcomes[i].Epoch, outcomes[i].Messages
			}
		case *window.Settle:
			if c.epoch == r.Epoch && e.rnd.IntN(10) > 0 { // now and then it asks again, as if it had not heard
				c.open = remaining(c.open, r, outcomes[i])
			}
		case *window.Release:
			c.open = nil
		case *window.Renew:
			if outcomes[i].Result == window.Stale {
				c.open = nil
			}
		}
	}
}

// remaining is what a consumer still has to settle.
func remaining(open []window.Message, r *window.Settle, out window.Outcome) []window.Message {
	if out.Result == window.Stale || r.Items[0].Through {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(open), func(m window.Message) bool {
		return slices.ContainsFunc(r.Items, func(item window.Item) bool { return item.Offset == m.Offset })
	})
}
