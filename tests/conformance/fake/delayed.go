package fake

import (
	"maps"
	"slices"
	"strconv"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"postrider.dev/pkg/apierr"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
)

// dueOf is when an item is to be delivered; nil is now.
func dueOf(it *queuev1.PushItem) *timestamppb.Timestamp {
	at := time.Now().Add(it.GetDelay().AsDuration())
	if it.GetDeliverAt() != nil {
		at = it.GetDeliverAt().AsTime()
	}
	if !at.After(time.Now()) {
		return nil
	}
	return timestamppb.New(at)
}

// delay keeps a message until it is due.
func (q *queue) delay(it *queuev1.PushItem, partition, key string, due *timestamppb.Timestamp) *queuev1.PushResult {
	m := &message{id: "p_" + strconv.Itoa(len(q.later)+1), offset: -1, item: proto.CloneOf(it), due: due}
	m.item.Partition = partition
	q.later[m.id] = m
	if it.GetIdempotencyKey() != "" {
		q.keys[key] = &seen{id: m.id, body: string(it.GetPayload()), due: due}
	}
	return &queuev1.PushResult{Status: queuev1.PushStatus_PUSH_STATUS_QUEUED, MessageId: m.id, AvailableAt: due}
}

// arrive appends what is due.
func (q *queue) arrive() {
	for _, id := range slices.Sorted(maps.Keys(q.later)) {
		m := q.later[id]
		if m.hidden || m.offset >= 0 || m.due.AsTime().After(time.Now()) {
			continue
		}
		now := *m
		now.offset, now.createdAt = int64(len(q.messages)), time.Now()
		now.id = q.id + "-" + strconv.FormatInt(now.offset, 10)
		m.offset = now.offset
		q.messages = append(q.messages, &now)
	}
}

// waiting counts what is not due.
func (q *queue) waiting() (n int64) {
	for _, m := range q.later {
		if m.offset < 0 && !m.hidden {
			n++
		}
	}
	return n
}

// byID finds a message by its id or pending id, also one that was deleted.
func (q *queue) byID(id string) *message {
	if m := q.later[id]; m != nil && m.offset < 0 {
		return m
	} else if m != nil {
		return q.messages[m.offset]
	}
	for _, m := range q.messages {
		if m.id == id {
			return m
		}
	}
	return nil
}

// lookupID shows a message by its id or pending id.
func (q *queue) lookupID(id string) (*queuev1.LookupMessageResponse, error) {
	m := q.byID(id)
	if m == nil || m.hidden {
		return nil, apierr.NotFound("MESSAGE_NOT_FOUND", "there is no such message")
	}
	resp := m.found()
	if m.offset < 0 {
		resp.Offset, resp.CreatedAt, resp.AvailableAt = 0, nil, m.due
	}
	return resp, nil
}

func (m *message) found() *queuev1.LookupMessageResponse {
	return &queuev1.LookupMessageResponse{
		MessageId: m.id, Offset: m.offset, Payload: m.item.GetPayload(), ContentType: m.item.GetContentType(),
		Headers: m.item.GetHeaders(), CreatedAt: timestamppb.New(m.createdAt), Partition: m.item.GetPartition(), ClientId: m.item.GetClientId(),
	}
}
