package engine

import (
	"container/list"
	"sync/atomic"

	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/window"
)

type popStateName uint8

const (
	popPlanning popStateName = iota // a group-shard has it
	popParked                       // in the group's lists
	popFinished                     // done is closed
)

// pop is one caller's pop on its way.
//
//	            nothing on any shard
//	planning ----------------------> parked
//	   |   ^                           |
//	   |   +---- wake, poll with news -+
//	   |                               |
//	   +-----> finished <--------------+  (served, given up, or nothing and not willing to wait)
//
// "Nothing" is answered only after a poll that began after the pop arrived, and after a look at what that poll found: what another dispatcher
// committed before the pop is never overlooked.
type pop struct {
	g       *group
	want    window.Pop // what is still wanted
	noWait  bool
	skip    map[int][]message.Offset // by shard: those that turned out to be of another partition
	arrived uint64                   // order of arrival; polls that begin later have a greater number
	gone    atomic.Bool              // nobody waits for it any more: hand out nothing
	done    chan struct{}            // closed when finished

	// Guarded by g.mu.
	state   popStateName
	place   *list.Element
	at      int     // the shard that plans it
	rest    []int   // shards to try after that one, in this order
	owes    *gshard // woke it, and was passed by for a higher lane: it is to wake another one unless this one comes back to it
	fed     bool    // woken from the lists, not new
	checked bool
	away    bool     // sent away: end rather than park
	seqs    []uint64 // gshard.seq before the last plan on each shard

	// Written before done is closed, read after.
	parts []popPart
	stop  window.Stop
	err   error
}

// popPart is what one group-shard granted.
type popPart struct {
	s        *gshard
	epoch    window.Epoch
	expires  window.DBTime
	messages []window.Message
	told     window.Losses
}

// wants says whether the shard with this index may serve the pop.
func (p *pop) wants(shard int) bool {
	l := p.g.layout
	return !p.want.Named || l.Shard(l.Priority(shard), p.want.Hash) == shard
}

// start begins the first plan.
func (p *pop) start() {
	p.g.mu.Lock()
	defer p.g.mu.Unlock()
	p.restart()
}

// restart plans on every shard that may serve the pop, once. It needs g.mu.
func (p *pop) restart() {
	first := 0
	if len(p.g.shards) > 1 {
		first = int(p.g.turn.Add(1))
	}
	p.begin(first)
}

// begin plans on every shard that may serve the pop, once: on those of the highest lane first, and in each lane beginning with the place of first. It needs
// g.mu.
func (p *pop) begin(first int) {
	p.state = popPlanning
	l := p.g.layout
	turns := l.Turns()
	if p.want.Named {
		turns = l.Lanes
	}
	round := make([]int, turns)
	for n := range round {
		if p.want.Named {
			round[n] = l.NamedTurn(p.want.Hash, n)
		} else {
			round[n] = l.Turn(first, n)
		}
	}
	p.submit(round[0], round[1:])
}

// submit plans on one shard and, should it not have all that is wanted, on the rest after it. It needs g.mu.
func (p *pop) submit(shard int, rest []int) {
	p.at, p.rest = shard, rest
	if !p.g.shards[shard].submit(p.request()) {
		p.finish(ErrDraining)
	}
}

// request is the pop as a group-shard plans it.
func (p *pop) request() *request {
	want := p.want
	want.Skip = p.skip[p.at]
	return &request{want: &want, dropped: p.gone.Load, done: p.planned}
}

// planned takes what a plan came to.
func (p *pop) planned(out window.Outcome, at window.DBTime, seq uint64, err error) {
	p.g.mu.Lock()
	defer p.g.mu.Unlock()
	p.seqs[p.at] = seq
	if p.owes == p.g.shards[p.at] {
		p.owes = nil
	}
	switch {
	case err != nil:
		p.finish(err)
	case out.Result == window.Done:
		p.granted(out, at)
	case out.Again && !p.gone.Load():
		p.submit(p.at, p.rest)
	case len(p.rest) > 0 && !p.gone.Load():
		p.submit(p.rest[0], p.rest[1:])
	default:
		p.nothing(out)
	}
}

// granted keeps the messages, and goes on to the next shard while more are wanted. It needs g.mu.
func (p *pop) granted(out window.Outcome, at window.DBTime) {
	s := p.g.shards[p.at]
	p.parts = append(p.parts, popPart{s: s, epoch: out.Epoch, expires: at.Add(out.Lease), messages: out.Messages, told: out.Told})
	p.want.Started = true
	keys := make(map[uint64]struct{}, len(out.Messages))
	for _, m := range out.Messages {
		p.want.MaxMessages--
		p.want.MaxBytes -= message.WireBound(m.Size)
		keys[m.Hash] = struct{}{}
	}
	if p.want.MaxPartitions > 0 {
		p.want.MaxPartitions -= len(keys)
		if p.want.MaxPartitions <= 0 {
			p.finish(nil)
			return
		}
	}
	if len(p.rest) > 0 && p.want.MaxMessages > 0 && p.want.MaxBytes > 0 && !p.gone.Load() {
		p.submit(p.rest[0], p.rest[1:])
		return
	}
	p.finish(nil)
}

// nothing ends a round over the shards without a message from the last one. It needs g.mu.
func (p *pop) nothing(out window.Outcome) {
	if out.Stop != window.NoStop {
		p.stop = out.Stop
		p.g.e.metrics.frontierStops.Inc()
	}
	if p.fed {
		p.g.e.metrics.wakeMisses.Inc()
	}
	if len(p.parts) > 0 || p.gone.Load() || p.away || (p.noWait && p.checked) {
		p.finish(nil)
		return
	}
	p.g.park(p)
}

// finish needs g.mu.
func (p *pop) finish(err error) {
	if len(p.parts) == 0 {
		p.err = err // what was granted is handed out, whatever failed after it
	}
	p.state = popFinished
	close(p.done)
	if p.owes != nil {
		p.owes.refeed()
	}
}

// expire ends the wait for messages: a pop that has been told of everything up to now ends at once, another one still hears of the next poll.
func (p *pop) expire() {
	p.g.mu.Lock()
	defer p.g.mu.Unlock()
	p.noWait = true
	if p.state == popParked && p.checked {
		p.g.unpark(p)
		p.finish(nil)
	}
}

// sendAway ends the wait: a parked pop ends at once, one that is being planned ends with its plan, which may still grant it something.
func (p *pop) sendAway() {
	p.g.mu.Lock()
	defer p.g.mu.Unlock()
	p.away = true
	if p.state == popParked {
		p.g.unpark(p)
		p.finish(nil)
	}
}

// giveUp stops waiting: a parked pop ends at once, one that is being planned ends with its plan. done is closed soon after.
func (p *pop) giveUp() {
	p.gone.Store(true)
	p.g.mu.Lock()
	defer p.g.mu.Unlock()
	if p.state == popParked {
		p.g.unpark(p)
		p.finish(nil)
	}
}
