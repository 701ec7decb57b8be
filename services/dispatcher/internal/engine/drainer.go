package engine

import (
	"context"
	"errors"
	"slices"
	"time"

	"go.uber.org/zap"

	"postrider.dev/pkg/clock"
	"postrider.dev/pkg/pg"
	"postrider.dev/services/dispatcher/internal/domain/segment"
	"postrider.dev/services/dispatcher/internal/spool"
	"postrider.dev/services/dispatcher/internal/store"
)

// drainRecords is how many records are brought into the log at once.
const drainRecords = 1000

// drainer brings what the spool holds into the log, in its order. A batch is one transaction, which remembers each record by a key of its own; then the
// spool's mark is moved; then the keys are forgotten. So a batch that is drained again after a crash at any point finds its keys and does nothing.
type drainer struct {
	*spooler

	lane  *flushLane // its statements; nobody runs it
	after uint64     // everything up to it was drained
	owed  int        // records of it that the mark on disk does not know of

	held    map[queueName]*heldRecords
	triedAt time.Time // when what is held was tried last
}

// drained is a push of the spool on its way into the log.
type drained struct {
	key     store.ServiceKey
	seq     uint64
	raw     []byte
	record  *spooledPush
	bytes   int
	absent  bool   // it is left out of the flush: done before, or for what follows
	done    bool   // it was done before
	lost    bool   // its queue was deleted
	refused string // why its queue does not take it
	held    bool   // its queue's key is missing: it stays in the spool
}

// run drains until ctx ends.
func (d *drainer) run(ctx context.Context) error {
	d.after = d.log.MarkedUpTo()
	d.confirm(d.e.base) //nolint:contextcheck // what is in flight when ctx ends is finished
	for ctx.Err() == nil {
		more := d.step(d.e.base) //nolint:contextcheck // the same
		d.recheckAll()
		if more {
			continue
		}
		clock.Rest(ctx, d.e.clk, d.pause(), d.wake)
	}
	return nil
}

// pause is how long to wait without a reason to look: for the database while it is away, else for the mode to change.
func (d *drainer) pause() time.Duration {
	if d.away.Load() || d.backlog.records.Load() > 0 {
		return probeEvery
	}
	return 4 * probeEvery
}

// step drains one batch if it can, and says whether to go on at once.
func (d *drainer) step(ctx context.Context) bool {
	if d.away.Load() {
		if d.probe(ctx) != nil {
			d.peek()
			return false
		}
		d.away.Store(false)
		d.e.log.Info("the database is back", zap.Int64("records", d.backlog.records.Load()))
	}
	if on, known := d.maintenance(); on || !known {
		d.peek()
		return false
	}
	began := d.e.clk.Now()
	if err := d.releaseHeld(ctx); err != nil {
		d.e.trouble("drain what was held", err)
		d.suspect(ctx, err, began.Add(-divertAfter))
		return false
	}
	entries, err := d.log.Read(d.after, drainRecords, nearBytes)
	if err != nil {
		d.e.trouble("read the spool", err)
		return false
	}
	if len(entries) == 0 {
		d.note(ctx)
		d.draining.Store(false)
		d.oldest.Store(0)
		if _, oldest, found := d.firstHeld(); found {
			d.oldest.Store(oldest.UnixMicro())
		}
		return false
	}
	d.draining.Store(true)
	began = d.e.clk.Now()
	if err := d.drain(ctx, entries); err != nil {
		d.e.trouble("drain", err)
		d.suspect(ctx, err, began.Add(-divertAfter))
		return false
	}
	return true
}

// peek notes the age of the oldest record.
func (d *drainer) peek() {
	d.draining.Store(false)
	if d.oldest.Load() != 0 {
		return
	}
	if entries, err := d.log.Read(d.after, 1, 1); err == nil && len(entries) == 1 {
		if s, err := parseSpooled(entries[0].Payload); err == nil {
			d.oldest.Store(s.at.UnixMicro())
		}
	}
}

// drain brings a batch into the log and forgets it.
func (d *drainer) drain(ctx context.Context, entries []spool.Entry) error {
	done, err := d.take(ctx, entries)
	if err != nil {
		return err
	}
	d.after = entries[len(entries)-1].Seq
	d.finish(ctx, done)
	return nil
}

// take brings records into the log and returns those that need no more work. The others are held.
func (d *drainer) take(ctx context.Context, entries []spool.Entry) ([]*push, error) {
	ps := make([]*push, 0, len(entries))
	all := make([]*push, 0, len(entries))
	for i, entry := range entries {
		record, err := parseSpooled(entry.Payload)
		if err != nil {
			return nil, err // it was read when the spool was opened, or written by us
		}
		if i == 0 {
			d.oldest.Store(record.at.UnixMicro())
		}
		p := &push{tenant: record.tenant, name: record.req.GetQueue(), req: record.req, drained: &drained{
			record: record, bytes: len(entry.Payload), key: store.NewServiceKey(d.log.ID(), entry.Seq), seq: entry.Seq, raw: entry.Payload,
		}}
		all = append(all, p)
		if d.keeps(queueName{p.tenant, p.name}) {
			d.hold(p, nil)
			continue
		}
		open, err := d.open(ctx, p)
		if err != nil {
			return nil, err
		}
		if open {
			ps = append(ps, p)
		}
	}
	if err := d.bring(ctx, ps); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(p *push) bool { return p.drained.held }), nil
}

// finish forgets records that need no more work.
func (d *drainer) finish(ctx context.Context, ps []*push) {
	d.owed += len(ps)
	for _, p := range ps {
		d.backlog.remove(queueName{p.tenant, p.name}, p.drained.record.hashes(), p.drained.bytes)
	}
	d.drained.Add(int64(len(ps)))
	d.e.metrics.spoolDrained.Add(float64(len(ps)))
	d.note(ctx)
}

// note moves the mark on disk up to what was drained, and forgets the keys of it. A disk that refuses is asked again when there is nothing else to do.
func (d *drainer) note(ctx context.Context) {
	if d.owed == 0 {
		return
	}
	upto, records := d.after, d.owed
	if first, _, found := d.firstHeld(); found { // what is counted then is wrong until nothing is held
		if upto, records = min(upto, first-1), 0; upto <= d.log.MarkedUpTo() {
			return
		}
	}
	if err := d.log.Drained(upto, records); err != nil {
		d.e.log.Error("the spool's mark stays behind", zap.Error(err))
		return
	}
	d.owed -= records
	d.confirm(ctx)
}

// confirm forgets the keys of what the mark on disk calls drained. What is left is forgotten the next time.
func (d *drainer) confirm(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, d.e.cfg.StatementTimeout)
	defer cancel()
	if err := d.e.db.ConfirmServiceKeys(ctx, d.log.ID(), d.log.MarkedUpTo()); err != nil {
		d.e.trouble("confirm what was drained", err)
	}
}

// bring brings pushes into the log, each once, those of one partition in their order. An error says that some may not be there; all are to be brought again.
func (d *drainer) bring(ctx context.Context, ps []*push) error {
	ps, err := d.placeAll(ctx, ps)
	if err != nil {
		return err
	}
	for len(ps) > 0 {
		now, later := withoutClashes(ps)
		err := d.flush(ctx, now)
		if refused, ok := errors.AsType[*refusedError](err); ok {
			for _, p := range refused.ps {
				p.drained.refuse(refused.err)
			}
			continue
		}
		if pg.IsDataError(err) || errors.Is(err, segment.ErrTooLarge) {
			if len(now) == 1 {
				now[0].drained.refuse(err)
				continue
			}
			if err = d.bring(ctx, now[:len(now)/2]); err == nil {
				err = d.bring(ctx, now[len(now)/2:])
			}
			if err == nil {
				ps = later
				continue
			}
		}
		if err != nil {
			return err
		}
		lost := now[:0:0]
		for _, p := range now {
			if p.drained.lost {
				lost = append(lost, p)
				d.e.catalog.InvalidateQueue(p.tenant, p.name)
			}
		}
		if lost, err = d.placeAll(ctx, lost); err != nil { // before the queue that has the name now
			return err
		}
		ps = append(lost, later...)
	}
	return nil
}

// placeAll lays pushes before their queues and returns those that have one. Of the others, those whose key is missing are held, and what would come into a
// queue in clear though it was sealed is set aside.
func (d *drainer) placeAll(ctx context.Context, ps []*push) ([]*push, error) {
	kept := make([]*push, 0, len(ps))
	for _, p := range ps {
		if d.keeps(queueName{p.tenant, p.name}) {
			d.hold(p, nil)
			continue
		}
		err := d.place(ctx, p)
		switch {
		case err == nil:
			kept = append(kept, p)
		case errors.Is(err, store.ErrKeyMissing):
			d.hold(p, err)
		case errors.Is(err, errInClear):
			d.setAside(p, err)
		default:
			return nil, err
		}
	}
	return kept, nil
}

// place lays a push before its queue.
func (d *drainer) place(ctx context.Context, p *push) error {
	ctx, cancel := context.WithTimeout(ctx, d.e.cfg.StatementTimeout)
	defer cancel()
	q, err := d.e.catalog.Queue(ctx, p.tenant, p.name, true)
	if err == nil {
		err = q.Usable()
	}
	if err == nil && !q.Encrypted() && len(p.drained.record.keyedHashes) > 0 {
		err = errInClear
	}
	if err == nil {
		p.drained.lost = false
		p.placeDrained(q, d.e.clk.Now())
	}
	return err
}

func (x *drained) refuse(err error) {
	x.refused = itemError(err).GetCode() + ": " + itemError(err).GetMessage()
}
