package engine

import (
	"context"
	"time"

	"google.golang.org/protobuf/proto"

	"postrider.dev/pkg/pg"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/dispatcher/internal/domain/window"
	"postrider.dev/services/dispatcher/internal/store"
)

// commit judges the transaction under the locks of all its rows, and writes it. The caller has the busy state of every group-shard.
func (x *transaction) commit(ctx context.Context) (*queuev1.TransactResponse, bool, error) {
	e := x.e
	if !e.slots.enter(ctx) {
		return nil, false, ErrDraining
	}
	defer e.slots.leave()
	if err := e.sameDatabase(ctx); err != nil {
		return nil, false, err
	}
	t := store.Transaction{Request: x.ask, Works: make([]store.Worked, len(x.works)), Appends: make([]store.KeyedAppend, len(x.parts))}
	for i, w := range x.works {
		w.g.forgetReplaced()
		t.Works[i] = store.Worked{ID: w.g.id, Known: w.known()}
	}
	for i, c := range x.parts {
		t.Appends[i] = store.KeyedAppend{Shard: c.shard, Known: c.known, Window: c.window, Keys: c.keys}
	}
	sctx, cancel := context.WithTimeout(ctx, e.cfg.StatementTimeout)
	defer cancel()
	sent := e.clk.Now()
	var resp *queuev1.TransactResponse
	done, err := e.db.Transact(sctx, t, func(st *store.Standing) (judged store.Judged, err error) {
		if resp, judged, err = x.judge(st, sent); err == nil {
			judged.Answer, err = proto.Marshal(resp)
		}
		return judged, err
	})
	switch {
	case pg.IsOutcomeUnknown(err): // R5: what was planned may be true
		for _, w := range x.works {
			w.g.forget()
		}
		return nil, false, err
	case err != nil:
		return nil, false, err
	case done.Replayed:
		return x.again(done.Answer)
	}
	x.land(done, sent)
	return resp, false, nil
}

// judge decides on everything. It may run twice.
func (x *transaction) judge(st *store.Standing, sent time.Time) (*queuev1.TransactResponse, store.Judged, error) {
	var judged store.Judged
	clear(x.faults)
	for _, p := range x.pushes {
		for _, r := range p.results {
			proto.Reset(r)
		}
	}
	lacking := false
	for i, w := range x.works {
		if err := w.judge(x, &st.States[i], st.Gone[i], sent); err != nil {
			return nil, judged, err
		}
		lacking = lacking || len(w.lack.letters) > 0
		if w.plan != nil && !w.plan.change.Empty() {
			judged.Changes = append(judged.Changes, w.plan.change)
		}
	}
	resp := &queuev1.TransactResponse{Results: make([]*queuev1.TransactResult, len(x.ops))}
	for i := range x.ops {
		resp.Results[i] = &queuev1.TransactResult{Status: queuev1.TransactStatus_TRANSACT_STATUS_DONE}
		if x.ops[i].ack != nil {
			resp.Results[i].Ack = x.judgeAck(i)
		}
	}
	var err error
	if judged.Rests, err = x.judgeParts(st); err != nil {
		return nil, judged, err
	}
	for i := range x.ops {
		if p := x.ops[i].push; p != nil {
			x.judgePush(i)
			resp.Results[i].Push = &queuev1.PushResponse{Results: p.results}
		}
	}
	switch {
	case len(x.faults) > 0:
		return nil, judged, x.refused()
	case lacking:
		return nil, judged, errReadFirst
	}
	return resp, judged, nil
}

// judge plans what the transaction asks of a group-shard whose row is locked.
func (w *work) judge(x *transaction, state *store.State, gone bool, sent time.Time) error {
	w.plan, w.lack = nil, missing{}
	if gone { // the group is, and every lease with it
		for _, a := range w.asks {
			a.err = errGone
		}
		return nil
	}
	g, e := w.g, x.e
	e.dbtime.observe(state.Now, sent)
	if err := g.adoptState(*state); err != nil {
		return err
	}
	requests := g.releases(state)
	first := len(requests)
	for _, a := range w.asks {
		requests = append(requests, &request{want: a.want, done: func(window.Outcome, window.DBTime, uint64, error) {}})
	}
	p := g.plan(requests, g.seq.Load())
	if err := p.canKeep(); err != nil {
		return err
	}
	for i, a := range w.asks {
		a.out, a.err = p.outcomes[first+i], nil
	}
	w.lack.letters = e.useLetters(p.change.DeadLetters, x.letters[g.id])
	w.plan = p
	return nil
}

// judgeParts makes what is appended to each shard. What its keys and limits refuse is in faults.
func (x *transaction) judgeParts(st *store.Standing) ([]store.Remainder, error) {
	rests := make([]store.Remainder, len(x.parts))
	for i, c := range x.parts {
		switch shard := st.Shards[i]; {
		case shard.Status != store.StatusNothing:
			for _, o := range c.offered {
				x.e.catalog.InvalidateQueue(o.p.tenant, o.p.name)
			}
			return nil, errMoved
		case x.e.catalog.InvalidateOlder(c.queue, shard.ConfigVersion): // no old limit holds for what is not committed yet
			return nil, errMoved
		}
		states := st.Keys(i)
		at := st.Locked(i)
		c.judge(at, states)
		if err := x.lane.encode(c); err != nil {
			return nil, err
		}
		for _, p := range x.lane.overflowKeyed(c, at.Kept) {
			x.blamePush(p, fullOfBytes(p.queue))
		}
		rests[i] = store.Remainder{
			Append:  store.Append{Encoded: c.enc, FlushID: c.id, Key: c.queue.Key()},
			Keys:    c.newKeys(at.Base, states),
			Delayed: c.newDelayed(),
		}
		c.name(at.Base)
		c.explain()
	}
	for _, p := range x.lane.beyond(x.parts) {
		x.blamePush(p, fullOfMessages(p.queue))
	}
	return rests, nil
}

// land makes memory what is committed, and wakes who waits for it.
func (x *transaction) land(done store.Transacted, sent time.Time) {
	e := x.e
	e.metrics.transacted.Inc()
	if len(x.parts) > 0 {
		x.landParts(done, sent)
	}
	n := 0
	for _, w := range x.works {
		if w.plan == nil || w.plan.change.Empty() {
			continue
		}
		result := done.Works[n]
		n++
		e.dbtime.observe(result.Now, sent)
		w.landed = true
		w.g.unsure, w.g.doubtful = false, nil
		w.plan.applied(result.Stamp)
	}
}

func (x *transaction) landParts(done store.Transacted, sent time.Time) {
	e, messages := x.e, 0
	for i, c := range x.parts {
		r := done.Appended[i]
		if r.Status == store.StatusAppended {
			messages += len(c.frames)
			x.lane.keep(c, r, sent)
			e.sightings.note(c, r.Base, r.CreatedAt)
		}
		for j := range c.verdicts {
			if c.verdicts[j].duplicate {
				e.metrics.duplicates.Inc()
			}
		}
		x.lane.later(c)
	}
	e.metrics.pushed.Add(float64(messages))
	x.lane.announce(x.parts, done.Appended)
}
