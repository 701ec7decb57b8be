package engine

import (
	"context"
	"errors"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"postrider.dev/pkg/tenant"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/dispatcher/internal/domain/lease"
	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/queue"
	"postrider.dev/services/dispatcher/internal/domain/window"
	"postrider.dev/services/dispatcher/internal/engine/catalog"
	"postrider.dev/services/dispatcher/internal/store"
)

const (
	defaultPopBytes = 4 << 20
	maxTrimmedPops  = 3 // times in a row that all a pop got was trimmed, before it is answered empty
	maxGoneGroups   = 3 // deleted groups in a row under one name, before a pop is refused
)

// Pop leases ready messages, waiting up to req.Wait for the first. "Nothing" is answered only after a look at the database that began after the call. If
// ctx ends first, nothing stays leased: what was granted meanwhile is released, uncharged. What became of req.Settle is always told: in the answer, or,
// where it failed for lack of a database and nothing was leased, as the error.
func (e *Engine) Pop(ctx context.Context, t tenant.ID, req *queuev1.PopRequest) (*queuev1.PopResponse, error) {
	if req.GetSettle() == nil {
		return e.pop(ctx, t, req, func(start func()) { start() })
	}
	begun, settleErr := e.settle(ctx, t, settleOf(req))
	if settleErr != nil && !errors.Is(settleErr, ErrStaleEpoch) {
		return nil, settleErr
	}
	submitted := settleErr != nil
	begin := func(start func()) { // the first plan of the pop is that of the settlement too
		if submitted {
			start()
			return
		}
		submitted = true
		begun.submitWith(start)
	}
	resp, err := e.pop(ctx, t, req, begin)
	begin(func() {}) // if it came to no plan
	var ack *queuev1.AckResponse
	if settleErr == nil {
		ack, settleErr = begun.finish()
	}
	if errors.Is(err, ErrDraining) && settleErr == nil {
		resp, err = &queuev1.PopResponse{Draining: true}, nil // what was settled is not to be asked for again
	}
	switch {
	case err != nil:
		return nil, err
	case settleErr == nil:
		resp.Settled, resp.RestAcked = ack.GetResults(), ack.GetRestAcked()
	case resp.GetLease() == "" && !errors.Is(settleErr, ErrStaleEpoch):
		return nil, settleErr
	default:
		resp.Settled, resp.SettleError = refusedAll(req.GetSettle(), settleErr), itemError(settleErr)
	}
	return resp, nil
}

// SettleOnly does with req.Settle what Pop would, and hands out nothing.
func (e *Engine) SettleOnly(ctx context.Context, t tenant.ID, req *queuev1.PopRequest) (*queuev1.PopResponse, error) {
	resp := &queuev1.PopResponse{}
	if req.GetSettle() == nil {
		return resp, nil
	}
	ack, err := e.Ack(ctx, t, settleOf(req))
	switch {
	case err == nil:
		resp.Settled, resp.RestAcked = ack.GetResults(), ack.GetRestAcked()
	case errors.Is(err, ErrStaleEpoch):
		resp.Settled, resp.SettleError = refusedAll(req.GetSettle(), err), itemError(err)
	default:
		return nil, err
	}
	return resp, nil
}

// settleOf completes the settlement of a pop with what the pop says.
func settleOf(req *queuev1.PopRequest) *queuev1.AckRequest {
	s := req.GetSettle()
	group := s.GetGroup()
	if group == "" && s.GetLease() == "" { // a lease may be of another group than the pop's
		group = req.GetGroup()
	}
	return &queuev1.AckRequest{
		Queue: req.GetQueue(), Group: group, Lease: s.GetLease(), Settlements: s.GetSettlements(), AckRest: s.GetAckRest(),
	}
}

// refusedAll answers each settlement of a request that failed as a whole.
func refusedAll(req *queuev1.AckRequest, err error) []*queuev1.AckResult {
	results := make([]*queuev1.AckResult, len(req.GetSettlements()))
	for i, one := range req.GetSettlements() {
		results[i] = &queuev1.AckResult{
			MessageId: one.GetMessageId(), Status: queuev1.AckStatus_ACK_STATUS_REFUSED, Error: itemError(err),
		}
	}
	return results
}

// pop is Pop without a settlement; begin is given what submits a plan.
func (e *Engine) pop(ctx context.Context, t tenant.ID, req *queuev1.PopRequest, begin func(start func())) (*queuev1.PopResponse, error) {
	if err := e.pops.take(1); err != nil {
		return nil, err
	}
	defer e.pops.give(1)
	deadline := e.clk.Now().Add(req.GetWait().AsDuration())
	for gone := 0; ; gone++ {
		g, rows, err := e.groupOf(ctx, t, req)
		if err != nil {
			return nil, err
		}
		resp, err := e.popFrom(ctx, g, rows, req, deadline, begin)
		if !errors.Is(err, errGone) {
			return resp, err
		}
		if gone == maxGoneGroups {
			return nil, store.ErrGroupNotFound
		}
		e.catalog.InvalidateGroup(rows.group) // the group or its queue was deleted: look the names up again
		e.catalog.InvalidateQueue(t, req.GetQueue())
	}
}

// groupOf returns the group that a pop names, made if need be.
func (e *Engine) groupOf(ctx context.Context, t tenant.ID, req *queuev1.PopRequest) (*group, *groupRows, error) {
	options, err := groupOptions(req.GetGroupOptions())
	if err != nil {
		return nil, nil, err
	}
	name := req.GetGroup()
	if name == "" {
		name = queue.DefaultGroup
	}
	for tries := 0; ; tries++ {
		q, err := e.queue(ctx, t, req.GetQueue(), true)
		if err != nil {
			return nil, nil, e.dbError(err)
		}
		row, err := e.groupRow(ctx, q, name, options)
		if errors.Is(err, store.ErrQueueNotFound) && tries < maxGoneGroups {
			e.catalog.InvalidateQueue(t, req.GetQueue())
			continue
		}
		if err != nil {
			return nil, nil, e.dbError(err)
		}
		return e.group(q, row), &groupRows{queue: q, group: row}, nil
	}
}

// groupOptions reads the options of a pop. What is not said says nothing.
func groupOptions(o *queuev1.GroupOptions) (store.GroupOptions, error) {
	var out store.GroupOptions
	switch o.GetMode() {
	case queuev1.GroupMode_GROUP_MODE_ORDERED:
		out.Mode = queue.Ordered
	case queuev1.GroupMode_GROUP_MODE_SHARED:
		out.Mode = queue.Shared
	case queuev1.GroupMode_GROUP_MODE_UNSPECIFIED:
	}
	switch o.GetOnFailure() {
	case queuev1.OnFailure_ON_FAILURE_BLOCK:
		out.OnFailure = queue.Block
	case queuev1.OnFailure_ON_FAILURE_SKIP:
		out.OnFailure = queue.Skip
	case queuev1.OnFailure_ON_FAILURE_UNSPECIFIED:
	}
	if o.GetStart() == "" {
		return out, nil
	}
	var err error
	out.Start, err = queue.ParseStart(o.GetStart())
	return out, err
}

// popFrom pops from a group until something was granted or the deadline is there.
func (e *Engine) popFrom(
	ctx context.Context, g *group, rows *groupRows, req *queuev1.PopRequest, deadline time.Time, begin func(start func()),
) (*queuev1.PopResponse, error) {
	want := e.wish(rows.queue, req)
	want.MaxBytes = max(want.MaxBytes-besides(req, len(g.shards)), 1)
	var told []*queuev1.Trimmed // by parts that came to nothing
	trimmed := 0
	skip := map[int][]message.Offset{} // by shard
	for {
		sent := e.clk.Now()
		p := e.newPop(g, want, skip, deadline.Sub(sent))
		begin(p.start)
		draining := e.await(ctx, p, deadline)
		if p.err != nil {
			return nil, p.err
		}
		if ctx.Err() != nil {
			e.undelivered(p.parts)
			return nil, context.Cause(ctx)
		}
		if len(p.parts) == 0 {
			return &queuev1.PopResponse{Draining: draining, Trimmed: told}, nil
		}
		resp, strangers, err := e.deliver(ctx, p, req.GetPartition())
		if err != nil {
			e.undelivered(p.parts)
			return nil, err
		}
		told = append(told, resp.GetTrimmed()...)
		if len(resp.GetDeliveries()) > 0 {
			resp.LeaseDuration, resp.Trimmed = durationpb.New(want.Lease), told
			return resp, nil
		}
		if len(strangers) == 0 { // all of it was trimmed or deleted meanwhile
			trimmed++
			if err := e.catchUpWithTails(ctx, p.parts); err != nil || draining || trimmed > maxTrimmedPops {
				return &queuev1.PopResponse{Draining: draining, Trimmed: told}, err
			}
			continue
		}
		e.undelivered(p.parts)
		for shard, found := range strangers {
			skip[shard] = append(skip[shard], found...)
		}
	}
}

// wish translates a request, defaults filled in.
func (e *Engine) wish(q *catalog.Queue, req *queuev1.PopRequest) window.Pop {
	want := window.Pop{
		MaxMessages:   max(int(req.GetBatch()), 1),
		MaxBytes:      int64(req.GetMaxBytes()),
		MaxPartitions: int(req.GetPartitions()),
		Lease:         q.Config.Lease,
		Holder:        req.GetConsumer() + e.holderSuffix,
	}
	if want.MaxBytes == 0 {
		want.MaxBytes = defaultPopBytes
	}
	if req.GetLease() != nil && req.GetLease().AsDuration() > 0 {
		want.Lease = req.GetLease().AsDuration()
	}
	if req.GetPartition() != "" {
		want.Named, want.Hash = true, q.Hash(req.GetPartition())
	}
	return want
}

// besides is the most bytes that an answer has beside its messages: the lease over that many shards, what they lost, and what became of req's settlement. They count
// towards max_bytes, so that a client whose limit is max_bytes can read the answer (one message larger than that excepted).
func besides(req *queuev1.PopRequest, shards int) int64 {
	const fixed, perShard, perResult = 640, 28 + 48, 384 // a settle_error among the first; an error among the last
	n := int64(fixed + perShard*shards)
	for _, s := range req.GetSettle().GetSettlements() {
		n += perResult + int64(len(s.GetMessageId()))
	}
	return n
}

// newPop numbers a pop. What it waits for begins here: a poll that begins later proves that there is nothing.
func (e *Engine) newPop(g *group, want window.Pop, skip map[int][]message.Offset, wait time.Duration) *pop {
	g.used()
	return &pop{
		g: g, want: want, skip: skip, noWait: wait <= 0, arrived: e.poller.arrival(),
		done: make(chan struct{}), seqs: make([]uint64, len(g.shards)),
	}
}

// await returns when p is finished. It reports whether p was sent away because the dispatcher drains.
func (e *Engine) await(ctx context.Context, p *pop, deadline time.Time) (draining bool) {
	var timeout <-chan time.Time
	if wait := deadline.Sub(e.clk.Now()); !p.noWait && wait > 0 {
		timer := e.clk.NewTimer(wait)
		defer timer.Stop()
		timeout = timer.C()
	}
	drain := e.draining.Done()
	if timeout == nil {
		p.expire()
		drain = nil // it ends by itself
	}
	for {
		select {
		case <-p.done:
			return draining
		case <-timeout:
			p.expire()
			timeout, drain = nil, nil
		case <-ctx.Done():
			p.giveUp()
			<-p.done
			return draining
		case <-drain:
			draining = true
			p.sendAway()
			drain = nil
		}
	}
}

// deliver reads the messages of a pop and makes its answer. Messages of a named pop that turn out to have another name are given back; strangers are these,
// by shard.
func (e *Engine) deliver(ctx context.Context, p *pop, partition string) (resp *queuev1.PopResponse, strangers map[int][]message.Offset, err error) {
	resp, strangers = &queuev1.PopResponse{}, map[int][]message.Offset{}
	var token lease.Token
	var expires window.DBTime
	for _, part := range p.parts {
		offsets := make([]message.Offset, len(part.messages))
		for i, m := range part.messages {
			offsets[i] = m.Offset
		}
		found, err := e.messages(ctx, part.s.shard.id, offsets)
		if err != nil {
			return nil, nil, e.dbError(err)
		}
		var back []message.Offset
		for _, m := range part.messages {
			body, ok := found[m.Offset]
			strange := ok && partition != "" && body.Partition != partition
			if strange {
				strangers[part.s.index] = append(strangers[part.s.index], m.Offset)
			}
			if !ok || strange || len(strangers[part.s.index]) > 0 { // what lies behind a stranger comes back with it
				back = append(back, m.Offset)
				continue
			}
			resp.Deliveries = append(resp.Deliveries, delivery(part.s, m, body))
		}
		if part.told.Untold > 0 {
			resp.Trimmed = append(resp.Trimmed, lossOf(part))
		}
		if len(back) == len(part.messages) && len(strangers[part.s.index]) > 0 { // those of another lane may be delivered
			e.giveBack(part.s, part.epoch, nil)
			continue
		}
		if len(back) > 0 && len(back) < len(part.messages) {
			e.giveBack(part.s, part.epoch, back)
		}
		token = append(token, lease.Part{GroupShard: part.s.id, Epoch: part.epoch})
		if expires == 0 || part.expires < expires {
			expires = part.expires
		}
	}
	slices.SortFunc(token, func(a, b lease.Part) int { return int(a.GroupShard - b.GroupShard) })
	resp.Lease = token.String()
	resp.LeaseExpiresAt = timestamppb.New(expires.Time())
	e.metrics.deliveries.Add(float64(len(resp.GetDeliveries())))
	return resp, strangers, nil
}

// undelivered gives back what was granted to somebody who cannot get it any more, at once and uncharged.
func (e *Engine) undelivered(parts []popPart) {
	for _, part := range parts {
		e.metrics.undelivered.Add(float64(len(part.messages)))
		e.giveBack(part.s, part.epoch, nil)
	}
}

// giveBack releases messages of a lease without waiting; no offsets means all. If it fails, the lease runs out.
func (e *Engine) giveBack(s *gshard, epoch window.Epoch, offsets []message.Offset) {
	s.submit(&request{
		want: &window.Release{Epoch: epoch, Offsets: offsets},
		done: func(window.Outcome, window.DBTime, uint64, error) {},
	})
}

// Undelivered gives back the lease of an answer that could not be sent, without waiting.
func (e *Engine) Undelivered(t tenant.ID, queueName string, resp *queuev1.PopResponse) {
	if resp.GetLease() == "" {
		return
	}
	e.metrics.undelivered.Add(float64(len(resp.GetDeliveries())))
	e.background(func() {
		ctx, cancel := context.WithTimeout(e.base, e.cfg.StatementTimeout)
		defer cancel()
		h, err := e.lease(ctx, t, queueName, resp.GetLease())
		if err != nil {
			return // the lease is gone, or it runs out
		}
		for _, part := range h.parts {
			e.giveBack(part.s, part.epoch, nil)
		}
	})
}
