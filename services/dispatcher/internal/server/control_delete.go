package server

import (
	"context"

	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/store"
)

// DeleteMessage implements the contract. Pops that wait are woken: it may have stood before others of its partition.
func (s *Queues) DeleteMessage(ctx context.Context, req *queuev1.DeleteMessageRequest) (*queuev1.DeleteMessageResponse, error) {
	by, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	name, err := messageName(req)
	if err != nil {
		return nil, wireError(err)
	}
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	done := false
	call := controlCall[*queuev1.DeleteMessageResponse]{by, queuev1.QueueService_DeleteMessage_FullMethodName, req, &queuev1.DeleteMessageResponse{}}
	resp, err := once(ctx, s, call, func(c *store.Control) (*queuev1.DeleteMessageResponse, error) {
		deleted, err := c.DeleteMessage(ctx, by, req.GetQueue(), name)
		if err != nil {
			return nil, err
		}
		if deleted.Cancelled {
			return &queuev1.DeleteMessageResponse{MessageId: deleted.Pending.String(), Cancelled: true}, nil
		}
		done = true
		return &queuev1.DeleteMessageResponse{MessageId: deleted.ID.String()}, nil
	})
	if err == nil && done {
		s.notify.QueueChanged(by.Tenant, req.GetQueue(), false)
	}
	return resp, err
}

// messageName reads by which of its names a message is meant.
func messageName(req *queuev1.DeleteMessageRequest) (store.MessageName, error) {
	var name store.MessageName
	if err := checkMessageName(req.GetQueue(), req.GetPartition(), req.GetClientId(), req.GetMessageId()); err != nil {
		return name, err
	}
	switch text := req.GetMessageId(); {
	case text == "":
		name.Client = store.ClientName{Partition: req.GetPartition(), ClientID: req.GetClientId()}
		if name.Client.Partition == "" {
			name.Client.Partition = defaultPartition
		}
	case message.IsPendingID(text):
		id, err := message.ParsePendingID(text)
		if err != nil {
			return name, err
		}
		name.Pending = &id
	default:
		id, err := message.ParseID(text)
		if err != nil {
			return name, err
		}
		name.ID = &id
	}
	return name, nil
}
