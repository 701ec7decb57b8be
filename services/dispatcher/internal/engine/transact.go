package engine

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"postrider.dev/pkg/idempotency"
	"postrider.dev/pkg/pg"
	"postrider.dev/pkg/tenant"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/window"
	"postrider.dev/services/dispatcher/internal/store"
)

const (
	// maxTransactions is how many transactions are on their way at once. They take turns at few connections; more would only hold group-shards.
	maxTransactions = 32
	// inUseWait is how long a transaction waits for another one under its key, which may be an earlier try of itself whose dispatcher just died.
	inUseWait = 2 * time.Second
)

// transactor runs transactions, so that the end of the engine waits for those that are on their way.
type transactor struct {
	jobs chan func(leave context.Context)
	room semaphore
}

func newTransactor() *transactor {
	return &transactor{jobs: make(chan func(context.Context)), room: newSemaphore(maxTransactions)}
}

func (t *transactor) run(ctx context.Context) error {
	var running sync.WaitGroup
	defer running.Wait()
	for t.room.enter(ctx) {
		select {
		case job := <-t.jobs:
			running.Go(func() {
				defer t.room.leave()
				job(ctx)
			})
		case <-ctx.Done():
			return nil
		}
	}
	return nil
}

// transaction is a TransactRequest on its way. It belongs to one goroutine.
type transaction struct {
	e        *Engine
	tenant   tenant.ID
	req      *queuev1.TransactRequest
	ask      idempotency.Request
	deadline time.Time
	doubt    bool // a try may have been committed; the next one finds that out
	moves    int  // times a queue turned out to be deleted
	pushing  bool // one of the operations is a push

	letters map[window.GroupShardID]map[message.Offset]*message.Message // read for dead letters

	// Of one try.
	lane   *flushLane // of nobody: for what it knows of parts
	ops    []operation
	pushes []*push
	parts  []*part
	works  []*work // by the ids of their group-shards
	faults map[int]*Fault
}

// operation is one of a transaction: a push, or an ack.
type operation struct {
	push *push
	ack  *settling
}

// Transact does all operations of a request in one commit, or nothing: then the error is *RefusedError, if an operation is at fault. Under one key a request
// is done once: a repeat gets the first answer, replayed. The request has been validated, and key is not empty.
func (e *Engine) Transact(ctx context.Context, t tenant.ID, key string, req *queuev1.TransactRequest) (*queuev1.TransactResponse, bool, error) {
	x := &transaction{
		e: e, tenant: t, req: req, deadline: e.clk.Now().Add(e.cfg.Patience), letters: map[window.GroupShardID]map[message.Offset]*message.Message{},
		ask: idempotency.Request{Tenant: t, Method: queuev1.QueueService_Transact_FullMethodName, Key: key},
	}
	var bytes int64
	for _, op := range req.GetOperations() {
		x.pushing = x.pushing || op.GetPush() != nil
		bytes += requestBytes(op.GetPush())
	}
	if x.pushing && e.inMaintenance() {
		return nil, false, ErrMaintenance
	}
	if err := e.requests.take(1); err != nil {
		return nil, false, err
	}
	if err := e.pushBytes.take(bytes); err != nil {
		e.requests.give(1)
		return nil, false, err
	}
	free := func() {
		e.requests.give(1)
		e.pushBytes.give(bytes)
	}
	type answer struct {
		resp     *queuev1.TransactResponse
		replayed bool
		err      error
	}
	done := make(chan answer, 1)
	job := func(leave context.Context) {
		defer free()
		resp, replayed, err := x.run(e.base, leave)
		done <- answer{resp, replayed, err}
	}
	select {
	case e.transactor.jobs <- job:
	case <-e.base.Done():
		free()
		return nil, false, ErrDraining
	case <-ctx.Done():
		free()
		return nil, false, context.Cause(ctx)
	}
	select {
	case a := <-done:
		return a.resp, a.replayed, a.err
	case <-ctx.Done():
		return nil, false, context.Cause(ctx) // it goes on: its outcome is unknown to the caller, who asks again under the key
	}
}

// hash tells whether a key comes again with the same transaction. What an item's idempotency does not look at is left out here too, and what is secret of an
// encrypted queue is hashed with its key. Each push knows its queue.
func (x *transaction) hash() [sha256.Size]byte {
	h := sha256.New()
	var b []byte
	for i, op := range x.req.GetOperations() {
		ack, err := proto.MarshalOptions{Deterministic: true}.Marshal(op.GetAck())
		if err != nil { // text that is no UTF-8 was refused
			ack = nil
		}
		b = fmt.Appendf(b[:0], "%t %d %d %q ", op.GetAck() != nil, len(ack), len(op.GetPush().GetItems()), op.GetPush().GetQueue())
		b = append(b, ack...)
		for _, it := range op.GetPush().GetItems() {
			var m message.Message
			fill(&m, it)
			q := x.ops[i].push.queue
			b = binary.BigEndian.AppendUint64(b, q.BodyHash(itemHash(&m, it)))
			b = binary.BigEndian.AppendUint64(b, q.BodyHash(binary.BigEndian.Uint64(keyText(it.GetIdempotencyKey()))))
		}
		h.Write(b)
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// keyText is the hash of an item's key.
func keyText(key string) []byte {
	sum := sha256.Sum256([]byte(key))
	return sum[:8]
}

// run tries until the transaction is committed or refused, or patience ends. ctx is of the work in the database; leave ends when nothing new is to be begun.
func (x *transaction) run(ctx, leave context.Context) (*queuev1.TransactResponse, bool, error) {
	began := x.e.clk.Now()
	for n := 0; ; n++ {
		resp, replayed, err := x.try(ctx, leave)
		switch {
		case err == nil:
			return resp, replayed && !x.doubt, nil
		case errors.Is(err, errReadFirst):
			if err = x.readLetters(ctx); err == nil {
				continue
			}
		case errors.Is(err, errMoved) && x.moves < maxMoves:
			x.moves++
			continue
		case errors.Is(err, idempotency.ErrInUse) && x.e.clk.Since(began) > inUseWait:
			return nil, false, err
		}
		inUse := errors.Is(err, idempotency.ErrInUse)
		if x.doubt = x.doubt || pg.IsOutcomeUnknown(err); !pg.IsOutcomeUnknown(err) && !retryable(err) && !inUse {
			return nil, false, x.final(err)
		}
		if !inUse {
			x.e.trouble("transact", err)
		}
		if x.e.clk.Now().After(x.deadline) || x.e.pauseBetween(leave, n) != nil {
			return nil, false, x.givenUp(err)
		}
	}
}

// final is what is told of an error that trying again does not mend. A refusal was proven, and whatever an earlier try did with it.
func (x *transaction) final(err error) error {
	if _, ok := errors.AsType[*RefusedError](err); ok {
		x.e.metrics.txRefused.Inc()
		return err
	}
	if x.doubt {
		return &TransactUnknownError{Err: err}
	}
	if errors.Is(err, errMoved) {
		return store.ErrQueueNotFound
	}
	return err
}

// givenUp is what is told of a transaction whose last try failed.
func (x *transaction) givenUp(err error) error {
	switch {
	case x.doubt:
		return &TransactUnknownError{Err: err}
	case errors.Is(err, idempotency.ErrInUse):
		return err
	}
	return &UnavailableError{Err: err}
}

// try lays the transaction before the present state and brings it in.
func (x *transaction) try(ctx, leave context.Context) (*queuev1.TransactResponse, bool, error) {
	if err := x.prepare(ctx); err != nil {
		return nil, false, err
	}
	if len(x.faults) > 0 { // unless it is done: then what it was about may be gone
		answer, found, err := x.e.db.Answered(ctx, x.ask)
		switch {
		case err != nil:
			return nil, false, err
		case found:
			return x.again(answer)
		}
		return nil, false, x.refused()
	}
	claimed := 0
	defer func() { // what was not handed on by then
		for _, w := range x.works[:claimed] {
			w.giveBack()
		}
	}()
	for _, w := range x.works {
		if err := w.g.claim(leave); err != nil {
			return nil, false, ErrDraining
		}
		claimed++
	}
	return x.commit(ctx)
}

// again is the answer of a transaction that was done before: by an earlier try, here or elsewhere.
func (x *transaction) again(answer []byte) (*queuev1.TransactResponse, bool, error) {
	resp := &queuev1.TransactResponse{}
	if err := proto.Unmarshal(answer, resp); err != nil {
		return nil, true, fmt.Errorf("read the first answer: %w", err)
	}
	for i, r := range resp.GetResults() { // nobody may have been told
		if r.GetPush() == nil {
			continue
		}
		for _, m := range r.GetPush().GetResults() {
			if id, err := message.ParseID(m.GetMessageId()); err == nil && m.GetStatus() == queuev1.PushStatus_PUSH_STATUS_QUEUED {
				x.e.advanced(id.Shard, id.Offset+1)
			}
		}
		x.e.hints.MessagesAvailable(x.tenant, x.req.GetOperations()[i].GetPush().GetQueue())
	}
	return resp, true, nil
}
