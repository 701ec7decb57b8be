package engine

import (
	"context"
	"encoding/binary"
	"errors"
	"slices"

	"google.golang.org/protobuf/types/known/timestamppb"

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
	// pending is set where the item, or the first one, was accepted for later; then offset says nothing.
	pending *message.Pending
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
	// pending is set where the item was accepted for later.
	pending *message.Pending
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
	var judged []*part
	encode := func(i int, at store.Locked, states []store.KeyState) (store.Remainder, error) {
		c := parts[i]
		if refused := c.judge(at, states); refused != nil {
			return store.Remainder{}, &refusedError{[]*push{refused}, store.ErrKeyReused}
		}
		if again := slices.Index(judged, c); again >= 0 {
			judged = judged[:again] // it runs once more
		}
		judged = append(judged, c)
		if refused := l.beyond(judged); len(refused) > 0 {
			return store.Remainder{}, l.noRoom(refused, fullOfMessages(refused[0].queue))
		}
		if err := l.encode(c); err != nil {
			return store.Remainder{}, err
		}
		if refused := l.overflowKeyed(c, at.Kept); len(refused) > 0 {
			return store.Remainder{}, l.noRoom(refused, fullOfBytes(refused[0].queue))
		}
		return store.Remainder{
			Append:  store.Append{Encoded: c.enc, FlushID: c.id, Key: c.queue.Key()},
			Keys:    c.newKeys(at.Base, states),
			Delayed: c.newDelayed(),
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

func without(ps, gone []*push) []*push {
	kept := make([]*push, 0, len(ps))
	for _, p := range ps {
		if !slices.Contains(gone, p) {
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
	return store.Key{ID: p.queue.DedupeKey(shard, message.KeyOfRequest, "", p.req.GetIdempotencyKey()), BodyHash: p.requestHash}
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

// judge decides, under the shard's lock, what is appended at at.Base and what is accepted for later. It may run twice. It returns a request that reuses its
// key, if there is one.
func (c *part) judge(at store.Locked, states []store.KeyState) (refused *push) {
	c.judged, c.frames, c.owners, c.replays, c.delayed = true, nil, nil, nil, nil
	c.verdicts = make([]verdict, len(c.offered))
	replayed := map[*push]bool{}
	for _, r := range c.requests {
		if r.p.left() {
			continue
		}
		state := states[r.slot]
		if state.Err != nil {
			return r.p
		}
		if state.Duplicate {
			replayed[r.p] = true
			c.replays = append(c.replays, replay{p: r.p, answers: decodeAnswers(state.Answer)})
		}
	}
	seen := map[store.KeyID]accepted{} // by this flush
	for i, o := range c.offered {
		if replayed[o.p] || o.p.left() {
			continue
		}
		it, v := &o.p.items[o.item], &c.verdicts[i]
		if it.keyed && c.judgeKey(it, v, states, seen) {
			continue
		}
		due, ahead, err := it.later.due(at.Now)
		switch {
		case err != nil:
			v.err = err
			continue
		case ahead:
			v.pending = &message.Pending{ID: it.later.pending, AvailableAt: due}
			c.delayed = append(c.delayed, o)
		default:
			v.offset = at.Base + message.Offset(len(c.frames))
			c.frames = append(c.frames, it.frame)
			c.owners = append(c.owners, o)
		}
		if it.keyed {
			seen[it.key.ID] = accepted{hash: it.key.BodyHash, verdict: *v}
		}
	}
	return nil
}

// accepted is what became of an item with a key earlier in the same flush.
type accepted struct {
	hash    uint64
	verdict verdict
}

// judgeKey writes a verdict if the item's key was used before, and reports whether it did.
func (c *part) judgeKey(it *pushItem, v *verdict, states []store.KeyState, seen map[store.KeyID]accepted) bool {
	slot := c.slots[it.key.ID]
	state := states[slot]
	first, again := seen[it.key.ID]
	switch {
	case state.Err != nil,
		again && first.hash != it.key.BodyHash,
		state.Duplicate && c.keys[slot].BodyHash != it.key.BodyHash:
		v.err = store.ErrKeyReused
	case state.Duplicate:
		v.duplicate, v.offset = true, state.Offset
		if p, _, err := message.ParsePending(state.Answer); err == nil {
			v.pending = &p
		}
	case again:
		*v = first.verdict
		v.duplicate = true
	default:
		return false
	}
	return true
}

// notYet is the offset of a message that has no place in the log.
const notYet message.Offset = -1

// newKeys returns the keys to remember with this append: of items, of what is accepted for later, whose pending ids are keys too, and of requests.
func (c *part) newKeys(base message.Offset, states []store.KeyState) []store.NewKey {
	var keys []store.NewKey
	for i, o := range c.owners {
		if it := &o.p.items[o.item]; it.keyed {
			keys = append(keys, store.NewKey{Key: it.key, Offset: base + message.Offset(i)})
		}
		if o.p.drained != nil { // the id its producer was told finds it
			keys = append(keys, store.NewKey{Key: store.Key{ID: store.KeyID(o.p.items[o.item].told)}, Offset: base + message.Offset(i)})
		}
	}
	for i, o := range c.offered {
		v := &c.verdicts[i]
		if v.pending == nil || v.duplicate {
			continue
		}
		keys = append(keys, store.NewKey{Key: store.Key{ID: store.KeyID(v.pending.ID)}, Offset: notYet})
		if it := &o.p.items[o.item]; it.keyed {
			keys = append(keys, store.NewKey{Key: it.key, Offset: notYet, Answer: v.pending.Append(nil)})
		}
	}
	for _, r := range c.requests {
		if !states[r.slot].Duplicate && !r.p.left() {
			keys = append(keys, store.NewKey{Key: c.keys[r.slot], Offset: base, Answer: c.answersOf(r.p)})
		}
	}
	return keys
}

// newDelayed returns what is accepted for later.
func (c *part) newDelayed() []store.Delayed {
	var out []store.Delayed
	for i := range c.verdicts { // a part without keys has none
		if v := &c.verdicts[i]; v.pending != nil && !v.duplicate {
			o := c.offered[i]
			out = append(out, store.Delayed{Pending: *v.pending, Frame: o.p.items[o.item].frame.Bytes, Key: c.queue.Key()})
		}
	}
	return out
}

// answersOf encodes what this shard will answer for a request's items.
func (c *part) answersOf(p *push) []byte {
	out := []byte{}
	for i, o := range c.offered {
		if o.p != p {
			continue
		}
		v := &c.verdicts[i]
		a := itemAnswer{index: p.items[o.item].index, status: queuev1.PushStatus_PUSH_STATUS_QUEUED, offset: v.offset, pending: v.pending}
		switch {
		case v.err != nil:
			a.status, a.offset = queuev1.PushStatus_PUSH_STATUS_FAILED, reused
			if errors.Is(v.err, errTooFar) {
				a.offset = tooFar
			}
		case v.duplicate:
			a.status = queuev1.PushStatus_PUSH_STATUS_DUPLICATE
		}
		out = a.append(out)
	}
	return out
}

// Why an item failed, in the place of its offset.
const (
	reused message.Offset = 0
	tooFar message.Offset = 1
)

// pendingFlag marks the status of an answer that names a pending id instead of an offset.
const pendingFlag = 1 << 4

func (a *itemAnswer) append(dst []byte) []byte {
	dst = binary.AppendUvarint(dst, uint64(a.index))
	if a.pending != nil {
		return a.pending.Append(binary.AppendUvarint(dst, uint64(a.status)|pendingFlag))
	}
	dst = binary.AppendUvarint(dst, uint64(a.status))
	return binary.AppendUvarint(dst, uint64(a.offset))
}

// decodeAnswers reads what answersOf wrote. Anything it does not understand is left out: the item keeps its own validation's result.
func decodeAnswers(b []byte) []itemAnswer {
	var out []itemAnswer
	for len(b) > 0 {
		var v [3]uint64
		for i := range v {
			if i == 2 && v[1]&pendingFlag != 0 {
				break
			}
			value, n := binary.Uvarint(b)
			if n <= 0 {
				return out
			}
			v[i], b = value, b[n:]
		}
		a := itemAnswer{index: int(v[0]), status: queuev1.PushStatus(v[1] &^ pendingFlag), offset: message.Offset(v[2])}
		if v[1]&pendingFlag != 0 {
			p, rest, err := message.ParsePending(b)
			if err != nil {
				return out
			}
			a.pending, b = &p, rest
		}
		out = append(out, a)
	}
	return out
}

// fill writes the answer into a result.
func (a *itemAnswer) fill(shard message.ShardID, r *queuev1.PushResult) {
	r.Status = a.status
	if a.status == queuev1.PushStatus_PUSH_STATUS_FAILED {
		r.Error = itemError(store.ErrKeyReused)
		if a.offset == tooFar {
			r.Error = itemError(errTooFar)
		}
		return
	}
	locate(r, shard, a.offset, a.pending)
}

// locate writes where a message is, or under which id it waits.
func locate(r *queuev1.PushResult, shard message.ShardID, offset message.Offset, pending *message.Pending) {
	if pending != nil {
		r.MessageId, r.AvailableAt = pending.ID.String(), timestamppb.New(pending.AvailableAt)
		return
	}
	r.Offset = int64(offset)
	r.MessageId = message.ID{Shard: shard, Offset: offset}.String()
}
