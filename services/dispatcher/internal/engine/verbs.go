package engine

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"postrider.dev/pkg/tenant"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/dispatcher/internal/domain/invalid"
	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/placement"
	"postrider.dev/services/dispatcher/internal/domain/queue"
	"postrider.dev/services/dispatcher/internal/domain/window"
	"postrider.dev/services/dispatcher/internal/engine/catalog"
	"postrider.dev/services/dispatcher/internal/store"
)

// Renew makes a lease last at least the duration from now on. A lease over several shards is renewed as one: if a part is gone, the answer is
// ErrStaleEpoch, and what was renewed of the others meanwhile only keeps them from others a little longer.
func (e *Engine) Renew(ctx context.Context, t tenant.ID, req *queuev1.RenewRequest) (*queuev1.RenewResponse, error) {
	if err := e.requests.take(1); err != nil {
		return nil, err
	}
	defer e.requests.give(1)
	h, err := e.lease(ctx, t, req.GetQueue(), req.GetLease())
	if err != nil {
		return nil, err
	}
	d := req.GetDuration().AsDuration()
	if d <= 0 {
		d = h.parts[0].s.grp.rows.Load().queue.Config.Lease
	}
	var p pending
	for _, part := range h.parts {
		p.asks = append(p.asks, &ask{s: part.s, want: &window.Renew{Epoch: part.epoch, Lease: d}})
	}
	p.submit()
	if err := p.wait(); err != nil {
		return nil, err
	}
	var expires window.DBTime
	for _, a := range p.asks {
		if a.err != nil || a.out.Result != window.Done {
			return nil, ErrStaleEpoch
		}
		if at := a.at.Add(d); expires == 0 || at < expires {
			expires = at
		}
	}
	return &queuev1.RenewResponse{LeaseExpiresAt: timestamppb.New(expires.Time()), LeaseDuration: durationpb.New(d)}, nil
}

// Release gives messages of a lease back at once, uncharged and without a trace.
func (e *Engine) Release(ctx context.Context, t tenant.ID, req *queuev1.ReleaseRequest) (*queuev1.ReleaseResponse, error) {
	if err := e.requests.take(1); err != nil {
		return nil, err
	}
	defer e.requests.give(1)
	h, err := e.lease(ctx, t, req.GetQueue(), req.GetLease())
	if err != nil {
		return nil, err
	}
	offsets := make([][]message.Offset, len(h.parts))
	for _, text := range req.GetMessageIds() {
		id, err := message.ParseID(text)
		if err != nil {
			return nil, err
		}
		part := h.of(id.Shard)
		if part < 0 {
			return nil, ErrStaleEpoch
		}
		offsets[part] = append(offsets[part], id.Offset)
	}
	var p pending
	for i, part := range h.parts {
		if len(req.GetMessageIds()) > 0 && len(offsets[i]) == 0 {
			continue
		}
		p.asks = append(p.asks, &ask{s: part.s, want: &window.Release{Epoch: part.epoch, Offsets: offsets[i]}})
	}
	p.submit()
	if err := p.wait(); err != nil {
		return nil, err
	}
	resp := &queuev1.ReleaseResponse{}
	stale := 0
	for _, a := range p.asks {
		if a.err != nil || a.out.Result == window.Stale {
			stale++
			continue
		}
		resp.Released += int32(a.out.Count)
	}
	if stale == len(p.asks) {
		return nil, ErrStaleEpoch
	}
	return resp, nil
}

// Reclaim takes back the leases of a group-shard that ran out.
func (e *Engine) Reclaim(ctx context.Context, id window.GroupShardID) error {
	e.mu.Lock()
	s := e.byShard[id]
	e.mu.Unlock()
	if s == nil {
		owner, err := e.ownerOf(ctx, id)
		if errors.Is(err, store.ErrGroupNotFound) {
			return nil // its leases go with it
		}
		if err != nil {
			return e.dbError(err)
		}
		if s = e.adopt(owner).byID(id); s == nil {
			return nil
		}
	}
	p := pending{asks: []*ask{{s: s, want: &window.Reclaim{}}}}
	p.submit()
	return p.wait()
}

// settleUnleased settles messages that are named without a lease: by id, or by partition and client id.
func (e *Engine) settleUnleased(ctx context.Context, t tenant.ID, s *settling) error {
	q, err := e.queue(ctx, t, s.req.GetQueue(), false)
	if err != nil {
		return e.dbError(err)
	}
	name := s.req.GetGroup()
	if name == "" {
		name = queue.DefaultGroup
	}
	row, err := e.groupRow(ctx, q, name, store.GroupOptions{})
	if err != nil {
		return e.dbError(err)
	}
	g := e.group(q, row)
	for i, one := range s.req.GetSettlements() {
		if one.GetAction() == queuev1.AckAction_ACK_ACTION_NACK {
			s.refuse(i, invalid.New(invalid.OutOfRange, fmt.Sprintf("settlements[%d].action", i), "nack needs a lease"))
			continue
		}
		id, hash, err := e.locate(ctx, q, one)
		if err != nil {
			if !errors.Is(err, errNoSuchMessage) {
				return err
			}
			s.refuse(i, ErrStaleEpoch)
			continue
		}
		s.results[i].MessageId = id.String()
		shard := g.of(id.Shard)
		if shard == nil {
			s.refuse(i, ErrStaleEpoch)
			continue
		}
		a := &ask{s: shard, want: &window.SettleAt{
			Offset: id.Offset, Hash: hash, Verdict: verdictOf(one.GetAction()), Reason: queue.CleanReason(one.GetReason()),
		}}
		s.asks = append(s.asks, a)
		s.where[i] = place{ask: a}
	}
	return nil
}

var errNoSuchMessage = errors.New("no such message in the log")

// locate finds a message that is named without a lease, and its partition's hash.
func (e *Engine) locate(ctx context.Context, q *catalog.Queue, one *queuev1.Settlement) (message.ID, uint64, error) {
	if one.GetMessageId() == "" {
		partition := one.GetPartition()
		if partition == "" {
			partition = DefaultPartition
		}
		ctx, cancel := context.WithTimeout(ctx, e.cfg.StatementTimeout)
		defer cancel()
		found, ok, err := e.control.FindByClientID(ctx, q.Queue, partition, one.GetClientId())
		if err != nil {
			return message.ID{}, 0, e.dbError(err)
		}
		if !ok {
			return message.ID{}, 0, errNoSuchMessage
		}
		return message.ID{Shard: found.Shard, Offset: found.Offset}, placement.Hash(partition), nil
	}
	id, err := message.ParseID(one.GetMessageId())
	if err != nil {
		return id, 0, err
	}
	for _, shard := range q.Shards {
		if shard != id.Shard {
			continue
		}
		found, err := e.messages(ctx, shard, []message.Offset{id.Offset})
		if err != nil {
			return id, 0, e.dbError(err)
		}
		m, ok := found[id.Offset]
		if !ok {
			return id, 0, errNoSuchMessage
		}
		return id, placement.Hash(m.Partition), nil
	}
	return id, 0, errNoSuchMessage
}

// leasedNames returns the messages that a lease holds now, by their producers' names.
func (e *Engine) leasedNames(ctx context.Context, h held) (map[clientName]message.ID, error) {
	names := map[clientName]message.ID{}
	for _, part := range h.parts {
		offsets, err := e.leasedOffsets(ctx, part)
		if err != nil {
			return nil, err
		}
		found, err := e.messages(ctx, part.s.shard.id, offsets)
		if err != nil {
			return nil, e.dbError(err)
		}
		for at, m := range found {
			if m.ClientID != "" {
				names[clientName{m.Partition, m.ClientID}] = message.ID{Shard: part.s.shard.id, Offset: at}
			}
		}
	}
	return names, nil
}

// leasedOffsets reads which messages a lease holds now.
func (e *Engine) leasedOffsets(ctx context.Context, part heldPart) ([]message.Offset, error) {
	if !e.readers.enter(ctx) {
		return nil, context.Cause(ctx)
	}
	defer e.readers.leave()
	ctx, cancel := context.WithTimeout(ctx, e.cfg.StatementTimeout)
	defer cancel()
	known := window.Known{Version: window.Version(part.s.version.Load()), Leases: []window.Epoch{part.epoch}}
	state, err := e.db.Refresh(ctx, part.s.id, known)
	if errors.Is(err, store.ErrGone) {
		return nil, ErrStaleEpoch
	}
	if err != nil {
		return nil, e.dbError(err)
	}
	for _, row := range state.Leases {
		if row.Epoch != part.epoch {
			continue
		}
		_, entries, err := window.DecodeEntries(row.Entries)
		if err != nil {
			return nil, err
		}
		offsets := make([]message.Offset, len(entries))
		for i, entry := range entries {
			offsets[i] = entry.Offset
		}
		return offsets, nil
	}
	return nil, ErrStaleEpoch
}
