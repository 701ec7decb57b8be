package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/dispatcher/internal/domain/invalid"
	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/window"
	"postrider.dev/services/dispatcher/internal/engine/catalog"
	"postrider.dev/services/dispatcher/internal/store"
)

// work is a group-shard in a transaction.
type work struct {
	g      *gshard
	asks   []*ask
	plan   *plan // nil until it is judged
	lack   missing
	landed bool // handed on: the group-shard is somebody else's
}

func isInvalid(err error) bool {
	_, ok := errors.AsType[*invalid.Error](err)
	return ok
}

// prepare resolves queues and leases and encodes messages, without a lock. What is wrong by then is in faults. An error is not about an operation.
func (x *transaction) prepare(ctx context.Context) error {
	x.lane, x.faults = newFlushLane(x.e), map[int]*Fault{}
	x.ops, x.pushes, x.parts, x.works = make([]operation, len(x.req.GetOperations())), nil, nil, nil
	queues := map[string]*catalog.Queue{}
	for i, op := range x.req.GetOperations() {
		var err error
		if op.GetPush() != nil {
			err = x.preparePush(ctx, i, op.GetPush(), queues)
		} else {
			err = x.prepareAck(ctx, i, op.GetAck())
		}
		if err != nil {
			return err
		}
	}
	if x.ask.Body = x.hash(); len(x.faults) > 0 {
		return nil
	}
	x.parts = x.lane.split(x.pushes)
	for _, c := range x.parts {
		c.gatherKeys(x.pushes)
	}
	slices.SortFunc(x.works, func(a, b *work) int { return cmp.Compare(a.g.id, b.g.id) })
	return x.measure(ctx, queues)
}

func (x *transaction) preparePush(ctx context.Context, i int, req *queuev1.PushRequest, queues map[string]*catalog.Queue) error {
	p := &push{tenant: x.tenant, name: req.GetQueue(), req: req}
	x.ops[i].push = p
	q := queues[p.name]
	if q == nil {
		var err error
		if q, err = x.e.queue(ctx, x.tenant, p.name, true); err != nil {
			return err
		}
		queues[p.name] = q
	}
	p.place(q)
	x.judgePush(i)
	if s := x.e.spool; s != nil && s.backlog.holds(p) {
		return ErrWouldBeBuffered
	}
	x.pushes = append(x.pushes, p)
	return nil
}

func (x *transaction) prepareAck(ctx context.Context, i int, req *queuev1.AckRequest) error {
	s := newSettling(req)
	x.ops[i].ack = s
	if err := x.e.settleLease(ctx, x.tenant, s); err != nil {
		if !isFault(err) {
			return err
		}
		where := "lease"
		if !errors.Is(err, ErrStaleEpoch) && !isInvalid(err) {
			where = "queue"
		}
		x.blame(i, where, nil, err)
		return nil
	}
	for n, r := range s.results {
		if r.GetStatus() == queuev1.AckStatus_ACK_STATUS_REFUSED {
			x.blame(i, fmt.Sprintf("settlements[%d]", n), r.GetError(), nil)
		}
	}
	for _, a := range s.asks {
		w := x.workOf(a.s)
		w.asks = append(w.asks, a)
	}
	if len(x.works) > store.MaxWork {
		x.blame(i, "lease", nil, invalid.New(invalid.OutOfRange, "lease", "is one too many: the leases of a transaction may lie in %d shards together", store.MaxWork))
	}
	return nil
}

func (x *transaction) workOf(g *gshard) *work {
	for _, w := range x.works {
		if w.g == g {
			return w
		}
	}
	w := &work{g: g}
	x.works = append(x.works, w)
	return w
}

// measure finds out how many messages the queues take that limit them.
func (x *transaction) measure(ctx context.Context, queues map[string]*catalog.Queue) error {
	for _, q := range queues {
		if q.Config.Limits.Messages == 0 {
			continue
		}
		room, err := x.e.depths.room(ctx, q)
		if err != nil {
			return err
		}
		x.lane.room[q.ID] = room
	}
	return nil
}

// readLetters reads the messages that are to become dead letters.
func (x *transaction) readLetters(ctx context.Context) error {
	for _, w := range x.works {
		if len(w.lack.letters) == 0 {
			continue
		}
		if x.letters[w.g.id] == nil {
			x.letters[w.g.id] = map[message.Offset]*message.Message{}
		}
		if err := x.e.readLetters(ctx, w.g.shard.id, w.lack.letters, x.letters[w.g.id]); err != nil {
			return err
		}
	}
	return nil
}

// giveBack ends the busy state, if it was not handed on. What the view learned under the lock is kept.
func (w *work) giveBack() {
	if w.landed {
		return
	}
	w.landed = true
	w.g.remember()
	w.g.release()
}

// known is what the view knows, for a read of the rest.
func (w *work) known() window.Known {
	if w.g.view == nil {
		return window.Known{}
	}
	return w.g.view.Known()
}
