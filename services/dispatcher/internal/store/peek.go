package store

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"postrider.dev/pkg/pg"
	"postrider.dev/services/dispatcher/internal/domain/invalid"
	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/queue"
)

// What one peek does at most, however rare its partition is.
const (
	peekSegments = 1_024   // segments whose directories are looked at
	peekBodies   = 64      // segments that are read
	peekTogether = 16      // of them at once
	peekBytes    = 8 << 20 // stored bytes at once; one segment is read whatever its size
)

// Peek says where to look in the log of a queue, and how far.
type Peek struct {
	Shard     int    // index; not used with a partition
	Partition string // only this one; empty: any
	Priority  int    // the lane of the partition
	From      queue.From
	Limit     int   // messages
	MaxBytes  int64 // as message.WireBound counts; one message is shown whatever its size
}

// Peeked is every message of [From, Next) that was asked for, in the order of the log.
type Peeked struct {
	Messages   []Found
	Shard      int // index
	From, Next message.Offset
	Tail, Head message.Offset
}

// Peek shows messages as they are in the log. It locks nothing and changes nothing. One call does a bounded amount of work: Next says where to go on.
func (c *Control) Peek(ctx context.Context, q Queue, p Peek) (Peeked, error) {
	if err := q.Usable(); err != nil {
		return Peeked{}, err
	}
	l := look{c: c, Peek: p, hash: []byte{}, out: Peeked{Shard: p.Shard}, bytes: p.MaxBytes}
	if p.Partition != "" {
		if err := q.Config.CheckPriority(p.Priority); err != nil {
			return Peeked{}, err
		}
		hash := q.Hash(p.Partition)
		l.hash = binary.BigEndian.AppendUint64(l.hash, hash)
		l.out.Shard = q.Layout().Shard(p.Priority, hash)
	}
	if l.out.Shard >= len(q.Shards) {
		return Peeked{}, invalid.New(invalid.OutOfRange, "shard", "is %d, the queue has %d", p.Shard, len(q.Shards))
	}
	l.shard = q.Shards[l.out.Shard]
	var id message.ShardID
	err := c.on().QueryRow(ctx, c.s.sql.text("shard_bounds"), []message.ShardID{l.shard}).Scan(&id, &l.out.Tail, &l.out.Head)
	if pg.IsNoRows(err) {
		return Peeked{}, ErrQueueNotFound
	}
	if err != nil {
		return Peeked{}, fmt.Errorf("read shard: %w", err)
	}
	l.out.From, l.out.Next = l.out.Head, l.out.Head
	if !p.From.Latest {
		l.out.From = max(message.Offset(p.From.Offset), l.out.Tail)
		l.out.Next = l.out.From
	}
	if err := l.run(ctx); err != nil {
		return Peeked{}, fmt.Errorf("peek: %w", err)
	}
	if p.From.Latest {
		slices.Reverse(l.out.Messages)
	}
	return l.out, nil
}

// look is a peek as it goes on: out is true of what was looked at until now.
type look struct {
	Peek

	c     *Control
	shard message.ShardID
	hash  []byte // of the partition; empty: any
	out   Peeked
	bytes int64 // left of the answer
}

// glimpse is what a directory says to a look.
type glimpse struct {
	Base   message.Offset
	Count  int
	Stored int64 // bytes of the body
	Holds  bool  // it may hold what is looked for
}

func (l *look) run(ctx context.Context) error {
	statement, from, to := "peek_onward", l.out.From, l.out.Head
	if l.From.Latest {
		statement, from = "peek_back", l.out.Tail
	}
	if from >= to {
		return nil
	}
	rows, err := l.c.on().Query(ctx, l.c.s.sql.text(statement), l.hash, l.shard, from, to, peekSegments)
	if err != nil {
		return fmt.Errorf("read directories: %w", err)
	}
	seen, err := pgx.CollectRows(rows, pgx.RowToStructByPos[glimpse])
	if err != nil {
		return fmt.Errorf("read directories: %w", err)
	}
	all := len(seen) < peekSegments
	for left := peekBodies; len(seen) > 0; {
		n, bases := l.batch(seen, left)
		if n == 0 {
			return nil
		}
		if more, err := l.read(ctx, bases); !more || err != nil {
			return err
		}
		l.reach(seen[n-1])
		left -= len(bases)
		seen = seen[n:]
	}
	if all {
		l.reach(glimpse{Base: l.out.Tail, Count: int(l.out.Head - l.out.Tail)})
	}
	return nil
}

// batch chooses how many of the segments seen to do next, and which of them to read, up to left. Without a partition no more are read than hold what may
// be shown yet.
func (l *look) batch(seen []glimpse, left int) (n int, bases []message.Offset) {
	bytes, messages := int64(0), 0
	for i, g := range seen {
		if !g.Holds {
			continue
		}
		full := len(bases) == min(left, peekTogether) || len(bases) > 0 && bytes+g.Stored > peekBytes
		if full || l.Partition == "" && messages >= l.Limit-len(l.out.Messages) {
			return i, bases
		}
		bases, bytes, messages = append(bases, g.Base), bytes+g.Stored, messages+g.Count
	}
	return len(seen), bases
}

// read looks into segments, in the order given. False means that there is no room for more.
func (l *look) read(ctx context.Context, bases []message.Offset) (more bool, err error) {
	if len(bases) == 0 {
		return true, nil
	}
	segments, err := l.c.s.Bodies(ctx, l.shard, bases)
	if err != nil {
		return false, err
	}
	if len(segments) == 0 {
		return true, nil
	}
	first, last := segments[0], segments[len(segments)-1] // whichever way round
	deleted, err := l.c.s.tombstones(ctx, l.c.on(), l.shard, min(first.Base, last.Base), max(first.End(), last.End()))
	if err != nil {
		return false, err
	}
	for _, s := range segments {
		body, err := l.c.dec.Body(s.Directory, s.Codec, s.Body)
		if err != nil {
			return false, fmt.Errorf("segment %d: %w", s.Base, err)
		}
		for i := range s.Len() {
			if l.From.Latest {
				i = s.Len() - 1 - i
			}
			at := s.Base + message.Offset(i)
			if at < l.out.Tail || at >= l.out.Head || !l.From.Latest && at < l.out.From {
				continue
			}
			m, err := body.Message(i)
			if err != nil {
				return false, fmt.Errorf("message %d: %w", at, err)
			}
			found := Found{Message: m, Shard: l.shard, Offset: at, CreatedAt: s.CreatedAt}
			wanted := (l.Partition == "" || m.Partition == l.Partition) && !deleted.Has(at)
			if wanted && !l.show(found, message.WireBound(s.Sizes[i])) {
				return false, nil
			}
			l.reach(glimpse{Base: at, Count: 1})
			if len(l.out.Messages) == l.Limit {
				return false, nil
			}
		}
	}
	return true, nil
}

// show puts a message into the answer if there is room.
func (l *look) show(f Found, size int64) bool {
	if len(l.out.Messages) > 0 && size > l.bytes {
		return false
	}
	l.bytes -= size
	l.out.Messages = append(l.out.Messages, f)
	return true
}

// reach says that everything as far as g was looked at.
func (l *look) reach(g glimpse) {
	if l.From.Latest {
		l.out.From = min(l.out.From, max(g.Base, l.out.Tail))
		return
	}
	l.out.Next = max(l.out.Next, min(g.Base+message.Offset(g.Count), l.out.Head))
}
