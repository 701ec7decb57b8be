package server

import (
	"context"
	"crypto/rand"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"postrider.dev/pkg/apierr"
	"postrider.dev/pkg/idempotency"
	"postrider.dev/pkg/tenant"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/ingress/internal/domain"
	"postrider.dev/services/ingress/internal/engine"
)

// Transact implements the contract.
func (s *queueService) Transact(ctx context.Context, req *queuev1.TransactRequest) (*queuev1.TransactResponse, error) {
	return s.verbs.transact(ctx, req, false)
}

// transact validates a transaction and hands it to a dispatcher. If that is lost, another one is asked, under the same key: the client's, or one that is made
// here. It finds what the first one did.
func (v *verbs) transact(ctx context.Context, req *queuev1.TransactRequest, checked bool) (*queuev1.TransactResponse, error) {
	if broken := v.rules.check(req); broken != nil {
		return nil, violation(broken)
	}
	if err := v.judgeItems(ctx, req, checked); err != nil {
		return nil, err
	}
	key, err := idempotency.Key(ctx)
	if err != nil {
		return nil, err
	}
	given := key != ""
	if !given {
		key = rand.Text()
	}
	resp, replayed, err := v.sendTransaction(ctx, req, key)
	if err == nil && replayed && given {
		return resp, idempotency.MarkReplayed(ctx)
	}
	return resp, wireError(err)
}

// sendTransaction asks one dispatcher after the other. Where one was lost and no other one told the outcome the error matches engine.ErrOutcomeUnknown.
func (v *verbs) sendTransaction(ctx context.Context, req *queuev1.TransactRequest, key string) (resp *queuev1.TransactResponse, replayed bool, err error) {
	caller, _ := tenant.CallerFrom(ctx)
	ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(ctx, idempotency.Metadata, key), v.timeout)
	defer cancel()
	lost := false
	err = v.exchange.Control(ctx, string(caller.Tenant), firstQueue(req), true, func(ctx context.Context, c queuev1.QueueServiceClient) (err error) {
		var header metadata.MD
		resp, err = c.Transact(ctx, req, grpc.Header(&header))
		replayed = idempotency.Replayed(header)
		lost = lost || apierr.Reason(err) == apierr.ReasonUnreachable
		return err
	})
	if err != nil && lost && !proven(err) {
		err = fmt.Errorf("%w: %w", engine.ErrOutcomeUnknown, err)
	}
	return resp, replayed, err
}

// proven says that an error of a dispatcher holds whatever an earlier one did: that was looked for first.
func proven(err error) bool {
	for _, d := range apierr.From(err).Details() {
		if _, ok := d.(*queuev1.TransactResponse); ok {
			return true
		}
	}
	return apierr.Reason(err) == idempotency.ReasonReused
}

// firstQueue is the queue by which a dispatcher is chosen.
func firstQueue(req *queuev1.TransactRequest) string {
	first := req.GetOperations()[0]
	if first.GetAck() != nil {
		return first.GetAck().GetQueue()
	}
	return first.GetPush().GetQueue()
}

// judgeItems refuses the transaction for its first bad item; the others get what every item gets.
func (v *verbs) judgeItems(ctx context.Context, req *queuev1.TransactRequest, checked bool) error {
	traceparent := traceparentOf(ctx)
	for n, op := range req.GetOperations() {
		for i, it := range op.GetPush().GetItems() {
			if fault := v.judge(it, i, checked); fault != nil {
				return itemError(fault).WithField(operationField(n, "push") + fault.GetField())
			}
			carryTrace(it, traceparent)
			carryOrigin(it, op.GetPush().GetOrigin())
		}
	}
	return nil
}

// operationField is the path of an operation's field.
func operationField(i int, kind string) string { return fmt.Sprintf("operations[%d].%s.", i, kind) }

func acrossTransact(req *queuev1.TransactRequest) *domain.Violation {
	count, size := 0, int64(0)
	for i, op := range req.GetOperations() {
		push, ack := op.GetPush(), op.GetAck()
		var broken *domain.Violation
		switch {
		case push == nil && ack == nil:
			broken = missing("TransactOperation.which", fmt.Sprintf("operations[%d].push", i), "push or ack is needed")
		case push != nil && ack != nil:
			broken = conflict("TransactOperation.one", fmt.Sprintf("operations[%d].ack", i), "push and ack exclude each other")
		case push != nil:
			broken = acrossPushIn(push, operationField(i, "push"))
		default:
			broken = acrossAckIn(ack, operationField(i, "ack"))
		}
		if broken != nil {
			return broken
		}
		count += len(push.GetItems()) + len(ack.GetSettlements())
		for _, it := range push.GetItems() {
			size += int64(len(it.GetPayload()))
		}
	}
	switch {
	case count > domain.MaxItems:
		return &domain.Violation{
			Rule: "TransactRequest.items", Field: "operations", Code: domain.CodeTooMany, Size: int64(count), Limit: domain.MaxItems,
			Detail: fmt.Sprintf("there are %d items and settlements together, at most %d are allowed", count, domain.MaxItems),
		}
	case size > domain.RequestBytes:
		return &domain.Violation{
			Rule: "TransactRequest.bytes", Field: "operations", Code: domain.CodeTooLarge, Size: size, Limit: domain.RequestBytes,
			Detail: fmt.Sprintf("the payloads have %d bytes together, at most %d are allowed", size, domain.RequestBytes),
		}
	}
	return nil
}

func acrossPushIn(push *queuev1.PushRequest, path string) *domain.Violation {
	switch {
	case push.GetIdempotencyKey() != "":
		return conflict("TransactOperation.push_key", path+"idempotency_key", "the key of the transaction is the Idempotency-Key of the call")
	case push.GetResent():
		return conflict("TransactOperation.push_resent", path+"resent", "a repeat is told by the Idempotency-Key of the call")
	}
	return nil
}

func acrossAckIn(ack *queuev1.AckRequest, path string) *domain.Violation {
	switch {
	case ack.GetLease() == "":
		return missing("TransactOperation.ack_lease", path+"lease", "in a transaction a lease is needed")
	case ack.GetAckRest():
		return conflict("TransactOperation.ack_rest", path+"ack_rest", "in a transaction the messages are named")
	}
	return acrossAck(ack, path)
}
