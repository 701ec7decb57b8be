// Package windowtest is what tests of the window, of its store and of whole engines share: a log of directories, a store in memory with
// compare-and-set, a suite that a real store passes in step with it, and a checker that replays a history against a naive model.
package windowtest

import (
	"fmt"
	"sort"

	"postrider.dev/services/dispatcher/internal/domain/settled"
	"postrider.dev/services/dispatcher/internal/domain/window"
)

// Log is a shard's log in memory: directories only. It is not safe for concurrent use.
type Log struct {
	dirs []window.Directory
	tail window.Offset
}

// Append adds one segment of messages with these hashes and returns the new head. It is older than any delay.
func (l *Log) Append(hashes ...uint64) window.Offset { return l.AppendAt(0, hashes...) }

// AppendAt is Append of a segment that is committed at an instant.
func (l *Log) AppendAt(at window.DBTime, hashes ...uint64) window.Offset {
	d := window.Directory{Base: l.Head(), Hashes: append([]uint64(nil), hashes...), Sizes: make([]uint32, len(hashes)), At: int64(at)}
	for i := range d.Sizes {
		d.Sizes[i] = 100 + uint32(d.Base+window.Offset(i))%50
	}
	l.dirs = append(l.dirs, d)
	return d.End()
}

// Head is the offset after the last message.
func (l *Log) Head() window.Offset {
	if len(l.dirs) == 0 {
		return 0
	}
	return l.dirs[len(l.dirs)-1].End()
}

// Trim forgets the segments before the one that holds off and returns the first offset that is kept. Their hashes stay known.
func (l *Log) Trim(off window.Offset) window.Offset {
	if d, ok := l.At(off); ok {
		l.tail = max(l.tail, d.Base)
	}
	return l.tail
}

// Tail is the first offset that is kept.
func (l *Log) Tail() window.Offset { return l.tail }

// Hash is the partition hash of a message; ok is false outside the log.
func (l *Log) Hash(off window.Offset) (hash uint64, ok bool) {
	d, ok := l.At(off)
	if !ok {
		return 0, false
	}
	return d.Hashes[off-d.Base], true
}

// Born is when a message was committed.
func (l *Log) Born(off window.Offset) window.DBTime {
	d, _ := l.At(off)
	return window.DBTime(d.At)
}

// At is the segment that holds an offset.
func (l *Log) At(off window.Offset) (window.Directory, bool) {
	i := sort.Search(len(l.dirs), func(i int) bool { return l.dirs[i].End() > off })
	if off < 0 || i == len(l.dirs) {
		return window.Directory{}, false
	}
	return l.dirs[i], true
}

// Search is the first segment, from the one that holds from on, with a message of this hash at or behind from.
func (l *Log) Search(from window.Offset, hash uint64) (window.Directory, bool) {
	i := sort.Search(len(l.dirs), func(i int) bool { return l.dirs[i].End() > from })
	for ; i < len(l.dirs); i++ {
		d := l.dirs[i]
		for at, h := range d.Hashes {
			if h == hash && d.Base+window.Offset(at) >= from {
				return d, true
			}
		}
	}
	return window.Directory{}, false
}

// Members are all messages of this hash.
func (l *Log) Members(hash uint64) *settled.Marks {
	m := &settled.Marks{}
	for _, d := range l.dirs {
		for i, h := range d.Hashes {
			if h == hash {
				m.Add(d.Base + window.Offset(i))
			}
		}
	}
	return m
}

// Feed answers one need the way an engine does.
func (l *Log) Feed(v *window.View, n window.Need) {
	if n.From < l.tail {
		if n.Keyed {
			v.SkipKey(n.Hash, n.From, l.tail)
		} else {
			v.Skip(n.From, l.tail)
		}
		return
	}
	if !n.Keyed {
		if d, ok := l.At(n.From); ok {
			v.Admit(d)
		}
		return
	}
	d, ok := l.Search(n.From, n.Hash)
	if !ok || d.Base >= n.To {
		v.SkipKey(n.Hash, n.From, n.To)
		return
	}
	if d.Base > n.From {
		v.SkipKey(n.Hash, n.From, d.Base)
	}
	v.AdmitKey(n.Hash, d)
}

// Supply feeds the view until a pop of that kind has what it wants or nothing helps. It returns how many directories it took.
func (l *Log) Supply(v *window.View, p *window.Pop) int {
	var last window.Need
	for n := 0; ; n++ {
		need, ok := window.Need{}, false
		if p.Named {
			need, ok = v.NeedKey(p.Hash, l.Head(), p.MaxMessages)
		} else if keys, listed := v.Ready(); keys == 0 || listed < p.MaxMessages {
			need, ok = v.Need(l.Head())
		}
		if !ok {
			return n
		}
		if need == last {
			panic(fmt.Sprintf("the view asks again for what it was given: %+v", need))
		}
		last = need
		l.Feed(v, need)
	}
}
