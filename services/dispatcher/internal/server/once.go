package server

import (
	"context"

	"google.golang.org/protobuf/proto"

	"postrider.dev/pkg/idempotency"
	"postrider.dev/pkg/tenant"
	"postrider.dev/services/dispatcher/internal/store"
)

// controlCall is a call of the control surface that changes something.
type controlCall[Resp proto.Message] struct {
	by     tenant.Caller
	method string
	req    proto.Message
	empty  Resp // is filled when the first answer is given again
}

// once runs do for the call: in one transaction with the memory of its answer if the call came with an idempotency key, and then not again for a repeat.
// do works through the Control it is given and MAY run more than once, so it tells nobody anything: that is done after once has returned. Its errors
// become wire errors.
func once[Resp proto.Message](ctx context.Context, s *Queues, call controlCall[Resp], do func(*store.Control) (Resp, error)) (Resp, error) {
	var none Resp
	key, err := idempotency.NewRequest(ctx, call.by.Tenant, call.method, call.req)
	if err != nil {
		return none, wireError(err)
	}
	resp, _, err := idempotency.Do(ctx, s.control, s.control, key, call.empty, do)
	if err != nil {
		return none, wireError(err)
	}
	return resp, nil
}
