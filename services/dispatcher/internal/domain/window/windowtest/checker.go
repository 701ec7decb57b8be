package windowtest

import (
	"fmt"
	"maps"
	"slices"

	"postrider.dev/services/dispatcher/internal/domain/settled"
	"postrider.dev/services/dispatcher/internal/domain/window"
)

// Rule is a promise the checker watches.
type Rule string

// The rules.
const (
	RuleVersion Rule = "versions are dense and changes apply in their order"
	RuleOrder   Rule = "messages of a key are handed out in order"
	RuleLease   Rule = "a key (ordered) or a message (shared) is in one lease at a time"
	RuleSettled Rule = "a settled message is never handed out again"
	RuleStale   Rule = "a dead lease changes nothing"
	RuleBackoff Rule = "a message is never handed out before its retry is due"
	RuleDelay   Rule = "a message is never handed out before it is as old as the queue wants it"
	RuleExpiry  Rule = "a lease is never reclaimed before it ends, nor shortened"
	RuleCharge  Rule = "a failure is charged to the message that failed, and to no neighbour"
	RuleAlone   Rule = "a suspect travels alone"
	RuleRefusal Rule = "a refusal is true"
	RuleSeek    Rule = "a seek fences what is leased, forgets failures, and the place alone decides what is done"
	RuleRows    Rule = "rows say what the outcomes said"
	RuleTrim    Rule = "a trim takes what is unsettled and not leased, counts it, and a pop is told once"
)

// Record is one committed change with what was asked and answered. Where nothing was written (From equals To) it carries refusals that
// were given from a view known to be current.
type Record struct {
	Change   window.Change
	At       window.DBTime // the stamp; 0 where nothing was written
	Requests []window.Request
	Outcomes []window.Outcome
}

// Violation is one broken rule.
type Violation struct {
	Rule    Rule
	Version window.Version
	Offset  window.Offset
	Detail  string
}

// String is for test output.
func (v Violation) String() string {
	return fmt.Sprintf("version %d, offset %d: %s: %s", v.Version, v.Offset, v.Rule, v.Detail)
}

// Checker replays the history of one group-shard, in version order, against a naive model: a map of what is done, leases as sets.
type Checker struct {
	policy  window.Policy
	hash    func(window.Offset) (uint64, bool)
	version window.Version
	start   window.Offset // everything before it is done
	top     window.Offset // nothing from it on is done
	done    map[window.Offset]bool
	bits    *settled.Set
	leases  map[window.Epoch]*held
	holder  map[window.Offset]window.Epoch
	rows    map[window.Offset]window.RetryRow
	keys    map[uint64]*lane
	seen    window.Offset // keys cover the log up to here
	losses  window.Losses
	tail    func() window.Offset
	born    func(window.Offset) window.DBTime

	handedOut map[window.Offset]bool
	found     []Violation
	now       *facts
}

// held is a lease in the model.
type held struct {
	open    map[window.Offset]bool
	granted int
	expires window.DBTime
}

// lane is the messages of one key, in order; before floor all is done.
type lane struct {
	offs   []window.Offset
	floor  int
	leased int
}

// facts is what one record did.
type facts struct {
	rec      *Record
	failed   map[window.Offset]bool // nacked, or expired alone
	rejected map[window.Offset]bool
	done     []window.Offset
	suspects []window.Offset        // expired: must be marked to travel alone
	leased   map[window.Offset]bool // when the record began
	trimmed  map[window.Offset]bool // taken by a trim
}

// NewChecker begins with an untouched group-shard at version 1 that starts at an offset. hash tells the key of each message in the log.
func NewChecker(p window.Policy, start window.Offset, hash func(window.Offset) (uint64, bool)) *Checker {
	bits, err := settled.New(settled.Start(start), nil)
	if err != nil {
		panic(err)
	}
	return &Checker{
		policy: p, hash: hash, version: 1, start: start, bits: bits, seen: start,
		tail: func() window.Offset { return 0 },
		done: map[window.Offset]bool{}, leases: map[window.Epoch]*held{}, holder: map[window.Offset]window.Epoch{},
		handedOut: map[window.Offset]bool{}, rows: map[window.Offset]window.RetryRow{}, keys: map[uint64]*lane{},
	}
}

// Replay checks a whole history, in any order, and returns what is wrong with it.
func (c *Checker) Replay(history []Record) []Violation {
	history = slices.Clone(history)
	slices.SortStableFunc(history, func(a, b Record) int {
		if d := int(a.Change.From - b.Change.From); d != 0 {
			return d
		}
		return int(a.Change.To - b.Change.To) // refusals of a version come before the change that ended it
	})
	for i := range history {
		c.Check(history[i])
	}
	return c.Violations()
}

// Violations are those found so far.
func (c *Checker) Violations() []Violation { return c.found }

// Check takes the next record.
func (c *Checker) Check(r Record) {
	if r.Change.From != c.version || r.Change.To != c.version && r.Change.To != c.version+1 {
		c.flag(RuleVersion, 0, "change from %d to %d at version %d", r.Change.From, r.Change.To, c.version)
		return
	}
	c.now = &facts{
		rec: &r, failed: map[window.Offset]bool{}, rejected: map[window.Offset]bool{},
		leased: map[window.Offset]bool{}, trimmed: map[window.Offset]bool{},
	}
	for off := range c.holder {
		c.now.leased[off] = true
	}
	c.version = r.Change.To
	if r.Change.NotBefore > r.At && !r.Change.Empty() {
		c.flag(RuleBackoff, 0, "applied at %d, not before %d", r.At, r.Change.NotBefore)
	}
	for i, req := range r.Requests {
		switch req := req.(type) {
		case *window.Settle:
			c.settle(req, r.Outcomes[i])
		case *window.SettleAt:
			c.settleAt(req, r.Outcomes[i])
		case *window.Delete:
			c.settleAt(&window.SettleAt{Offset: req.Offset, Hash: req.Hash, Verdict: window.Ack}, r.Outcomes[i])
		case *window.Renew:
			c.renew(req, r.Outcomes[i])
		case *window.Release:
			c.release(req, r.Outcomes[i])
		case *window.Seek:
			c.seek(req, r.Outcomes[i])
		}
	}
	c.bits.Apply(settled.Diff{
		Hot: orHot(r.Change, c.bits), Low: orLow(r.Change, c.bits), Below: orBelow(r.Change, c.bits),
		Upserts: r.Change.ChunkUpserts, Deletes: r.Change.ChunkDeletes,
	})
	c.reclaims()
	for i, req := range r.Requests {
		if trim, ok := req.(*window.Trim); ok && r.Outcomes[i].Result == window.Done {
			c.trim(trim, r.Outcomes[i])
		}
	}
	for i, req := range r.Requests {
		if pop, ok := req.(*window.Pop); ok && r.Outcomes[i].Result == window.Done {
			c.pop(pop, r.Outcomes[i])
		}
	}
	c.compareLeases()
	c.compareRows()
	c.compareBits()
	if !r.Change.Empty() && r.Change.Losses != c.losses {
		c.flag(RuleTrim, 0, "losses are written as %+v, should be %+v", r.Change.Losses, c.losses)
	}
}

func (c *Checker) flag(rule Rule, off window.Offset, format string, args ...any) {
	c.found = append(c.found, Violation{Rule: rule, Version: c.version, Offset: off, Detail: fmt.Sprintf(format, args...)})
}

// settle replays a settle: what is said about single messages in the order of the log, then what is said about all others.
func (c *Checker) settle(req *window.Settle, out window.Outcome) {
	if len(out.Items) != len(req.Items) {
		c.flag(RuleRefusal, 0, "%d items got %d answers", len(req.Items), len(out.Items))
		return
	}
	held := map[window.Offset]bool{}
	if l := c.leases[req.Epoch]; l != nil {
		held = maps.Clone(l.open)
	}
	understood := true
	for _, off := range named(req.Items) {
		understood = c.message(req, out, off, held) && understood
	}
	for _, nacks := range []bool{false, true} {
		for i := range req.Items {
			item := &req.Items[i]
			switch {
			case !item.Through || (item.Verdict == window.Nack) != nacks:
			case understood || len(held) == 0:
				c.rest(req.Epoch, item, out.Items[i].Result, len(held) > 0)
			case out.Items[i].Result != window.Refused:
				c.flag(RuleRefusal, 0, "a verdict on the rest is answered %d beside one that was refused", out.Items[i].Result)
			}
		}
	}
}

// message replays what is said about one message, whose lease held these when the settle began. It returns false if anything was refused.
func (c *Checker) message(req *window.Settle, out window.Outcome, off window.Offset, held map[window.Offset]bool) (understood bool) {
	understood = true
	best, result := window.Verdict(0), window.Result(0)
	for i := range req.Items {
		item, got := &req.Items[i], out.Items[i].Result
		if item.Through || item.Offset != off {
			continue
		}
		understood = understood && (!isRefusal(got) || got == window.AlreadySettled && item.Verdict == window.Ack)
		if !held[off] {
			c.refused(req.Epoch, off, got, len(held) > 0)
		} else if best == 0 || rank(item.Verdict) < rank(best) {
			best, result = item.Verdict, got
		}
	}
	if !held[off] {
		return understood
	}
	l := c.leases[req.Epoch]
	switch open := l != nil && l.open[off]; {
	case open && isRefusal(result):
		c.flag(RuleRefusal, off, "is answered %d by lease %d, which holds it", result, req.Epoch)
	case open && result == window.Returned:
		c.flag(RuleRefusal, off, "is said to have come back and nothing before it failed")
	case open:
		c.verdict(req.Epoch, off, best, result)
	case result != window.Returned:
		c.flag(RuleOrder, off, "is answered %d though one before it in its partition failed", result)
	}
	for i := range req.Items { // the others about it say the same, or that it is settled
		item, got := &req.Items[i], out.Items[i].Result
		if item.Through || item.Offset != off || got == result {
			continue
		}
		if got != window.AlreadySettled || item.Verdict == best {
			c.flag(RuleRefusal, off, "is answered %d and %d", result, got)
		} else if !c.isDone(off) {
			c.flag(RuleRefusal, off, "is said to be settled")
		}
	}
	return understood
}

// refused checks the answer about a message that the lease does not hold.
func (c *Checker) refused(e window.Epoch, off window.Offset, got window.Result, open bool) {
	switch {
	case got == window.AlreadySettled && c.isDone(off), got == window.Stale && !open, got == window.NotHeld && open:
	case isRefusal(got):
		c.flag(RuleRefusal, off, "is answered %d by lease %d", got, e)
	default:
		c.flag(RuleStale, off, "is answered %d by lease %d, which does not hold it", got, e)
	}
}

// rest replays a verdict on all that is left of a lease.
func (c *Checker) rest(e window.Epoch, item *window.Item, got window.Result, open bool) {
	n := 0
	l := c.leases[e]
	for _, off := range sorted(openOf(l)) {
		if off <= item.Offset && l.open[off] && (!item.Keyed || c.hashOf(off) == item.Hash) {
			n++
			c.verdict(e, off, item.Verdict, 0)
			if item.Verdict == window.Nack && c.blocks() {
				c.closeBehind(e, off)
			}
		}
	}
	switch {
	case n == 0:
		c.refused(e, item.Offset, got, open)
	case isRefusal(got):
		c.flag(RuleRefusal, item.Offset, "is answered %d by lease %d, which holds %d", got, e, n)
	}
}

// verdict applies one verdict; result 0 means "whatever the model says".
func (c *Checker) verdict(e window.Epoch, off window.Offset, v window.Verdict, result window.Result) {
	last := c.rows[off].Failures+1 >= c.policy.MaxAttempts
	c.close(e, off)
	switch {
	case v == window.Ack:
		c.finish(off)
		if result != 0 && result != window.Done {
			c.flag(RuleCharge, off, "is acked and answered %d", result)
		}
	case v == window.Reject:
		c.now.rejected[off] = true
		c.finish(off)
		if result != 0 && result != window.DeadLettered {
			c.flag(RuleCharge, off, "is rejected and answered %d", result)
		}
	case last:
		c.now.failed[off] = true
		c.finish(off)
		if result != 0 && result != window.DeadLettered {
			c.flag(RuleCharge, off, "the last attempt failed and it is no dead letter")
		}
	default:
		c.now.failed[off] = true
		if result != 0 && result != window.Retrying {
			c.flag(RuleCharge, off, "has attempts left and is not retried")
		}
		if c.blocks() {
			c.closeBehind(e, off)
		}
	}
}

func (c *Checker) settleAt(req *window.SettleAt, out window.Outcome) {
	switch out.Result { //nolint:exhaustive // the others cannot be
	case window.AlreadySettled:
		if !c.isDone(req.Offset) {
			c.flag(RuleRefusal, req.Offset, "is said to be settled")
		}
	case window.Done, window.DeadLettered:
		if e, ok := c.holder[req.Offset]; ok {
			c.close(e, req.Offset)
		}
		delete(c.now.failed, req.Offset) // a nack beside it is void
		if req.Verdict == window.Reject {
			c.now.rejected[req.Offset] = true
		}
		c.finish(req.Offset)
	}
}

func (c *Checker) renew(req *window.Renew, out window.Outcome) {
	l := c.leases[req.Epoch]
	switch {
	case out.Result == window.Stale && l != nil:
		c.flag(RuleRefusal, 0, "lease %d is open and is said to be stale", req.Epoch)
	case out.Result == window.Done && l == nil:
		c.flag(RuleStale, 0, "lease %d was renewed and is gone", req.Epoch)
	case out.Result == window.Done:
		l.expires = max(l.expires, c.now.rec.At.Add(req.Lease))
	}
}

func (c *Checker) release(req *window.Release, out window.Outcome) {
	l := c.leases[req.Epoch]
	if out.Result != window.Done {
		if l != nil && len(req.Offsets) == 0 {
			c.flag(RuleRefusal, 0, "lease %d is open and is said to be stale", req.Epoch)
		}
		return
	}
	if l == nil {
		c.flag(RuleStale, 0, "lease %d was released and is gone", req.Epoch)
		return
	}
	offsets := req.Offsets
	if len(offsets) == 0 {
		offsets = sorted(l.open)
	}
	for _, off := range offsets {
		if l.open[off] {
			c.close(req.Epoch, off)
			if c.policy.Mode != "shared" {
				c.closeBehind(req.Epoch, off)
			}
		}
	}
}
