package server

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"

	"postrider.dev/pkg/apierr"
	"postrider.dev/pkg/idempotency"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/dispatcher/internal/domain/invalid"
	"postrider.dev/services/dispatcher/internal/engine"
)

// maxOperations is how many operations a transaction may have.
const maxOperations = 100

// Transact implements the contract. Without a key it is given one here, by which a commit of which nobody knows is found.
func (s *Queues) Transact(ctx context.Context, req *queuev1.TransactRequest) (*queuev1.TransactResponse, error) {
	by, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	if err := validateTransact(req); err != nil {
		return nil, wireError(err)
	}
	key, err := idempotency.Key(ctx)
	if err != nil {
		return nil, wireError(err)
	}
	if key == "" {
		key = rand.Text()
	}
	resp, replayed, err := s.transact.Transact(ctx, by.Tenant, key, req)
	if refused, ok := errors.AsType[*engine.RefusedError](err); ok {
		return nil, refusal(refused)
	}
	if err != nil {
		return nil, wireError(err)
	}
	if replayed {
		return resp, idempotency.MarkReplayed(ctx)
	}
	return resp, nil
}

// validateTransact checks what concerns the request as a whole and each operation by itself. Items are the engine's to judge.
func validateTransact(req *queuev1.TransactRequest) error {
	if err := between("operations", len(req.GetOperations()), 1, maxOperations); err != nil {
		return err
	}
	total, bytes := 0, 0
	for i, op := range req.GetOperations() {
		at := fmt.Sprintf("operations[%d]", i)
		push, ack := op.GetPush(), op.GetAck()
		if (push != nil) == (ack != nil) {
			return invalid.New(invalid.OutOfRange, at, "must be either a push or an ack")
		}
		if err := firstOf(validatePushIn(at+".push", push), validateAckIn(at+".ack", ack)); err != nil {
			return err
		}
		total += len(push.GetItems()) + len(ack.GetSettlements())
		for _, item := range push.GetItems() {
			bytes += len(item.GetPayload())
		}
	}
	if err := between("operations", total, 1, maxItems); err != nil {
		return invalid.New(invalid.OutOfRange, "operations", "have %d items and settlements, a transaction may have %d", total, maxItems)
	}
	if bytes > maxBody {
		return invalid.New(invalid.MessageTooLarge, "operations", "hold %d bytes, a transaction may hold %d", bytes, maxBody)
	}
	return nil
}

func validatePushIn(at string, r *queuev1.PushRequest) error {
	switch {
	case r == nil:
		return nil
	case r.GetIdempotencyKey() != "":
		return invalid.New(invalid.OutOfRange, at+".idempotency_key", "must not be given: the key of the call covers the transaction")
	case r.GetResent():
		return invalid.New(invalid.OutOfRange, at+".resent", "must not be given: the key of the call tells a repeat")
	}
	return under(at, validatePush(r))
}

func validateAckIn(at string, r *queuev1.AckRequest) error {
	switch {
	case r == nil:
		return nil
	case r.GetLease() == "":
		return invalid.New(invalid.NameEmpty, at+".lease", "must not be empty")
	case r.GetAckRest():
		return invalid.New(invalid.OutOfRange, at+".ack_rest", "is not offered in a transaction: name the messages")
	}
	return under(at, validateAck(r))
}

// under puts the path of an operation before the field of an error.
func under(at string, err error) error {
	if bad, ok := errors.AsType[*invalid.Error](err); ok {
		return invalid.New(bad.Code, at+"."+bad.Field, "%s", bad.Detail)
	}
	return err
}

// refusal is the error of a transaction of which nothing was done: that of the first operation that will never be accepted or, where all may be later,
// of the first one. The fate of each operation goes with it.
func refusal(e *engine.RefusedError) error {
	results := make([]*queuev1.TransactResult, e.Operations)
	var first *apierr.Error
	at := 0
	for i := range results {
		results[i] = &queuev1.TransactResult{Status: queuev1.TransactStatus_TRANSACT_STATUS_NOT_DONE}
		fault := e.Faults[i]
		if fault == nil {
			continue
		}
		wire := faultError(fault)
		results[i].Status = queuev1.TransactStatus_TRANSACT_STATUS_REFUSED
		results[i].Error = &queuev1.ItemError{Code: wire.Reason, Message: wire.Message, Field: fault.Field}
		if first == nil || passes(first) && !passes(wire) {
			first, at = wire, i
		}
	}
	wire := *first
	wire.Message = fmt.Sprintf("operation %d is refused, and nothing of the transaction was done: %s", at, first.Message)
	return wire.WithField(e.Faults[at].Field).WithDetail(&queuev1.TransactResponse{Results: results})
}

// passes says that what was refused may be accepted later.
func passes(e *apierr.Error) bool {
	return e.Code == codes.ResourceExhausted || e.Code == codes.Unavailable
}

func faultError(f *engine.Fault) *apierr.Error {
	if f.Item == nil {
		return apierr.From(wireError(f.Err))
	}
	code, text := f.Item.GetCode(), f.Item.GetMessage()
	switch code {
	case string(invalid.MessageTooLarge):
		wire := apierr.PayloadTooLarge(f.Field, text)
		wire.Reason = code
		return wire
	case ReasonKeyReused:
		return apierr.Unprocessable(code, f.Field, text)
	case apierr.ReasonInternal:
		return apierr.Internal(errors.New(text))
	case ReasonStaleEpoch, reasonNotLeased, reasonSettled, reasonBehind:
		return apierr.Aborted(code, text)
	}
	return apierr.InvalidArgument(code, f.Field, text)
}
