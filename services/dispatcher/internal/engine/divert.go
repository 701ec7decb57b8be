package engine

import (
	"errors"
	"fmt"

	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/dispatcher/internal/spool"
	"postrider.dev/services/dispatcher/internal/store"
)

// committed is what a push says that must not be buffered.
const committed = queuev1.PushRequire_PUSH_REQUIRE_COMMITTED

var (
	// ErrWouldBeBuffered says that the push insists on a place in the log and would only be buffered now. Nothing was done.
	ErrWouldBeBuffered = errors.New("the push would be buffered")
	// ErrMaintenance says that pushes are to be kept from the database, and that there is no spool here. Nothing was done.
	ErrMaintenance = errors.New("the fleet is in maintenance")
	// ErrSpoolFull says that the push had to be buffered and that there is no room. Nothing was done.
	ErrSpoolFull = errors.New("the spool is full")
	// ErrSpoolDisk says that the push had to be buffered and that the disk refused: it has no room, or is broken. Nothing was done.
	ErrSpoolDisk = errors.New("the disk of the spool refuses")

	errUnknownQueue = errors.New("the database is away, and the queue is not known here")
	errInClear      = errors.New("the request is sealed, and the queue that has the name now is in clear")
	errDoubt        = errors.New("the database was lost while it committed")
)

// divert puts a push into the spool and has it answered when it is there. parts, where given, are of a flush that may have brought it into the log.
func (e *Engine) divert(p *push, parts []*part) {
	refuse := func(err error) {
		if parts != nil {
			err = &OutcomeUnknownError{Err: errors.Join(errDoubt, err)}
		}
		e.finish(p, err)
	}
	if p.req.GetRequire() == committed {
		refuse(ErrWouldBeBuffered)
		return
	}
	record := &spooledPush{tenant: p.tenant, at: e.clk.Now(), keyed: p.requestKey && !p.half, hash: p.requestHash, req: p.req, sought: soughtOf(p, parts)}
	for _, it := range p.items {
		record.accepted = append(record.accepted, it.index)
	}
	s := e.spool
	name, hashes := queueName{p.tenant, p.name}, p.hashes()
	encode := record.encode
	if p.queue.Encrypted() {
		encode = func() ([]byte, error) { return record.encodeSealed(s.log.ID(), p.queue.Key(), hashes) }
	}
	payload, err := encode()
	if err != nil {
		refuse(err)
		return
	}
	s.backlog.add(name, hashes, len(payload)) // before it is there: nothing of its partitions may pass it
	back := func() {
		s.backlog.remove(name, hashes, len(payload))
		s.recheckAll()
	}
	_, err = s.log.Append(payload, func(seq uint64, err error) {
		if err != nil {
			back()
			refuse(spoolError(err))
			return
		}
		e.metrics.spooled.Add(float64(len(p.items)))
		s.answer(p, seq)
		s.prod()
	})
	if err != nil {
		back()
		refuse(spoolError(err))
	}
}

// answer tells a push that it is buffered.
func (s *spooler) answer(p *push, seq uint64) {
	key := store.NewServiceKey(s.log.ID(), seq)
	for _, it := range p.items {
		r := p.results[it.index]
		r.Status = queuev1.PushStatus_PUSH_STATUS_BUFFERED
		r.MessageId, r.Offset = toldID(key, it.index).String(), 0
	}
	s.e.finish(p, nil)
}

// spoolError is what a push is told that the spool does not take.
func spoolError(err error) error {
	switch {
	case errors.Is(err, spool.ErrFull):
		return ErrSpoolFull
	case errors.Is(err, spool.ErrUncertain):
		return &OutcomeUnknownError{Err: err}
	case errors.Is(err, spool.ErrClosed):
		return ErrDraining
	case errors.Is(err, spool.ErrNotStored):
		return fmt.Errorf("%w: %w", ErrSpoolDisk, err)
	}
	return &UnavailableError{Err: err}
}
