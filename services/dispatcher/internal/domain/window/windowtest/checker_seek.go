package windowtest

import (
	"maps"

	"postrider.dev/services/dispatcher/internal/domain/settled"
	"postrider.dev/services/dispatcher/internal/domain/window"
)

// seek replays a seek: leases lose what is sought, failures are forgotten, and the place decides alone what is done.
func (c *Checker) seek(req *window.Seek, out window.Outcome) {
	if out.Result != window.Done {
		c.flag(RuleSeek, req.To, "is answered %d", out.Result)
		return
	}
	about := func(off window.Offset) bool { return !req.Keyed || c.hashOf(off) == req.Hash }
	c.fence(about, out)
	for off := range c.rows {
		if about(off) {
			delete(c.rows, off)
		}
	}
	head := c.top
	for ; ; head++ {
		if _, ok := c.hash(head); !ok {
			break
		}
	}
	done := map[window.Offset]bool{}
	for off := range head {
		if about(off) && (off < req.To || req.Deleted.Has(off)) || !about(off) && c.isDone(off) {
			done[off] = true
		}
	}
	c.done, c.start, c.top = done, 0, head
	c.placeLanes()
	c.resetBits(&c.now.rec.Change)
}

// fence closes what leases hold of that, and compares the counts.
func (c *Checker) fence(about func(window.Offset) bool, out window.Outcome) {
	messages, leases := 0, 0
	for e, l := range maps.Clone(c.leases) {
		n := 0
		for _, off := range sorted(l.open) {
			if about(off) {
				c.close(e, off)
				n++
			}
		}
		if messages += n; n > 0 {
			leases++
		}
	}
	if messages != out.Count || leases != out.Leases {
		c.flag(RuleSeek, 0, "%d messages of %d leases are said to be fenced, should be %d of %d", out.Count, out.Leases, messages, leases)
	}
}

// placeLanes begins to look at every key from the start of the log again.
func (c *Checker) placeLanes() {
	c.keys, c.seen = map[uint64]*lane{}, 0
	for off := range c.holder {
		c.lane(c.hashOf(off), off).leased++
	}
}

// resetBits takes every chunk row away where the change does.
func (c *Checker) resetBits(ch *window.Change) {
	if !ch.Reset {
		return
	}
	bits, err := settled.New(ch.Hot, nil)
	if err != nil {
		c.flag(RuleRows, 0, "%v", err)
		return
	}
	c.bits = bits
}
