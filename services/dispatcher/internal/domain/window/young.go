package window

// young is the first segment that was met before it was as old as the queue's delay wants it. What lies behind it is younger still, because the instants of a
// shard's commits never decrease: until then there is nothing to admit from its first offset on.
type young struct {
	from  Offset
	until DBTime
}

// tooYoung holds a directory back that is not old enough. It is asked before anything of the directory is listed.
func (v *View) tooYoung(d Directory) bool {
	if v.policy.Delay <= 0 {
		return false
	}
	due := DBTime(d.At).Add(v.policy.Delay)
	if due <= v.now {
		v.ripeAt = max(v.ripeAt, DBTime(d.At))
		return false
	}
	if v.young.until <= v.now || d.Base < v.young.from {
		v.young = young{from: d.Base, until: due}
	}
	return true
}

// Reach is how far before head there may be messages that are old enough to be handed out.
func (v *View) Reach(head Offset) Offset {
	if v.young.until > v.now {
		return min(head, v.young.from)
	}
	return head
}

// ripen says that a change hands out a message that was listed: not before the youngest of what was admitted is as old as it must be. Who admitted it went by a
// guess of the clock, and the database has the last word.
func (p *planner) ripen() {
	if delay := p.v.policy.Delay; delay > 0 {
		p.change.NotBefore = max(p.change.NotBefore, p.v.ripeAt.Add(delay))
	}
}

// Advance makes it now. It is to be called before Need and Admit, where the queue has a delay; Plan does so too.
func (v *View) Advance(now DBTime) { v.advance(now) }

// SetPolicy changes attempts, backoff, tracing and delay from the next plan on. Mode and OnFailure are the group's for good and stay. A delay that became longer holds for
// what is not handed out yet: it is admitted anew.
func (v *View) SetPolicy(p Policy) {
	before := v.policy.Delay
	v.policy.MaxAttempts, v.policy.Backoff, v.policy.Trace, v.policy.Delay = p.MaxAttempts, p.Backoff, p.Trace, p.Delay
	if p.Delay != before {
		v.young = young{}
	}
	if p.Delay > before {
		v.restart()
	}
}
