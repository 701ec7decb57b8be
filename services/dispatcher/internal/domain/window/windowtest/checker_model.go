package windowtest

import (
	"maps"
	"slices"

	"postrider.dev/services/dispatcher/internal/domain/queue"
	"postrider.dev/services/dispatcher/internal/domain/settled"
	"postrider.dev/services/dispatcher/internal/domain/window"
)

func sorted(set map[window.Offset]bool) []window.Offset { return slices.Sorted(maps.Keys(set)) }

// named are the offsets that items say something about one by one, ascending.
func named(items []window.Item) []window.Offset {
	set := map[window.Offset]bool{}
	for i := range items {
		if !items[i].Through {
			set[items[i].Offset] = true
		}
	}
	return sorted(set)
}

// rank orders verdicts about one message: the lowest holds.
func rank(v window.Verdict) int {
	return map[window.Verdict]int{window.Ack: 0, window.Reject: 1, window.Nack: 2}[v]
}

func isRefusal(r window.Result) bool {
	return slices.Contains([]window.Result{window.AlreadySettled, window.Stale, window.NotHeld, window.Refused}, r)
}

func openOf(l *held) map[window.Offset]bool {
	if l == nil {
		return nil
	}
	return l.open
}

func (c *Checker) blocks() bool {
	return c.policy.Mode == queue.Ordered && c.policy.OnFailure == queue.Block
}

func (c *Checker) isDone(off window.Offset) bool { return off < c.start || c.done[off] }

func (c *Checker) finish(off window.Offset) {
	c.done[off] = true
	c.top = max(c.top, off+1)
	c.now.done = append(c.now.done, off)
}

// close takes a message out of its lease.
func (c *Checker) close(e window.Epoch, off window.Offset) {
	l := c.leases[e]
	delete(l.open, off)
	delete(c.holder, off)
	c.lane(c.hashOf(off), off).leased--
	if len(l.open) == 0 {
		delete(c.leases, e)
	}
}

// closeBehind takes the later messages of a key out of a lease.
func (c *Checker) closeBehind(e window.Epoch, off window.Offset) {
	l, hash := c.leases[e], c.hashOf(off)
	if l == nil {
		return
	}
	for _, later := range sorted(l.open) {
		if later > off && c.hashOf(later) == hash {
			c.close(e, later)
		}
	}
}

func (c *Checker) hashOf(off window.Offset) uint64 {
	hash, _ := c.hash(off)
	return hash
}

// reclaims finds the leases the change took away without being asked: they must have ended.
func (c *Checker) reclaims() {
	for _, e := range c.now.rec.Change.LeaseDeletes {
		l, ok := c.leases[e]
		if !ok {
			continue // what was asked for closed it
		}
		if l.expires > c.now.rec.At {
			c.flag(RuleExpiry, 0, "lease %d ends at %d and was reclaimed at %d", e, l.expires, c.now.rec.At)
		}
		open := sorted(l.open)
		for _, off := range open {
			c.close(e, off)
		}
		if l.granted > 1 {
			c.now.suspects = append(c.now.suspects, open...)
		}
		if l.granted == 1 && len(open) == 1 {
			off := open[0]
			c.now.failed[off] = true
			if c.rows[off].Failures+1 >= c.policy.MaxAttempts {
				c.finish(off)
			} else {
				c.now.suspects = append(c.now.suspects, off)
			}
		}
	}
}

func (c *Checker) pop(req *window.Pop, out window.Outcome) {
	c.told(out)
	l := &held{open: map[window.Offset]bool{}, granted: len(out.Messages), expires: c.now.rec.At.Add(out.Lease)}
	for _, m := range out.Messages {
		l.open[m.Offset] = true
	}
	for _, m := range out.Messages {
		c.handed(m, l, len(out.Messages))
		if req.Named && c.hashOf(m.Offset) != req.Hash {
			c.flag(RuleOrder, m.Offset, "is of another partition than asked for")
		}
	}
	for _, m := range out.Messages {
		c.holder[m.Offset] = out.Epoch
		c.lane(c.hashOf(m.Offset), m.Offset).leased++
	}
	c.leases[out.Epoch] = l
}

// handed checks one message of a new lease against the model.
func (c *Checker) handed(m window.Message, l *held, together int) {
	hash := c.hashOf(m.Offset)
	if m.Hash != hash {
		c.flag(RuleRows, m.Offset, "is handed out under hash %d, has %d", m.Hash, hash)
	}
	c.ripe(m.Offset)
	if c.isDone(m.Offset) {
		c.flag(RuleSettled, m.Offset, "is handed out and was settled")
	}
	if e, ok := c.holder[m.Offset]; ok {
		c.flag(RuleLease, m.Offset, "is handed out and is in lease %d", e)
	}
	row, failed := c.current(m.Offset)
	if failed && row.AvailableAt > c.now.rec.At {
		c.flag(RuleBackoff, m.Offset, "is due at %d and handed out at %d", row.AvailableAt, c.now.rec.At)
	}
	if failed && m.Attempt != row.Deliveries+1 || !failed && m.Attempt != 1 {
		c.flag(RuleCharge, m.Offset, "is handed out as attempt %d after %d deliveries", m.Attempt, row.Deliveries)
	}
	if together > 1 && c.suspected(hash, m.Offset) {
		c.flag(RuleAlone, m.Offset, "is handed out with %d others", together-1)
	}
	if c.policy.Mode == queue.Ordered {
		c.inOrder(hash, m.Offset, l)
	}
}

// inOrder looks at every earlier message of the key that is not done.
func (c *Checker) inOrder(hash uint64, off window.Offset, l *held) {
	k := c.lane(hash, off)
	for k.floor < len(k.offs) && c.isDone(k.offs[k.floor]) {
		k.floor++
	}
	if k.leased > 0 {
		c.flag(RuleLease, off, "is handed out while %d of its key are leased", k.leased)
	}
	for _, earlier := range k.offs[k.floor:] {
		if earlier >= off {
			break
		}
		if c.isDone(earlier) || l.open[earlier] || earlier < c.tail() {
			continue
		}
		row, failed := c.current(earlier)
		if c.blocks() || !failed || row.Failures == 0 {
			c.flag(RuleOrder, off, "is handed out before %d of its key", earlier)
		}
	}
}

// lane is the messages of a key in the log, known up to and including off.
func (c *Checker) lane(hash uint64, off window.Offset) *lane {
	for c.seen <= off || c.grown() {
		h, ok := c.hash(c.seen)
		if !ok {
			break
		}
		if c.keys[h] == nil {
			c.keys[h] = &lane{}
		}
		c.keys[h].offs = append(c.keys[h].offs, c.seen)
		c.seen++
	}
	if c.keys[hash] == nil {
		c.keys[hash] = &lane{}
	}
	return c.keys[hash]
}

// grown tells that the log has more than was looked at.
func (c *Checker) grown() bool {
	_, ok := c.hash(c.seen)
	return ok
}

// current is the retry row of a message as this change leaves it.
func (c *Checker) current(off window.Offset) (window.RetryRow, bool) {
	for _, u := range c.now.rec.Change.RetryUpserts {
		if u.Offset == off {
			return c.written(u), true
		}
	}
	if slices.Contains(c.now.rec.Change.RetryDeletes, off) {
		return window.RetryRow{}, false
	}
	row, ok := c.rows[off]
	return row, ok
}

func (c *Checker) written(u window.RetryUpsert) window.RetryRow {
	at := u.AvailableAt
	if at == 0 {
		at = c.now.rec.At.Add(u.After)
	}
	return window.RetryRow{
		Offset: u.Offset, PartitionHash: u.PartitionHash, Failures: u.Failures, Deliveries: u.Deliveries,
		AvailableAt: at, AloneThrough: u.AloneThrough, LastError: u.LastError,
	}
}

// suspected tells that a row marks the message to travel alone.
func (c *Checker) suspected(hash uint64, off window.Offset) bool {
	for _, row := range c.rows {
		if row.PartitionHash == hash && row.Offset <= off && off <= row.AloneThrough {
			if slices.Contains(c.now.rec.Change.RetryDeletes, row.Offset) {
				continue
			}
			return true
		}
	}
	return false
}

// compareLeases demands that lease rows say what the model says.
func (c *Checker) compareLeases() {
	ch := &c.now.rec.Change
	for e := range c.leases {
		if !ch.Empty() && e.Version() < ch.LeaseLow {
			c.flag(RuleRows, 0, "lease %d is open and older than lease_low %d", e, ch.LeaseLow)
		}
	}
	for _, i := range ch.LeaseInserts {
		c.compareLease(i.Epoch, i.Entries)
	}
	for _, u := range ch.LeaseUpdates {
		if u.Entries != nil {
			c.compareLease(u.Epoch, u.Entries)
		}
	}
	for _, e := range ch.LeaseDeletes {
		if _, open := c.leases[e]; open {
			c.flag(RuleRows, 0, "lease %d is deleted and open", e)
		}
	}
}

func (c *Checker) compareLease(e window.Epoch, raw []byte) {
	_, entries, err := window.DecodeEntries(raw)
	l := c.leases[e]
	if err != nil || l == nil || len(entries) != len(l.open) {
		c.flag(RuleRows, 0, "lease %d is written with %d entries: %v", e, len(entries), err)
		return
	}
	for _, entry := range entries {
		if !l.open[entry.Offset] {
			c.flag(RuleRows, entry.Offset, "is written into lease %d", e)
		}
	}
}

// compareRows demands that every failure is charged once, to the message that failed, and to no other.
func (c *Checker) compareRows() {
	ch := &c.now.rec.Change
	for _, u := range ch.RetryUpserts {
		before, want := c.rows[u.Offset], 0
		if !c.isDone(u.Offset) {
			want = before.Failures
			if c.now.failed[u.Offset] {
				want++
			}
		}
		if u.Failures != want {
			c.flag(RuleCharge, u.Offset, "has %d failures, is written with %d, should have %d", before.Failures, u.Failures, want)
		}
		if !c.isDone(u.Offset) {
			delete(c.now.failed, u.Offset)
		}
	}
	for _, d := range ch.DeadLetters {
		if c.now.trimmed[d.Offset] && c.rows[d.Offset].Failures > 0 {
			if d.Reason != window.DeadTrimmed || d.Failures != c.rows[d.Offset].Failures {
				c.flag(RuleCharge, d.Offset, "waited when it was trimmed and became a dead letter by %d with %d failures", d.Reason, d.Failures)
			}
			delete(c.now.trimmed, d.Offset)
			continue
		}
		used := c.now.failed[d.Offset] && c.rows[d.Offset].Failures+1 >= c.policy.MaxAttempts
		if !used && !c.now.rejected[d.Offset] {
			c.flag(RuleCharge, d.Offset, "is a dead letter after %d failures and was not rejected", c.rows[d.Offset].Failures)
		}
		delete(c.now.failed, d.Offset)
		delete(c.now.rejected, d.Offset)
	}
	for off := range c.now.trimmed {
		if c.rows[off].Failures > 0 {
			c.flag(RuleCharge, off, "waited when it was trimmed and is no dead letter")
		}
	}
	for off := range c.now.failed {
		c.flag(RuleCharge, off, "failed and is not charged")
	}
	for off := range c.now.rejected {
		c.flag(RuleCharge, off, "was rejected and is no dead letter")
	}
	for _, u := range ch.RetryUpserts {
		c.rows[u.Offset] = c.written(u)
	}
	for _, off := range ch.RetryDeletes {
		delete(c.rows, off)
	}
	for _, off := range c.now.suspects {
		if hash := c.hashOf(off); !c.isDone(off) && !c.suspected(hash, off) {
			c.flag(RuleAlone, off, "expired and is not marked to travel alone")
		}
	}
}

// compareBits demands that the settled bits are the model's.
func (c *Checker) compareBits() {
	for _, off := range c.now.done {
		if !c.bits.Has(off) {
			c.flag(RuleRows, off, "is settled and its bit is not set")
		}
	}
	for c.done[c.start] {
		delete(c.done, c.start)
		c.start++
	}
	if low := c.bits.Low(); low != c.start {
		c.flag(RuleRows, low, "is the lowest unsettled, should be %d", c.start)
	}
	head := max(c.top, c.start) + 2*settled.ChunkLen
	if got, want := c.bits.Unsettled(head), int64(head-c.start)-int64(len(c.done)); got != want {
		c.flag(RuleRows, 0, "%d messages are unsettled below %d, should be %d", got, head, want)
	}
}

func orHot(ch window.Change, s *settled.Set) settled.Hot {
	if ch.Empty() {
		return *s.Hot()
	}
	return ch.Hot
}

func orLow(ch window.Change, s *settled.Set) window.Offset {
	if ch.Empty() {
		return s.Low()
	}
	return ch.Low
}

func orBelow(ch window.Change, s *settled.Set) int64 {
	if ch.Empty() {
		return s.Below()
	}
	return ch.UnsettledBelow
}
