package engine

import (
	"context"
	"errors"
	"slices"
	"sync"

	"postrider.dev/pkg/tenant"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/dispatcher/internal/domain/lease"
	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/queue"
	"postrider.dev/services/dispatcher/internal/domain/window"
)

// held is a lease as a request names it: the group-shards of its parts.
type held struct {
	parts []heldPart
}

type heldPart struct {
	s     *gshard
	epoch window.Epoch
}

// lease resolves a token. A token of another tenant's queue, of another queue or of a group that is gone names no lease: ErrStaleEpoch.
func (e *Engine) lease(ctx context.Context, t tenant.ID, queueName, token string) (held, error) {
	parts, err := lease.ParseToken(token)
	if err != nil {
		return held{}, err
	}
	q, err := e.queue(ctx, t, queueName, false)
	if err != nil {
		return held{}, e.dbError(err)
	}
	var h held
	for _, part := range parts {
		s, err := e.groupShard(ctx, q, part.GroupShard)
		if err != nil {
			return held{}, err
		}
		h.parts = append(h.parts, heldPart{s: s, epoch: part.Epoch})
	}
	return h, nil
}

// ask is one wish to one group-shard whose answer is waited for.
type ask struct {
	s    *gshard
	want window.Request
	out  window.Outcome
	at   window.DBTime
	err  error
}

// pending is a set of asks on their way.
type pending struct {
	asks []*ask
	wg   sync.WaitGroup
}

// submit sends the asks on their way. They are planned even if the caller leaves.
func (p *pending) submit() { p.submitWith(func() {}) }

// submitWith sends the asks on their way together with what other submits: where it goes to the same group-shard, both are planned at once.
func (p *pending) submitWith(other func()) {
	p.wg.Add(len(p.asks))
	for _, a := range p.asks {
		ok := a.s.put(&request{want: a.want, done: func(out window.Outcome, at window.DBTime, _ uint64, err error) {
			a.out, a.at, a.err = out, at, err
			p.wg.Done()
		}})
		if !ok {
			a.err = ErrDraining
			p.wg.Done()
		}
	}
	other()
	for _, a := range p.asks {
		a.s.nudge()
	}
}

// wait returns the first error, once all are answered.
func (p *pending) wait() error {
	p.wg.Wait()
	var errs []error
	for _, a := range p.asks {
		if a.err != nil && !errors.Is(a.err, errGone) {
			errs = append(errs, a.err)
		}
	}
	return errors.Join(errs...)
}

// settling is an AckRequest on its way: which ask and item answers which settlement.
type settling struct {
	pending
	req     *queuev1.AckRequest
	results []*queuev1.AckResult
	where   []place // by settlement
	rest    bool    // the asks, each as its last item, ack what is not named
}

// place is where a settlement went; ask is nil where it was answered before anything was asked.
type place struct {
	ask  *ask
	item int
}

// Ack settles messages. A refusal is proven against the present state of the lease and changes nothing. If nothing at all was settled now or before,
// because the lease is gone, the whole request fails with ErrStaleEpoch.
func (e *Engine) Ack(ctx context.Context, t tenant.ID, req *queuev1.AckRequest) (*queuev1.AckResponse, error) {
	if err := e.requests.take(1); err != nil {
		return nil, err
	}
	defer e.requests.give(1)
	s, err := e.settle(ctx, t, req)
	if err != nil {
		return nil, err
	}
	s.submit()
	return s.finish()
}

// settle prepares to settle: the wishes are there, and to be submitted.
func (e *Engine) settle(ctx context.Context, t tenant.ID, req *queuev1.AckRequest) (*settling, error) {
	s := newSettling(req)
	var err error
	if req.GetLease() != "" {
		err = e.settleLease(ctx, t, s)
	} else {
		err = e.settleUnleased(ctx, t, s)
	}
	if err != nil {
		return nil, err
	}
	return s, nil
}

func newSettling(req *queuev1.AckRequest) *settling {
	s := &settling{req: req, rest: req.GetAckRest()}
	s.results = make([]*queuev1.AckResult, len(req.GetSettlements()))
	s.where = make([]place, len(req.GetSettlements()))
	for i, one := range req.GetSettlements() {
		s.results[i] = &queuev1.AckResult{MessageId: one.GetMessageId()}
	}
	return s
}

// settleLease spreads settlements over the parts of a lease.
func (e *Engine) settleLease(ctx context.Context, t tenant.ID, s *settling) error {
	h, err := e.lease(ctx, t, s.req.GetQueue(), s.req.GetLease())
	if err != nil {
		return err
	}
	if err := h.ofGroup(s.req.GetGroup()); err != nil {
		return err
	}
	wishes := make([]*window.Settle, len(h.parts))
	asks := make([]*ask, len(h.parts))
	for i, part := range h.parts {
		wishes[i] = &window.Settle{Epoch: part.epoch}
		asks[i] = &ask{s: part.s, want: wishes[i]}
	}
	means, err := e.leased(ctx, t, h, s.req)
	if err != nil {
		return err
	}
	for i, one := range s.req.GetSettlements() {
		if means[i].err != nil {
			s.refuse(i, means[i].err)
			continue
		}
		id := means[i].id
		s.results[i].MessageId = id.String()
		part := h.of(id.Shard)
		if part < 0 {
			s.refuse(i, errNotLeased)
			continue
		}
		s.where[i] = place{ask: asks[part], item: len(wishes[part].Items)}
		wishes[part].Items = append(wishes[part].Items, itemOf(one, id.Offset))
	}
	if s.rest = s.rest && !s.refused(); s.rest && len(asks) > 1 && len(s.where) > 0 {
		return s.settleRestAfter(asks)
	}
	for i, w := range wishes {
		if s.rest {
			w.Items = append(w.Items, theRest)
		}
		if len(w.Items) > 0 {
			s.asks = append(s.asks, asks[i])
		}
	}
	return nil
}

// theRest acks all of a lease that is not named.
var theRest = window.Item{Offset: window.MaxOffset, Through: true, Verdict: window.Ack} //nolint:gochecknoglobals // a constant

// settleRestAfter settles what is named in a lease of several parts, and asks for the rest only if nothing of that was refused: within one part the core
// sees to that, but no part knows of another's refusal.
func (s *settling) settleRestAfter(asks []*ask) error {
	named := pending{}
	for _, a := range asks {
		if len(a.want.(*window.Settle).Items) > 0 { //nolint:forcetypeassert // made by the caller
			named.asks = append(named.asks, a)
		}
	}
	named.submit()
	if err := named.wait(); err != nil {
		return err
	}
	for i, p := range s.where {
		s.answer(i, p)
	}
	if s.rest = !s.refused(); !s.rest {
		return nil
	}
	for _, a := range asks {
		epoch := a.want.(*window.Settle).Epoch //nolint:forcetypeassert // made by the caller
		s.asks = append(s.asks, &ask{s: a.s, want: &window.Settle{Epoch: epoch, Items: []window.Item{theRest}}})
	}
	return nil
}

// refused says whether a settlement was refused until now.
func (s *settling) refused() bool {
	return slices.ContainsFunc(s.results, func(r *queuev1.AckResult) bool { return r.GetStatus() == queuev1.AckStatus_ACK_STATUS_REFUSED })
}

// of returns the index of the part on a shard, -1 if there is none.
func (h held) of(shard message.ShardID) int {
	for i, part := range h.parts {
		if part.s.shard.id == shard {
			return i
		}
	}
	return -1
}

func itemOf(one *queuev1.Settlement, offset message.Offset) window.Item {
	item := window.Item{Offset: offset, Verdict: verdictOf(one.GetAction()), Reason: queue.CleanReason(one.GetReason())}
	if one.GetDelay() != nil {
		item.HasDelay, item.Delay = true, one.GetDelay().AsDuration()
	}
	return item
}

func verdictOf(a queuev1.AckAction) window.Verdict {
	switch a {
	case queuev1.AckAction_ACK_ACTION_NACK:
		return window.Nack
	case queuev1.AckAction_ACK_ACTION_REJECT:
		return window.Reject
	case queuev1.AckAction_ACK_ACTION_ACK, queuev1.AckAction_ACK_ACTION_UNSPECIFIED:
	}
	return window.Ack
}

// refuse answers a settlement before anything is asked.
func (s *settling) refuse(i int, err error) {
	s.results[i].Status, s.results[i].Error = queuev1.AckStatus_ACK_STATUS_REFUSED, itemError(err)
}

// settled answers a settlement of a message that is settled.
func (s *settling) settled(i int) {
	if verdictOf(s.req.GetSettlements()[i].GetAction()) != window.Ack { // it did not come to what was asked for
		s.refuse(i, errSettled)
		return
	}
	s.results[i].Status = queuev1.AckStatus_ACK_STATUS_ALREADY_SETTLED
}

// finish waits for the commit and makes the answer.
func (s *settling) finish() (*queuev1.AckResponse, error) {
	if err := s.wait(); err != nil {
		return nil, err
	}
	return s.answers()
}

// answers makes the answer of what was asked, once that is known.
func (s *settling) answers() (*queuev1.AckResponse, error) {
	stale, other := 0, 0
	for i := range s.where {
		p := s.where[i]
		if p.ask != nil {
			s.answer(i, p)
		}
		if s.results[i].GetError().GetCode() == codeStale {
			stale++
		} else {
			other++
		}
	}
	resp := &queuev1.AckResponse{Results: s.results}
	leaseGone := len(s.asks) > 0
	for _, a := range s.asks {
		if a.err == nil && a.out.Result != window.Stale {
			leaseGone = false
		}
		if s.rest && a.err == nil && len(a.out.Items) > 0 {
			resp.RestAcked += int32(a.out.Items[len(a.out.Items)-1].Count)
		}
	}
	if other == 0 && (stale > 0 || s.rest && leaseGone) && resp.GetRestAcked() == 0 {
		return nil, ErrStaleEpoch
	}
	return resp, nil
}

// answer translates what became of the i-th settlement.
func (s *settling) answer(i int, p place) {
	r := s.results[i]
	if p.ask.err != nil { // the group is gone, and every lease with it
		s.refuse(i, ErrStaleEpoch)
		return
	}
	result := p.ask.out.Result
	if p.item < len(p.ask.out.Items) {
		result = p.ask.out.Items[p.item].Result
	}
	switch result {
	case window.Done, window.Retrying:
		r.Status = queuev1.AckStatus_ACK_STATUS_SETTLED
	case window.DeadLettered:
		r.Status = queuev1.AckStatus_ACK_STATUS_DEAD_LETTERED
	case window.Returned:
		r.Status = queuev1.AckStatus_ACK_STATUS_RETURNED
	case window.AlreadySettled:
		s.settled(i)
	case window.NotHeld:
		s.refuse(i, errNotLeased)
	case window.Stale, window.Nothing, window.Refused:
		s.refuse(i, ErrStaleEpoch)
	}
}
