package server

import (
	"context"

	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/dispatcher/internal/domain/invalid"
	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/queue"
	"postrider.dev/services/dispatcher/internal/store"
)

const (
	defaultPeek      = 10
	defaultPeekBytes = 4 << 20
)

// PeekMessages implements the contract.
func (s *Queues) PeekMessages(ctx context.Context, req *queuev1.PeekMessagesRequest) (*queuev1.PeekMessagesResponse, error) {
	by, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	peek, err := peekOf(req)
	if err != nil {
		return nil, wireError(err)
	}
	q, err := s.control.FindQueue(ctx, by.Tenant, req.GetQueue())
	if err != nil {
		return nil, wireError(err)
	}
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	p, err := s.control.Peek(ctx, q, peek)
	if err != nil {
		return nil, wireError(err)
	}
	resp := &queuev1.PeekMessagesResponse{
		Shard: int32(p.Shard), FromOffset: int64(p.From), NextOffset: int64(p.Next), Tail: int64(p.Tail), Head: int64(p.Head),
	}
	for _, f := range p.Messages {
		resp.Messages = append(resp.Messages, &queuev1.PeekedMessage{
			MessageId: message.ID{Shard: f.Shard, Offset: f.Offset}.String(), Partition: f.Partition, Offset: int64(f.Offset), Payload: f.Payload,
			ContentType: f.ContentType, Headers: headersOf(f.Headers), ClientId: f.ClientID, CreatedAt: instant(f.CreatedAt.UTC()),
			Priority: int32(q.PriorityOf(f.Shard)),
		})
	}
	return resp, nil
}

func peekOf(req *queuev1.PeekMessagesRequest) (store.Peek, error) {
	p := store.Peek{
		Shard: int(req.GetShard()), Partition: req.GetPartition(), Priority: int(req.GetPriority()),
		Limit: int(req.GetLimit()), MaxBytes: int64(req.GetMaxBytes()),
	}
	if err := firstOf(
		queue.CheckName("queue", req.GetQueue()),
		queue.CheckOptionalName("partition", p.Partition),
		between("limit", p.Limit, 0, maxPage),
		between("max_bytes", int(p.MaxBytes), 0, maxBody),
	); err != nil {
		return p, err
	}
	if p.Shard < 0 {
		return p, invalid.New(invalid.OutOfRange, "shard", "must not be negative")
	}
	if req.Shard != nil && p.Partition != "" {
		return p, invalid.New(invalid.OutOfRange, "shard", "must not be given beside partition")
	}
	if req.Priority != nil && p.Partition == "" {
		return p, invalid.New(invalid.OutOfRange, "priority", "goes with partition only")
	}
	if p.Limit == 0 {
		p.Limit = defaultPeek
	}
	if p.MaxBytes == 0 {
		p.MaxBytes = defaultPeekBytes
	}
	var err error
	p.From, err = queue.ParseFrom("from", req.GetFrom())
	return p, err
}
