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
	only    int           // the one shard that can serve it, -1 = any
	arrived uint64        // order of arrival; polls that begin later have a greater number
	gone    atomic.Bool   // nobody waits for it any more: hand out nothing
	done    chan struct{} // closed when finished

	// Guarded by g.mu.
	state   popStateName
	place   *list.Element
	at      int  // the shard that plans it
	left    int  // shards to try after that one
	fed     bool // woken from the lists, not new
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
func (p *pop) wants(shard int) bool { return p.only < 0 || p.only == shard }

// start begins the first plan.
func (p *pop) start() {
	p.g.mu.Lock()
	defer p.g.mu.Unlock()
	p.restart()
}

// restart plans on every shard that may serve the pop, once. It needs g.mu.
func (p *pop) restart() {
	p.state = popPlanning
	n := len(p.g.shards)
	if p.only >= 0 {
		p.submit(p.only, 0)
		return
	}
	first := 0
	if n > 1 {
		first = int(p.g.turn.Add(1)) % n
	}
	p.submit(first, n-1)
}

// submit plans on one shard and, should it have nothing, on that many more after it. It needs g.mu.
func (p *pop) submit(shard, left int) {
	if p.only >= 0 {
		left = 0
	}
	p.at, p.left = shard, left
	if !p.g.shards[shard].submit(p.request()) {
		p.finish(ErrDraining)
	}
}

// request is the pop as a group-shard plans it.
func (p *pop) request() *request {
	want := p.want
	return &request{want: &want, dropped: p.gone.Load, done: p.planned}
}

// planned takes what a plan came to.
func (p *pop) planned(out window.Outcome, at window.DBTime, seq uint64, err error) {
	p.g.mu.Lock()
	defer p.g.mu.Unlock()
	p.seqs[p.at] = seq
	switch {
	case err != nil:
		p.finish(err)
	case out.Result == window.Done:
		p.granted(out, at)
	case out.Again && !p.gone.Load():
		p.submit(p.at, p.left)
	case p.left > 0 && !p.gone.Load():
		p.submit((p.at+1)%len(p.g.shards), p.left-1)
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
	if p.left > 0 && p.want.MaxMessages > 0 && p.want.MaxBytes > 0 && !p.gone.Load() {
		p.submit((p.at+1)%len(p.g.shards), p.left-1)
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
