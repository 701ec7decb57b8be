package engine

import (
	"errors"
	"fmt"

	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/dispatcher/internal/store"
)

// Why an operation of a transaction is refused that would be answered for itself.
const codeBehind = "BEHIND_FAILED"

// errMoved says that what was known of a queue is not so any more: it was deleted or configured. The transaction is laid before it again.
var errMoved = errors.New("a queue changed")

// Fault is what is wrong with an operation of a transaction: Item, or else Err.
type Fault struct {
	Field string // path from operations on
	Item  *queuev1.ItemError
	Err   error
}

// RefusedError says that nothing of a transaction was done, and why: a fault by the index of each operation that has one.
type RefusedError struct {
	Operations int
	Faults     map[int]*Fault
}

func (e *RefusedError) Error() string {
	return fmt.Sprintf("%d of %d operations are refused", len(e.Faults), e.Operations)
}

// refused is the error of the faults found.
func (x *transaction) refused() error {
	return &RefusedError{Operations: len(x.ops), Faults: x.faults}
}

// blame notes the first fault of an operation.
func (x *transaction) blame(op int, where string, item *queuev1.ItemError, err error) {
	if x.faults[op] != nil {
		return
	}
	kind := "push"
	if x.ops[op].ack != nil {
		kind = "ack"
	}
	f := &Fault{Field: fmt.Sprintf("operations[%d].%s", op, kind), Item: item, Err: err}
	for _, part := range []string{where, item.GetField()} {
		if part != "" {
			f.Field += "." + part
		}
	}
	x.faults[op] = f
}

// blamePush notes a fault of a push as a whole.
func (x *transaction) blamePush(p *push, err error) {
	for i := range x.ops {
		if x.ops[i].push == p {
			x.blame(i, "queue", nil, err)
		}
	}
}

// judgePush notes the first item of a push that was refused.
func (x *transaction) judgePush(op int) {
	for i, r := range x.ops[op].push.results {
		if r.GetStatus() == queuev1.PushStatus_PUSH_STATUS_FAILED {
			x.blame(op, fmt.Sprintf("items[%d]", i), r.GetError(), nil)
			return
		}
	}
}

// judgeAck notes the first settlement that cannot be done. What the verb would answer by itself as good is not good enough beside a push: an input that was
// settled by somebody else, or that comes again although it was to be acked, would have its output twice.
func (x *transaction) judgeAck(op int) *queuev1.AckResponse {
	s := x.ops[op].ack
	resp, err := s.answers()
	if err != nil {
		x.blame(op, "lease", nil, err)
		return nil
	}
	for i, r := range resp.GetResults() {
		fault := r.GetError()
		switch {
		case r.GetStatus() == queuev1.AckStatus_ACK_STATUS_REFUSED || !x.pushing:
		case r.GetStatus() == queuev1.AckStatus_ACK_STATUS_ALREADY_SETTLED:
			fault = itemError(errSettled)
		case r.GetStatus() == queuev1.AckStatus_ACK_STATUS_RETURNED && s.req.GetSettlements()[i].GetAction() != queuev1.AckAction_ACK_ACTION_NACK:
			fault = &queuev1.ItemError{Code: codeBehind, Message: "a message before it in its partition fails in this transaction, so this one comes again"}
		}
		if fault != nil {
			x.blame(op, fmt.Sprintf("settlements[%d]", i), fault, nil)
			return nil
		}
	}
	return resp
}

// isFault says that an error is the operation's own, and not of the database.
func isFault(err error) bool {
	return errors.Is(err, store.ErrQueueNotFound) || errors.Is(err, store.ErrKeyMissing) || errors.Is(err, ErrStaleEpoch) || isInvalid(err)
}
