// Package retention decides what a log does not keep: by age, by bytes, and what every group has settled. It is pure; the database says what time it is,
// and the statement that trims has the last word under the shard's lock.
package retention

import (
	"time"

	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/queue"
)

// Shard is one log as it was at one moment.
type Shard struct {
	Head, Tail message.Offset
	Bytes      int64     // of bodies
	Oldest     time.Time // when its first segment was committed; zero: it has none
	Now        time.Time // of the moment
}

// Progress is what one group has come to on one shard.
type Progress struct {
	Low      message.Offset // the first unsettled
	ActiveAt time.Time      // when a consumer did something last
	Since    time.Time      // since when the message at Low is there; zero: it does not matter, or there is none
}

// Cut is what to trim of one shard: whole segments from its tail on, as long as one of the rules takes them.
type Cut struct {
	Age     time.Duration  // older ones; 0 = none
	Bytes   int64          // while more are kept; 0 = none
	Settled message.Offset // those that end there or before; 0 = none
	Newest  bool           // the newest segment too
	Trace   bool           // note what goes
}

// CutOf says what to trim of one of a queue's shards. ok is false if there is nothing.
//
// The newest segment stays, because a log is easier to understand that says when it was written to last. Only where a push may be refused it goes like any
// other: else a queue could stay full of what nobody waits for.
func CutOf(c queue.Config, s Shard, settled message.Offset) (cut Cut, ok bool) {
	if s.Tail >= s.Head {
		return Cut{}, false
	}
	cut.Newest, cut.Trace = c.Limits.Any(), c.Trace
	if age := c.Retention.Age; age > 0 && !s.Oldest.IsZero() && s.Now.Sub(s.Oldest) >= age {
		cut.Age, ok = age, true
	}
	if bytes := c.Retention.Bytes; bytes > 0 {
		if share := queue.Share(bytes, c.Shards); s.Bytes > share {
			cut.Bytes, ok = share, true
		}
	}
	if c.Retention.Settled && settled > s.Tail {
		cut.Settled, ok = settled, true
	}
	return cut, ok
}

// Expired says that a group had messages before it for longer than after and no consumer did anything: nobody waits for it any more. shards and of are in
// the same order. A group that has nothing to do never expires, however long it is silent.
func Expired(shards []Shard, of []Progress, after time.Duration) bool {
	var active, since, now time.Time
	for i, p := range of {
		if p.ActiveAt.After(active) {
			active = p.ActiveAt
		}
		if p.Low >= shards[i].Head || p.Since.IsZero() {
			continue
		}
		if since.IsZero() || p.Since.Before(since) {
			since = p.Since
		}
		now = shards[i].Now
	}
	if since.IsZero() {
		return false
	}
	if active.After(since) {
		since = active
	}
	return now.Sub(since) > after
}

// SettledBelow is the offset before which all the groups have settled everything; 0 if there is no group.
func SettledBelow(lows []message.Offset) message.Offset {
	if len(lows) == 0 {
		return 0
	}
	low := lows[0]
	for _, at := range lows[1:] {
		low = min(low, at)
	}
	return low
}
