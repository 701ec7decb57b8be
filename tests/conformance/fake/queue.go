package fake

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"postrider.dev/pkg/apierr"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
)

type queue struct {
	name     string
	id       string
	created  time.Time
	version  int64
	options  *queuev1.QueueOptions
	messages []*message
	groups   map[string]*group
	keys     map[string]*seen
	requests map[string]*queuev1.PushResponse
	dead     []*queuev1.DeadLetter
	later    map[string]*message // by pending id; what is due moves to messages and stays here
	events   map[int64][]*queuev1.TraceEvent
}

type message struct {
	id        string
	offset    int64
	item      *queuev1.PushItem
	createdAt time.Time
	due       *timestamppb.Timestamp // of what waits
	hidden    bool                   // deleted, or cancelled
}

type seen struct {
	id   string
	body string
	due  *timestamppb.Timestamp
}

type group struct {
	mode    queuev1.GroupMode
	settled map[int64]bool
	leased  map[int64]string // offset -> lease
	fails   map[int64]int32
	tries   map[int64]int32
	leases  map[string][]*message
}

// find returns a queue with what is due in its log, nil if there is none.
func (d *Dispatcher) find(tenant, name string) *queue {
	q := d.queues[tenant+"\x00"+name]
	if q != nil {
		q.arrive()
	}
	return q
}

func (d *Dispatcher) ensure(tenant, name string) *queue {
	q := d.find(tenant, name)
	if q == nil {
		q = &queue{
			name: name, id: "q" + strconv.Itoa(len(d.queues)+1), created: time.Now(), version: 1, options: defaults(),
			groups: map[string]*group{}, keys: map[string]*seen{}, requests: map[string]*queuev1.PushResponse{},
			later: map[string]*message{}, events: map[int64][]*queuev1.TraceEvent{},
		}
		d.queues[tenant+"\x00"+name] = q
	}
	return q
}

func defaults() *queuev1.QueueOptions {
	return &queuev1.QueueOptions{
		Lease: durationpb.New(30 * time.Second), MaxAttempts: proto.Int32(5), Backoff: durationpb.New(time.Second),
		BackoffMax: durationpb.New(5 * time.Minute), MaxMessageBytes: proto.Int32(1 << 20), IdempotencyWindow: durationpb.New(time.Hour),
		MaxGroups: proto.Int32(100), Shards: proto.Int32(1),
		Retention: durationpb.New(0), RetentionBytes: proto.Int64(0), RetentionSettled: proto.Bool(false),
		ExpireAfter: durationpb.New(7 * 24 * time.Hour), MaxQueueBytes: proto.Int64(0), MaxQueueMessages: proto.Int64(0),
		Compression: queuev1.Compression_COMPRESSION_ZSTD.Enum(), Encryption: proto.Bool(false), Lanes: proto.Int32(1), Trace: proto.Bool(false),
		Delay: durationpb.New(0),
	}
}

func (d *Dispatcher) push(tenant string, req *queuev1.PushRequest) *queuev1.PushResponse {
	q := d.ensure(tenant, req.GetQueue())
	if first := q.requests[req.GetIdempotencyKey()]; first != nil && req.GetIdempotencyKey() != "" {
		again := proto.CloneOf(first)
		again.Replayed = true
		return again
	}
	resp := &queuev1.PushResponse{}
	for _, it := range req.GetItems() {
		resp.Results = append(resp.Results, q.append(it))
	}
	if req.GetIdempotencyKey() != "" {
		q.requests[req.GetIdempotencyKey()] = resp
	}
	d.wake()
	return resp
}

func (q *queue) append(it *queuev1.PushItem) *queuev1.PushResult {
	if len(it.GetPayload()) > int(q.options.GetMaxMessageBytes()) {
		return failed("MESSAGE_TOO_LARGE", "payload", fmt.Sprintf("%d bytes, at most %d are allowed", len(it.GetPayload()), q.options.GetMaxMessageBytes()))
	}
	if it.GetPriority() >= q.options.GetLanes() {
		return failed("LANE_UNKNOWN", "priority", fmt.Sprintf("is %d, the queue has %d lanes", it.GetPriority(), q.options.GetLanes()))
	}
	partition := it.GetPartition()
	if partition == "" {
		partition = "default"
	}
	key := fmt.Sprintf("%d\x00%s\x00%s", it.GetPriority(), partition, it.GetIdempotencyKey())
	if it.GetIdempotencyKey() != "" {
		if s := q.keys[key]; s != nil {
			if s.body != string(it.GetPayload()) {
				return failed("IDEMPOTENCY_KEY_REUSED", "idempotency_key", "the key was used with another body")
			}
			return &queuev1.PushResult{Status: queuev1.PushStatus_PUSH_STATUS_DUPLICATE, MessageId: s.id, AvailableAt: s.due}
		}
	}
	if due := dueOf(it); due != nil {
		return q.delay(it, partition, key, due)
	}
	offset := int64(len(q.messages))
	m := &message{id: q.id + "-" + strconv.FormatInt(offset, 10), offset: offset, item: proto.CloneOf(it), createdAt: time.Now()}
	m.item.Partition = partition
	q.messages = append(q.messages, m)
	if it.GetIdempotencyKey() != "" {
		q.keys[key] = &seen{id: m.id, body: string(it.GetPayload())}
	}
	return &queuev1.PushResult{Status: queuev1.PushStatus_PUSH_STATUS_QUEUED, MessageId: m.id, Offset: offset}
}

func failed(code, field, msg string) *queuev1.PushResult {
	return &queuev1.PushResult{Status: queuev1.PushStatus_PUSH_STATUS_FAILED, Error: &queuev1.ItemError{Code: code, Field: field, Message: msg}}
}

func (q *queue) group(name string, options *queuev1.GroupOptions) (*group, error) {
	if name == "" {
		name = "default"
	}
	g := q.groups[name]
	if g == nil {
		g = &group{
			mode: options.GetMode(), settled: map[int64]bool{}, leased: map[int64]string{}, fails: map[int64]int32{},
			tries: map[int64]int32{}, leases: map[string][]*message{},
		}
		if g.mode == queuev1.GroupMode_GROUP_MODE_UNSPECIFIED {
			g.mode = queuev1.GroupMode_GROUP_MODE_ORDERED
		}
		q.groups[name] = g
	}
	if want := options.GetMode(); want != queuev1.GroupMode_GROUP_MODE_UNSPECIFIED && want != g.mode {
		return nil, apierr.FailedPrecondition("GROUP_MISMATCH", "the group exists with other options")
	}
	return g, nil
}

func (d *Dispatcher) pop(tenant string, req *queuev1.PopRequest) (*queuev1.PopResponse, error) {
	q := d.ensure(tenant, req.GetQueue())
	g, err := q.group(req.GetGroup(), req.GetGroupOptions())
	if err != nil {
		return nil, err
	}
	resp := &queuev1.PopResponse{}
	if req.GetSettle() != nil {
		settled, err := d.ack(tenant, req.GetSettle())
		if err != nil {
			return nil, err
		}
		resp.Settled = settled.GetResults()
		req.Settle = nil
	}
	lease := fmt.Sprintf("lease-%s-%d", q.id, d.leases+1)
	length := req.GetLease()
	if length == nil {
		length = q.options.GetLease()
	}
	taken := q.take(g, lease, req)
	if len(taken) == 0 {
		return resp, nil
	}
	d.leases++
	g.leases[lease] = taken
	resp.Lease, resp.LeaseDuration = lease, length
	resp.LeaseExpiresAt = timestamppb.New(time.Now().Add(length.AsDuration()))
	for _, m := range taken {
		g.tries[m.offset]++
		q.note(m, queuev1.TraceEventKind_TRACE_EVENT_KIND_DELIVERED, "")
		resp.Deliveries = append(resp.Deliveries, &queuev1.Delivery{
			MessageId: m.id, Partition: m.item.GetPartition(), Offset: m.offset, Payload: m.item.GetPayload(), ContentType: m.item.GetContentType(),
			Headers: m.item.GetHeaders(), ClientId: m.item.GetClientId(), Attempt: g.tries[m.offset], CreatedAt: timestamppb.New(m.createdAt),
			Priority: m.item.GetPriority(),
		})
	}
	return resp, nil
}

// byPriority are the messages in the order in which a pop looks at them.
func (q *queue) byPriority() []*message {
	list := slices.Clone(q.messages)
	slices.SortStableFunc(list, func(a, b *message) int { return int(b.item.GetPriority() - a.item.GetPriority()) })
	return list
}

// identity is the partition and its lane: of a name that is used in two lanes there are two.
func (m *message) identity() string {
	return fmt.Sprintf("%d\x00%s", m.item.GetPriority(), m.item.GetPartition())
}

// ripe is when a message is old enough to be handed out; what was handed out before is.
func (q *queue) ripe(g *group, m *message) time.Time {
	if g.tries[m.offset] > 0 {
		return m.createdAt
	}
	return m.createdAt.Add(q.options.GetDelay().AsDuration())
}

func (q *queue) take(g *group, lease string, req *queuev1.PopRequest) []*message {
	batch := max(int(req.GetBatch()), 1)
	busy := map[string]bool{}
	if g.mode == queuev1.GroupMode_GROUP_MODE_ORDERED {
		for offset := range g.leased {
			busy[q.messages[offset].identity()] = true
		}
	}
	var taken []*message
	for _, m := range q.byPriority() {
		p := m.item.GetPartition()
		if m.hidden || q.ripe(g, m).After(time.Now()) || len(taken) == batch || g.settled[m.offset] || g.leased[m.offset] != "" || busy[m.identity()] || req.GetPartition() != "" && p != req.GetPartition() {
			continue
		}
		g.leased[m.offset] = lease
		taken = append(taken, m)
	}
	return taken
}

func (d *Dispatcher) held(tenant, queueName, groupName, lease string) (*queue, *group, []*message, error) {
	q := d.find(tenant, queueName)
	if q == nil {
		return nil, nil, nil, apierr.NotFound("QUEUE_NOT_FOUND", "there is no queue of that name")
	}
	for name, g := range q.groups {
		if held, ok := g.leases[lease]; ok && (groupName == "" || groupName == name) {
			return q, g, held, nil
		}
	}
	return nil, nil, nil, apierr.Aborted("STALE_EPOCH", "the lease is over")
}

func (d *Dispatcher) ack(tenant string, req *queuev1.AckRequest) (*queuev1.AckResponse, error) {
	q, g, held, err := d.held(tenant, req.GetQueue(), "", req.GetLease())
	if err != nil {
		return nil, err
	}
	if req.GetGroup() != "" && q.groups[req.GetGroup()] != g {
		return nil, apierr.InvalidArgument("GROUP_MISMATCH", "group", "is not the group of the lease")
	}
	resp := &queuev1.AckResponse{}
	says := map[string]*queuev1.Settlement{}
	results := map[string]*queuev1.AckResult{}
	for _, s := range req.GetSettlements() {
		says[s.GetMessageId()] = s
		results[s.GetMessageId()] = refusal("NOT_LEASED")
	}
	open := func(m *message) bool { return g.leased[m.offset] == req.GetLease() }
	for _, m := range held { // in the order of the log
		switch s := says[m.id]; {
		case s == nil:
		case g.settled[m.offset]:
			results[m.id] = already(s)
		case open(m):
			status := q.settle(g, m, s)
			results[m.id] = &queuev1.AckResult{Status: status}
			if g.mode != queuev1.GroupMode_GROUP_MODE_ORDERED || g.settled[m.offset] {
				continue
			}
			for _, behind := range held {
				if behind.offset > m.offset && behind.item.GetPartition() == m.item.GetPartition() && open(behind) {
					delete(g.leased, behind.offset)
					g.tries[behind.offset]--
					results[behind.id] = &queuev1.AckResult{Status: queuev1.AckStatus_ACK_STATUS_RETURNED}
				}
			}
		}
	}
	rest := req.GetAckRest()
	for _, s := range req.GetSettlements() {
		res := proto.CloneOf(results[s.GetMessageId()])
		res.MessageId = s.GetMessageId()
		resp.Results = append(resp.Results, res)
		rest = rest && res.GetStatus() != queuev1.AckStatus_ACK_STATUS_REFUSED
	}
	for _, m := range held {
		if rest && open(m) {
			q.settle(g, m, &queuev1.Settlement{})
			resp.RestAcked++
		}
	}
	d.wake()
	return resp, nil
}

func refusal(code string) *queuev1.AckResult {
	return &queuev1.AckResult{Status: queuev1.AckStatus_ACK_STATUS_REFUSED, Error: &queuev1.ItemError{Code: code, Message: "refused"}}
}

// already answers a settlement of what is settled.
func already(s *queuev1.Settlement) *queuev1.AckResult {
	switch s.GetAction() {
	case queuev1.AckAction_ACK_ACTION_NACK, queuev1.AckAction_ACK_ACTION_REJECT:
		return refusal("ALREADY_SETTLED")
	case queuev1.AckAction_ACK_ACTION_ACK, queuev1.AckAction_ACK_ACTION_UNSPECIFIED:
	}
	return &queuev1.AckResult{Status: queuev1.AckStatus_ACK_STATUS_ALREADY_SETTLED}
}

func (q *queue) settle(g *group, m *message, s *queuev1.Settlement) queuev1.AckStatus {
	delete(g.leased, m.offset)
	switch s.GetAction() {
	case queuev1.AckAction_ACK_ACTION_NACK:
		g.fails[m.offset]++
		q.note(m, queuev1.TraceEventKind_TRACE_EVENT_KIND_NACKED, s.GetReason())
		if g.fails[m.offset] < q.options.GetMaxAttempts() {
			return queuev1.AckStatus_ACK_STATUS_SETTLED
		}
	case queuev1.AckAction_ACK_ACTION_REJECT:
		q.note(m, queuev1.TraceEventKind_TRACE_EVENT_KIND_REJECTED, s.GetReason())
	case queuev1.AckAction_ACK_ACTION_ACK, queuev1.AckAction_ACK_ACTION_UNSPECIFIED:
		q.note(m, queuev1.TraceEventKind_TRACE_EVENT_KIND_ACKED, "")
		g.settled[m.offset] = true
		return queuev1.AckStatus_ACK_STATUS_SETTLED
	}
	g.settled[m.offset] = true
	q.note(m, queuev1.TraceEventKind_TRACE_EVENT_KIND_DEAD_LETTERED, "rejected")
	q.dead = append(q.dead, &queuev1.DeadLetter{
		Id: "d" + strconv.Itoa(len(q.dead)+1), Queue: q.name, Group: "default", MessageId: m.id, Partition: m.item.GetPartition(), Offset: m.offset,
		Payload: m.item.GetPayload(), PayloadBytes: int32(len(m.item.GetPayload())), ContentType: m.item.GetContentType(),
		Headers: m.item.GetHeaders(), ClientId: m.item.GetClientId(), Attempts: g.fails[m.offset], Reason: s.GetReason(),
		FailedAt: timestamppb.Now(),
	})
	return queuev1.AckStatus_ACK_STATUS_DEAD_LETTERED
}

func (d *Dispatcher) renew(tenant string, req *queuev1.RenewRequest) (*queuev1.RenewResponse, error) {
	q, _, _, err := d.held(tenant, req.GetQueue(), "", req.GetLease())
	if err != nil {
		return nil, err
	}
	length := req.GetDuration()
	if length == nil {
		length = q.options.GetLease()
	}
	return &queuev1.RenewResponse{LeaseExpiresAt: timestamppb.New(time.Now().Add(length.AsDuration())), LeaseDuration: length}, nil
}

func (d *Dispatcher) release(tenant string, req *queuev1.ReleaseRequest) (*queuev1.ReleaseResponse, error) {
	_, g, held, err := d.held(tenant, req.GetQueue(), "", req.GetLease())
	if err != nil {
		return nil, err
	}
	resp := &queuev1.ReleaseResponse{}
	for _, m := range held {
		if len(req.GetMessageIds()) > 0 && !slices.Contains(req.GetMessageIds(), m.id) || g.leased[m.offset] != req.GetLease() {
			continue
		}
		delete(g.leased, m.offset)
		g.tries[m.offset]--
		resp.Released++
	}
	if !slices.ContainsFunc(held, func(m *message) bool { return g.leased[m.offset] == req.GetLease() }) {
		delete(g.leases, req.GetLease())
	}
	d.wake()
	return resp, nil
}
