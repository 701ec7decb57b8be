package engine

import (
	"context"
	"errors"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"postrider.dev/pkg/tenant"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/window"
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
	s, err := e.gshardOf(ctx, id)
	if s == nil || err != nil {
		return err // gone: its leases go with it
	}
	p := pending{asks: []*ask{{s: s, want: &window.Reclaim{}}}}
	p.submit()
	return p.wait()
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
