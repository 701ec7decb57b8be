package engine

import (
	"context"
	"encoding/binary"
	"slices"

	"postrider.dev/pkg/pg"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/store"
)

// verdict is what the keys say about an offered item.
type verdict struct {
	err       error
	duplicate bool
	offset    message.Offset // of the first one, where duplicate
}

// replay is a request that was seen before, and what the shard answered then.
type replay struct {
	p       *push
	answers []itemAnswer
}

// itemAnswer is what is remembered of one item of a request with a key.
type itemAnswer struct {
	index  int
	status queuev1.PushStatus
	offset message.Offset
}

// requestSlot is the place of a request's key among a part's keys.
type requestSlot struct {
	p    *push
	slot int
}

// flushKeyed brings in pushes some of which have keys, none of them clashing with another's.
func (l *flushLane) flushKeyed(ctx context.Context, ps []*push) error {
	parts := l.split(ps)
	appends := make([]store.KeyedAppend, len(parts))
	for i, c := range parts {
		c.gatherKeys(ps)
		appends[i] = store.KeyedAppend{Shard: c.shard, Known: c.known, Window: c.window, Keys: c.keys}
	}
	encode := func(i int, base message.Offset, states []store.KeyState) (store.Remainder, error) {
		c := parts[i]
		if refused := c.judge(base, states); refused != nil {
			return store.Remainder{}, &refusedError{refused, store.ErrKeyReused}
		}
		if err := l.encode(c); err != nil {
			return store.Remainder{}, err
		}
		return store.Remainder{
			Append: store.Append{Encoded: c.enc, FlushID: c.id},
			Keys:   c.newKeys(base, states),
		}, nil
	}
	sctx, cancel := context.WithTimeout(ctx, l.e.cfg.StatementTimeout)
	defer cancel()
	sent := l.e.clk.Now()
	results, err := l.e.db.FlushKeyed(sctx, appends, encode)
	if pg.IsOutcomeUnknown(err) {
		results, err = l.recover(ctx, parts, err)
	}
	if err != nil {
		return err
	}
	l.landed(ctx, ps, parts, results, sent)
	return nil
}

func without(ps []*push, gone *push) []*push {
	kept := make([]*push, 0, len(ps))
	for _, p := range ps {
		if p != gone {
			kept = append(kept, p)
		}
	}
	return kept
}

// withoutClashes puts off pushes that use a key of an earlier push of the batch for another body, and repeated requests: the database judges those once the
// first is in. What came after them for the same queue waits too, so that order is kept.
func withoutClashes(ps []*push) (now, later []*push) {
	seen := map[store.KeyID]uint64{}
	cut := map[int64]bool{} // queues
	for _, p := range ps {
		keys := p.allKeys()
		if cut[p.queue.ID] || p.clashes(keys, seen) {
			cut[p.queue.ID] = true
			later = append(later, p)
			continue
		}
		for _, key := range keys {
			if _, ok := seen[key.ID]; !ok {
				seen[key.ID] = key.BodyHash
			}
		}
		now = append(now, p)
	}
	return now, later
}

func (p *push) clashes(keys []store.Key, seen map[store.KeyID]uint64) bool {
	return slices.ContainsFunc(keys, func(key store.Key) bool {
		hash, ok := seen[key.ID]
		return ok && (hash != key.BodyHash || p.requestKey)
	})
}

// allKeys returns the keys of the items and, for one shard that stands for all, of the request.
func (p *push) allKeys() []store.Key {
	var keys []store.Key
	for i := range p.items {
		if p.items[i].keyed {
			keys = append(keys, p.items[i].key)
		}
	}
	if p.requestKey {
		keys = append(keys, p.requestKeyAt(p.queue.Shards[p.arbiter]))
	}
	return keys
}

// requestKeyAt is the request's key on one shard. Each shard that got items of the request keeps what it answered, and the arbiter keeps the key in any
// case, so that the same key is noticed wherever the other request's items go.
func (p *push) requestKeyAt(shard message.ShardID) store.Key {
	id := message.DedupeKey(shard, message.KeyOfRequest, "", p.req.GetIdempotencyKey())
	return store.Key{ID: store.KeyID(id), BodyHash: p.requestHash}
}

// gatherKeys lists the part's keys, each once.
func (c *part) gatherKeys(ps []*push) {
	c.slots = map[store.KeyID]int{}
	add := func(key store.Key) int {
		slot, ok := c.slots[key.ID]
		if !ok {
			slot = len(c.keys)
			c.slots[key.ID] = slot
			c.keys = append(c.keys, key)
		}
		return slot
	}
	here := map[*push]bool{}
	for _, o := range c.offered {
		here[o.p] = true
		if it := &o.p.items[o.item]; it.keyed {
			add(it.key)
		}
	}
	for _, p := range ps {
		if p.requestKey && (here[p] || p.queue.Shards[p.arbiter] == c.shard) {
			c.requests = append(c.requests, requestSlot{p, add(p.requestKeyAt(c.shard))})
		}
	}
}

// judge decides, under the shard's lock, what is appended at base. It may run twice. It returns a request that reuses its key, if there is one.
func (c *part) judge(base message.Offset, states []store.KeyState) (refused *push) {
	c.judged, c.frames, c.owners, c.replays = true, nil, nil, nil
	c.verdicts = make([]verdict, len(c.offered))
	replayed := map[*push]bool{}
	for _, r := range c.requests {
		state := states[r.slot]
		if state.Err != nil {
			return r.p
		}
		if state.Duplicate {
			replayed[r.p] = true
			c.replays = append(c.replays, replay{p: r.p, answers: decodeAnswers(state.Answer)})
		}
	}
	first := map[store.KeyID]message.Offset{} // appended by this flush
	hashes := map[store.KeyID]uint64{}
	for i, o := range c.offered {
		if replayed[o.p] {
			continue
		}
		it := &o.p.items[o.item]
		if it.keyed {
			v := &c.verdicts[i]
			state := states[c.slots[it.key.ID]]
			at, again := first[it.key.ID]
			switch {
			case state.Err != nil, again && hashes[it.key.ID] != it.key.BodyHash:
				v.err = store.ErrKeyReused
			case state.Duplicate && c.keys[c.slots[it.key.ID]].BodyHash != it.key.BodyHash:
				v.err = store.ErrKeyReused
			case state.Duplicate:
				v.duplicate, v.offset = true, state.Offset
			case again:
				v.duplicate, v.offset = true, at
			default:
				first[it.key.ID], hashes[it.key.ID] = base+message.Offset(len(c.frames)), it.key.BodyHash
			}
			if v.err != nil || v.duplicate {
				continue
			}
		}
		c.frames = append(c.frames, it.frame)
		c.owners = append(c.owners, o)
	}
	return nil
}

// newKeys returns the keys to remember with this append.
func (c *part) newKeys(base message.Offset, states []store.KeyState) []store.NewKey {
	var keys []store.NewKey
	for i, o := range c.owners {
		if it := &o.p.items[o.item]; it.keyed {
			keys = append(keys, store.NewKey{Key: it.key, Offset: base + message.Offset(i)})
		}
	}
	for _, r := range c.requests {
		if !states[r.slot].Duplicate {
			keys = append(keys, store.NewKey{Key: c.keys[r.slot], Offset: base, Answer: c.answersOf(r.p, base)})
		}
	}
	return keys
}

// answersOf encodes what this shard will answer for a request's items.
func (c *part) answersOf(p *push, base message.Offset) []byte {
	out := []byte{}
	for i, o := range c.owners {
		if o.p == p {
			out = appendAnswer(out, p.items[o.item].index, queuev1.PushStatus_PUSH_STATUS_QUEUED, base+message.Offset(i))
		}
	}
	for i, o := range c.offered {
		if o.p != p {
			continue
		}
		switch v := c.verdicts[i]; {
		case v.err != nil:
			out = appendAnswer(out, p.items[o.item].index, queuev1.PushStatus_PUSH_STATUS_FAILED, 0)
		case v.duplicate:
			out = appendAnswer(out, p.items[o.item].index, queuev1.PushStatus_PUSH_STATUS_DUPLICATE, v.offset)
		}
	}
	return out
}

func appendAnswer(dst []byte, index int, status queuev1.PushStatus, offset message.Offset) []byte {
	dst = binary.AppendUvarint(dst, uint64(index))
	dst = binary.AppendUvarint(dst, uint64(status))
	return binary.AppendUvarint(dst, uint64(offset))
}

// decodeAnswers reads what answersOf wrote. Anything it does not understand is left out: the item keeps its own validation's result.
func decodeAnswers(b []byte) []itemAnswer {
	var out []itemAnswer
	for len(b) > 0 {
		var v [3]uint64
		for i := range v {
			value, n := binary.Uvarint(b)
			if n <= 0 {
				return out
			}
			v[i], b = value, b[n:]
		}
		out = append(out, itemAnswer{index: int(v[0]), status: queuev1.PushStatus(v[1]), offset: message.Offset(v[2])})
	}
	return out
}

// fill writes the answer into a result.
func (a itemAnswer) fill(shard message.ShardID, r *queuev1.PushResult) {
	r.Status = a.status
	if a.status == queuev1.PushStatus_PUSH_STATUS_FAILED {
		r.Error = itemError(store.ErrKeyReused)
		return
	}
	r.Offset = int64(a.offset)
	r.MessageId = message.ID{Shard: shard, Offset: a.offset}.String()
}
