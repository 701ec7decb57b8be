package loop

import (
	"time"

	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/store"
)

// maxRest is the longest that a queue is not looked at, in rounds. It bounds how long anything that its retention does not foresee waits for one: a newest
// segment that is too old when another comes, a group that another trimmer died before telling, a database that was set back.
const maxRest = 10

// respite is why a queue need not be looked at: with this configuration nothing of it is due before.
type respite struct {
	version int64 // of the configuration
	until   time.Time
}

// resting says that a queue was looked at and has nothing to trim yet. A changed configuration ends that at once.
func (t *Trimmer) resting(q *store.Queue) bool {
	r, ok := t.rests[q.ID]
	return ok && r.version == q.ConfigVersion && t.clk.Now().Before(r.until)
}

// mayRest lets a queue be whose log is kept by age alone: the oldest segment says when the next is due, whatever is pushed and settled meanwhile. Bytes and
// what is settled are found by looking.
func (t *Trimmer) mayRest(q *trimming, tails map[message.ShardID]message.Offset, sum message.Offset) {
	keep := q.Config.Retention
	if keep.Bytes > 0 || keep.Settled || t.names[q.ID].done < sum {
		delete(t.rests, q.ID)
		return
	}
	left := maxRest * t.period
	for i, s := range q.shards {
		due := s.Oldest.Add(keep.Age).Sub(s.Now)
		switch {
		case s.Now.IsZero(), tails[q.Shards[i]] != s.Tail: // it is being deleted, or there may be more to take
			left = 0
		case !s.Oldest.IsZero() && s.Tail < s.Head && due > 0:
			left = min(left, due)
		case s.Tail < s.Head: // the newest segment, which stays until another comes
		default: // what comes from now on is due later still
			left = min(left, keep.Age)
		}
	}
	for _, g := range q.groups {
		for i := range g.states {
			if g.states[i].Low < q.shards[i].Tail { // told just now, and seen again next time
				left = 0
			}
		}
	}
	if left <= 0 {
		delete(t.rests, q.ID)
		return
	}
	t.rests[q.ID] = respite{version: q.ConfigVersion, until: t.clk.Now().Add(left)}
}
