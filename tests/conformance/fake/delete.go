package fake

import (
	"context"
	"slices"

	"postrider.dev/pkg/apierr"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
)

// named is the newest message of a client id, also one that was deleted.
func (q *queue) named(partition, clientID string) *message {
	if partition == "" {
		partition = "default"
	}
	for _, m := range slices.Backward(q.messages) {
		if m.item.GetPartition() == partition && m.item.GetClientId() == clientID {
			return m
		}
	}
	return nil
}

func (c *control) DeleteMessage(ctx context.Context, req *queuev1.DeleteMessageRequest) (*queuev1.DeleteMessageResponse, error) {
	tenant, end := c.begin(ctx, req)
	defer end()
	q, err := c.need(tenant, req.GetQueue())
	if err != nil {
		return nil, err
	}
	m := q.byID(req.GetMessageId())
	if req.GetMessageId() == "" {
		m = q.named(req.GetPartition(), req.GetClientId())
	}
	if m == nil {
		return nil, apierr.NotFound("MESSAGE_NOT_FOUND", "there is no such message")
	}
	m.hidden = true
	for _, g := range q.groups {
		g.settled[m.offset] = true
		delete(g.leased, m.offset)
	}
	c.d.wake()
	return &queuev1.DeleteMessageResponse{MessageId: m.id, Cancelled: m.offset < 0}, nil
}
