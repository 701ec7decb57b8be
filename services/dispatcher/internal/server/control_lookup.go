package server

import (
	"context"
	"time"

	"postrider.dev/pkg/apierr"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/dispatcher/internal/domain/invalid"
	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/queue"
	"postrider.dev/services/dispatcher/internal/store"
)

const (
	defaultPartition = "default"
	// lookupTimeout bounds a search that has no index.
	lookupTimeout = 10 * time.Second
)

// LookupMessage implements the contract.
func (s *Queues) LookupMessage(ctx context.Context, req *queuev1.LookupMessageRequest) (*queuev1.LookupMessageResponse, error) {
	by, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	if err := checkLookup(req); err != nil {
		return nil, wireError(err)
	}
	q, err := s.control.FindQueue(ctx, by.Tenant, req.GetQueue())
	if err != nil {
		return nil, wireError(err)
	}
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	if id := req.GetMessageId(); req.GetTrace() && id != "" && !message.IsPendingID(id) {
		return s.trace(ctx, q, id, req)
	}
	resp, err := s.lookup(ctx, q, req)
	if err != nil || !req.GetTrace() || resp.GetAvailableAt() != nil {
		return resp, err
	}
	return s.trace(ctx, q, resp.GetMessageId(), req)
}

// lookup finds a message by any of its names.
func (s *Queues) lookup(ctx context.Context, q store.Queue, req *queuev1.LookupMessageRequest) (*queuev1.LookupMessageResponse, error) {
	if req.GetMessageId() != "" {
		return s.lookupID(ctx, q, req.GetMessageId())
	}
	partition := req.GetPartition()
	if partition == "" {
		partition = defaultPartition
	}
	f, ok, err := s.control.FindByClientID(ctx, q, partition, req.GetClientId())
	if err != nil {
		return nil, wireError(err)
	}
	if !ok || f.Deleted {
		return nil, apierr.NotFound(ReasonMessageNotFound, "the partition has no message of that client id in the log")
	}
	return foundOf(q, f), nil
}

// checkLookup accepts a message by one of its names, and a group with trace only.
func checkLookup(req *queuev1.LookupMessageRequest) error {
	if err := queue.CheckOptionalName("group", req.GetGroup()); err != nil {
		return err
	}
	if req.GetGroup() != "" && !req.GetTrace() {
		return invalid.New(invalid.OutOfRange, "group", "goes with trace only")
	}
	if err := checkEvents(req); err != nil {
		return err
	}
	return checkMessageName(req.GetQueue(), req.GetPartition(), req.GetClientId(), req.GetMessageId())
}

// checkMessageName accepts a client id with its partition, or a message id, and not both.
func checkMessageName(queueName, partition, clientID, messageID string) error {
	if err := firstOf(queue.CheckName("queue", queueName), queue.CheckOptionalName("partition", partition)); err != nil {
		return err
	}
	if messageID == "" {
		return queue.CheckName("client_id", clientID)
	}
	if clientID != "" || partition != "" {
		return invalid.New(invalid.OutOfRange, "message_id", "must not be given beside client_id or partition")
	}
	return nil
}

// lookupID finds a message by its place, or by the pending id under which it was accepted.
func (s *Queues) lookupID(ctx context.Context, q store.Queue, text string) (*queuev1.LookupMessageResponse, error) {
	if !message.IsPendingID(text) {
		id, err := message.ParseID(text)
		if err != nil {
			return nil, wireError(err)
		}
		f, err := s.control.FindByID(ctx, q, id)
		if err != nil {
			return nil, wireError(err)
		}
		return foundOf(q, f), nil
	}
	id, err := message.ParsePendingID(text)
	if err != nil {
		return nil, wireError(err)
	}
	f, err := s.control.FindPending(ctx, q, id)
	if err != nil {
		return nil, wireError(err)
	}
	resp := foundOf(q, f.Found)
	if !f.AvailableAt.IsZero() {
		resp.MessageId, resp.Offset, resp.CreatedAt, resp.AvailableAt = id.String(), 0, nil, instant(f.AvailableAt)
	}
	return resp, nil
}

func foundOf(q store.Queue, f store.Found) *queuev1.LookupMessageResponse {
	return &queuev1.LookupMessageResponse{
		MessageId: message.ID{Shard: f.Shard, Offset: f.Offset}.String(), Offset: int64(f.Offset), Payload: f.Payload,
		ContentType: f.ContentType, Headers: headersOf(f.Headers), CreatedAt: instant(f.CreatedAt.UTC()),
		Partition: f.Partition, ClientId: f.ClientID, Priority: int32(q.PriorityOf(f.Shard)),
	}
}
