package engine

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"time"

	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/placement"
	"postrider.dev/services/dispatcher/internal/engine/catalog"
	"postrider.dev/services/dispatcher/internal/store"
)

// placeDrained encodes what was accepted when the push came. The queue's limits may have become tighter since: they were kept to then.
// A delay counts from then too. Each message keeps the id that its producer was told.
func (p *push) placeDrained(q *catalog.Queue, now time.Time) {
	record := p.drained.record
	items := p.req.GetItems()
	messages := make([]message.Message, len(items))
	p.queue, p.keyed, p.requestKey, p.results = q, false, false, make([]*queuev1.PushResult, len(items))
	for i := range items {
		fill(&messages[i], items[i])
		p.results[i] = &queuev1.PushResult{}
	}
	p.items = make([]pushItem, 0, len(record.accepted))
	size := 0
	for _, i := range record.accepted {
		p.items = append(p.items, pushItem{index: i})
		size += message.FrameSize(&messages[i])
	}
	p.bytes = int64(size)
	p.encode(messages, size)
	for i := range p.items {
		it := &p.items[i]
		it.told = toldID(p.drained.key, it.index)
		if it.later.after > 0 {
			it.later.after = max(0, it.later.after-max(0, now.Sub(record.at)))
		}
		if it.later.is() {
			it.later.pending = it.told
		}
	}
	if record.keyed && q.Config.IdempotencyWindow > 0 {
		p.requestKey, p.keyed, p.requestHash = true, true, record.hash
		p.arbiter = placement.Shard(placement.Hash(p.req.GetIdempotencyKey()), len(q.Shards))
	}
}

// toldID is the id of an item of a request in the spool.
func toldID(record store.ServiceKey, item int) message.PendingID {
	sum := sha256.Sum256(binary.BigEndian.AppendUint64(record[:], uint64(item)))
	return message.PendingID(sum[:16])
}

// left says that the push is not written by this flush.
func (p *push) left() bool { return p.drained != nil && p.drained.absent }

// drainWork is the work of one transaction of the drainer.
type drainWork struct {
	lane   *flushLane
	pushes []*push
	parts  []*part
}

// flush brings pushes into the log in one transaction. Those whose queue was deleted are marked lost and not in it; those that were brought before stay as
// they are.
func (d *drainer) flush(ctx context.Context, ps []*push) error {
	w := &drainWork{lane: d.lane, pushes: ps, parts: d.lane.split(ps)}
	appends := make([]store.KeyedAppend, 0, len(w.parts))
	locked := map[message.ShardID]bool{}
	for _, c := range w.parts {
		c.gatherKeys(ps)
		locked[c.shard] = true
		appends = append(appends, store.KeyedAppend{Shard: c.shard, Known: c.known, Window: c.window, Keys: c.keys})
	}
	var ask store.SpooledAsk
	for _, p := range ps {
		ask.Keys = append(ask.Keys, p.drained.key)
		for _, x := range p.drained.record.sought {
			ask.Sought = append(ask.Sought, x)
			if !locked[x.Shard] { // so that the session that was lost sight of is not at work in it
				locked[x.Shard] = true
				appends = append(appends, store.KeyedAppend{Shard: x.Shard})
			}
		}
	}
	ctx, cancel := context.WithTimeout(ctx, d.e.cfg.StatementTimeout)
	defer cancel()
	sent := d.e.clk.Now()
	results, err := d.e.db.FlushSpooled(ctx, appends, ask, w)
	if err != nil {
		return err
	}
	d.e.metrics.flushes.Inc()
	for i, c := range w.parts {
		if r := results[i]; r.Status == store.StatusAppended {
			d.e.metrics.pushed.Add(float64(len(c.frames)))
			d.lane.keep(c, r, sent)
			d.e.sightings.note(c, r.Base, r.CreatedAt)
		}
		d.e.metrics.duplicates.Add(float64(c.explain()))
	}
	d.lane.announce(w.parts, results)
	if n := len(w.refused()); n > 0 {
		d.refusedOf.Add(int64(n))
		d.e.metrics.spoolRefused.Add(float64(n))
	}
	return nil
}

// Look implements store.SpooledWork.
func (w *drainWork) Look(found store.SpooledFound) {
	for _, c := range w.parts {
		c.judged, c.frames, c.owners, c.verdicts, c.replays, c.delayed = false, nil, nil, nil, nil, nil
	}
	for _, p := range w.pushes {
		x := p.drained
		x.done, x.lost = found.Done[x.key], false
		for _, s := range x.record.sought {
			x.done = x.done || found.Flushed[s.FlushID]
		}
		for i := range p.items {
			x.lost = x.lost || found.Lost[p.queue.Shards[p.items[i].shard]]
		}
		x.lost = !x.done && x.refused == "" && (x.lost || p.requestKey && found.Lost[p.queue.Shards[p.arbiter]])
		x.absent = x.done || x.lost || x.refused != ""
	}
}

// Encode implements store.SpooledWork.
func (w *drainWork) Encode(i int, at store.Locked, states []store.KeyState) (store.Remainder, error) {
	if i >= len(w.parts) {
		return store.Remainder{}, nil // it is only locked
	}
	c := w.parts[i]
	if refused := c.judge(at, states); refused != nil {
		return store.Remainder{}, &refusedError{[]*push{refused}, store.ErrKeyReused}
	}
	rest := store.Remainder{Keys: c.newKeys(at.Base, states), Delayed: c.newDelayed()}
	if len(c.frames) == 0 {
		return rest, nil
	}
	if err := w.lane.encode(c); err != nil {
		return store.Remainder{}, err
	}
	rest.Append = store.Append{Encoded: c.enc, FlushID: c.id, Key: c.queue.Key()}
	return rest, nil
}

// Rest implements store.SpooledWork.
func (w *drainWork) Rest() ([]store.ServiceKey, []store.Refused) {
	var keys []store.ServiceKey
	for _, p := range w.pushes {
		if !p.drained.lost && !p.drained.done {
			keys = append(keys, p.drained.key)
		}
	}
	return keys, w.refused()
}

// refused lists the messages that become dead letters: an acknowledged message is never dropped in silence.
func (w *drainWork) refused() []store.Refused {
	var out []store.Refused
	for _, p := range w.pushes {
		if p.drained.refused == "" || p.drained.done {
			continue
		}
		for i := range p.items {
			out = append(out, refusal(p, &p.items[i], p.drained.refused))
		}
	}
	for _, c := range w.parts {
		for i := range c.verdicts {
			if o := c.offered[i]; c.verdicts[i].err != nil && !o.p.left() {
				e := itemError(c.verdicts[i].err)
				out = append(out, refusal(o.p, &o.p.items[o.item], e.GetCode()+": "+e.GetMessage()))
			}
		}
	}
	return out
}

func refusal(p *push, it *pushItem, reason string) store.Refused {
	r := store.Refused{
		Tenant: p.tenant, QueueID: p.queue.ID, Shard: p.queue.Shards[it.shard], PartitionHash: it.frame.Hash, Reason: reason, Key: p.queue.Key(),
	}
	fill(&r.Message, p.req.GetItems()[it.index])
	return r
}
