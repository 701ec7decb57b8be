package engine

import (
	"context"
	"errors"
	"slices"
	"time"

	"go.uber.org/zap"

	"postrider.dev/services/dispatcher/internal/domain/seal"
	"postrider.dev/services/dispatcher/internal/spool"
	"postrider.dev/services/dispatcher/internal/store"
)

// heldAgain is how long the records of a queue whose key is missing are left alone until the key is looked for again.
const heldAgain = 5 * time.Second

// heldRecords are those of one queue that are passed over because its key is missing here. Those of other queues are drained beside them; the mark on disk
// stays before the first that is held, so the keys of what was drained behind it stay too, and decide after a restart.
type heldRecords struct {
	seqs      []uint64 // growing
	oldest    time.Time
	releasing bool // they are being tried
}

// keeps says that a record of that queue has to wait behind others that are held.
func (d *drainer) keeps(name queueName) bool {
	h := d.held[name]
	return h != nil && !h.releasing
}

// hold keeps a record back, and so all that come behind it of its queue.
func (d *drainer) hold(p *push, why error) {
	name := queueName{p.tenant, p.name}
	h := d.held[name]
	if h == nil {
		h = &heldRecords{oldest: p.drained.record.at}
		d.held[name] = h
		if len(d.held) == 1 {
			d.triedAt = d.e.clk.Now()
		}
	}
	h.releasing = false
	if at, there := slices.BinarySearch(h.seqs, p.drained.seq); !there {
		h.seqs = slices.Insert(h.seqs, at, p.drained.seq)
	}
	p.drained.held = true
	d.countHeld()
	if why != nil {
		d.e.lacksKey(why)
	}
}

func (d *drainer) countHeld() {
	n := 0
	for _, h := range d.held {
		n += len(h.seqs)
	}
	d.blocked.Store(int64(n))
}

// firstHeld is the lowest sequence number that is held, and when the oldest record of them was accepted.
func (d *drainer) firstHeld() (seq uint64, oldest time.Time, found bool) {
	for _, h := range d.held {
		if len(h.seqs) == 0 { // the last was released just now
			continue
		}
		if !found || h.seqs[0] < seq {
			seq = h.seqs[0]
		}
		if !found || h.oldest.Before(oldest) {
			oldest = h.oldest
		}
		found = true
	}
	return seq, oldest, found
}

// releaseHeld tries again what is held, now and then: of each queue one record first.
func (d *drainer) releaseHeld(ctx context.Context) error {
	if len(d.held) == 0 || d.e.clk.Since(d.triedAt) < heldAgain {
		return nil
	}
	d.triedAt = d.e.clk.Now()
	for name, h := range d.held {
		h.releasing = true
		err := d.release(ctx, h)
		h.releasing = false
		if len(h.seqs) == 0 {
			delete(d.held, name)
		}
		d.countHeld()
		if err != nil {
			return err
		}
	}
	return nil
}

func (d *drainer) release(ctx context.Context, h *heldRecords) error {
	for n := 1; len(h.seqs) > 0 && h.releasing; n = drainRecords {
		entries, err := d.log.Read(h.seqs[0]-1, n, nearBytes)
		if err != nil {
			return err
		}
		entries = slices.DeleteFunc(entries, func(e spool.Entry) bool {
			_, mine := slices.BinarySearch(h.seqs, e.Seq)
			return !mine
		})
		if len(entries) == 0 { // damaged since: the log has told
			h.seqs = h.seqs[1:]
			continue
		}
		done, err := d.take(ctx, entries)
		for _, p := range done {
			if at, there := slices.BinarySearch(h.seqs, p.drained.seq); there {
				h.seqs = slices.Delete(h.seqs, at, at+1)
			}
		}
		if err != nil {
			return err
		}
		d.finish(ctx, done)
	}
	return nil
}

// open opens the record of a push if it is sealed, and says whether it can be brought into the log. One that never can be, because it was altered or its
// queue's keys were deleted, is set aside.
func (d *drainer) open(ctx context.Context, p *push) (bool, error) {
	record := p.drained.record
	if record.sealed == nil {
		return true, nil
	}
	ctx, cancel := context.WithTimeout(ctx, d.e.cfg.StatementTimeout)
	defer cancel()
	key, err := d.e.db.DataKey(ctx, record.sealed.key)
	if err == nil {
		if record, err = record.open(d.log.ID(), key); err == nil {
			p.drained.record, p.req = record, record.req
			return true, nil
		}
	}
	switch {
	case errors.Is(err, seal.ErrAltered), errors.Is(err, store.ErrKeyGone):
		d.setAside(p, err)
		return false, nil
	case errors.Is(err, store.ErrKeyMissing):
		d.hold(p, err)
		return false, nil
	}
	return false, err
}

// setAside keeps the record in a file of its own, for people, and drains it no more. Where the disk refuses that, the record is held.
func (d *drainer) setAside(p *push, why error) {
	if err := d.log.SetAside(spool.Entry{Seq: p.drained.seq, Payload: p.drained.raw}); err != nil {
		d.e.trouble("set a record of the spool aside", err)
		d.hold(p, nil)
		return
	}
	d.e.log.Error("a buffered request of an encrypted queue cannot be brought into its log: it is set aside", zap.String("queue", p.name),
		zap.Uint64("seq", p.drained.seq), zap.Error(why))
}
