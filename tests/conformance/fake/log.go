package fake

import (
	"context"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	"postrider.dev/pkg/apierr"
	dispatcherv1 "postrider.dev/proto/gen/postrider/private/dispatcher/v1"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
)

// logOf needs d.mu.
func (d *Dispatcher) logOf(ctx context.Context, name string, create bool) (*queue, int64, error) {
	q := d.find(tenantOf(ctx), name)
	if q == nil && create {
		q = d.ensure(tenantOf(ctx), name)
	}
	if q == nil {
		return nil, 0, apierr.NotFound("QUEUE_NOT_FOUND", "there is no such queue").GRPCStatus().Err()
	}
	id, err := strconv.ParseInt(strings.TrimPrefix(q.id, "q"), 10, 64)
	return q, id, err
}

// LocateLog implements the contract for latest, earliest and, which is taken for earliest, a time.
func (d *Dispatcher) LocateLog(ctx context.Context, req *dispatcherv1.LocateLogRequest) (*dispatcherv1.LocateLogResponse, error) {
	d.note(req)
	d.mu.Lock()
	defer d.mu.Unlock()
	q, id, err := d.logOf(ctx, req.GetQueue(), req.GetCreate())
	if err != nil {
		return nil, err
	}
	b := &dispatcherv1.LogBounds{Head: int64(len(q.messages))}
	if req.GetFrom() == "" || req.GetFrom() == "latest" {
		b.Start = b.GetHead()
	}
	return &dispatcherv1.LocateLogResponse{QueueId: id, Shards: []*dispatcherv1.LogBounds{b}}, nil
}

// ReadLog implements the contract.
func (d *Dispatcher) ReadLog(ctx context.Context, req *dispatcherv1.ReadLogRequest) (*dispatcherv1.ReadLogResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	q, _, err := d.logOf(ctx, req.GetQueue(), false)
	if err != nil {
		return nil, err
	}
	return &dispatcherv1.ReadLogResponse{Page: q.page(req.GetFrom())}, nil
}

func (q *queue) page(from int64) *dispatcherv1.LogPage {
	p := &dispatcherv1.LogPage{From: from, Next: from}
	for ; p.GetNext() < int64(len(q.messages)); p.Next++ {
		m := q.messages[p.GetNext()]
		if m.hidden {
			continue
		}
		p.Messages = append(p.Messages, &queuev1.SubscribedMessage{
			MessageId: m.id, Partition: m.item.GetPartition(), Offset: p.GetNext(), Payload: m.item.GetPayload(), ContentType: m.item.GetContentType(),
			Headers: m.item.GetHeaders(), ClientId: m.item.GetClientId(), CreatedAt: timestamppb.New(m.createdAt), Priority: m.item.GetPriority(),
		})
	}
	return p
}

// TailLog implements the contract.
func (d *Dispatcher) TailLog(stream grpc.BidiStreamingServer[dispatcherv1.TailLogRequest, dispatcherv1.TailLogResponse]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	for at := first.GetOffsets()[0]; ; {
		d.mu.Lock()
		q, _, err := d.logOf(stream.Context(), first.GetQueue(), false)
		if err != nil {
			d.mu.Unlock()
			return err
		}
		page, changed := q.page(at), d.changed
		d.mu.Unlock()
		if page.GetNext() > at {
			if err := stream.Send(&dispatcherv1.TailLogResponse{Pages: []*dispatcherv1.LogPage{page}}); err != nil {
				return err
			}
			at = page.GetNext()
			continue
		}
		select {
		case <-changed:
		case <-time.After(dueEvery):
		case <-stream.Context().Done():
			return context.Cause(stream.Context())
		}
	}
}
