package fake

import (
	"context"
	"fmt"

	"google.golang.org/protobuf/proto"

	"postrider.dev/pkg/apierr"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
)

// Transact looks at every operation before it does the first. What it does not look at is accepted.
func (c *control) Transact(ctx context.Context, req *queuev1.TransactRequest) (*queuev1.TransactResponse, error) {
	tenant, end := c.begin(ctx, req)
	defer end()
	refused := &queuev1.TransactResponse{}
	var first error
	for i, op := range req.GetOperations() {
		r := &queuev1.TransactResult{Status: queuev1.TransactStatus_TRANSACT_STATUS_NOT_DONE}
		if err := c.d.admits(tenant, op.GetAck()); op.GetAck() != nil && err != nil {
			e := apierr.From(err).WithField(fmt.Sprintf("operations[%d].ack", i))
			r.Status, r.Error = queuev1.TransactStatus_TRANSACT_STATUS_REFUSED, &queuev1.ItemError{Code: e.Reason, Field: e.Field, Message: e.Message}
			if first == nil {
				first = e
			}
		}
		refused.Results = append(refused.Results, r)
	}
	if first != nil {
		return nil, apierr.From(first).WithDetail(refused)
	}
	resp := &queuev1.TransactResponse{}
	for _, op := range req.GetOperations() {
		r := &queuev1.TransactResult{Status: queuev1.TransactStatus_TRANSACT_STATUS_DONE}
		if op.GetPush() != nil {
			r.Push = c.d.push(tenant, proto.CloneOf(op.GetPush()))
		} else {
			ack, err := c.d.ack(tenant, op.GetAck())
			if err != nil {
				return nil, err
			}
			r.Ack = ack
		}
		resp.Results = append(resp.Results, r)
	}
	return resp, nil
}

// admits says whether every message that is named is leased under the lease.
func (d *Dispatcher) admits(tenant string, req *queuev1.AckRequest) error {
	if req == nil {
		return nil
	}
	_, g, held, err := d.held(tenant, req.GetQueue(), req.GetGroup(), req.GetLease())
	if err != nil {
		return err
	}
	open := map[string]bool{}
	for _, m := range held {
		open[m.id] = g.leased[m.offset] == req.GetLease()
	}
	for _, s := range req.GetSettlements() {
		if !open[s.GetMessageId()] {
			return apierr.Aborted("ALREADY_SETTLED", "the message was settled before")
		}
	}
	return nil
}
