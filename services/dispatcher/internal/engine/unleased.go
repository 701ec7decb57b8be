package engine

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"postrider.dev/pkg/tenant"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/dispatcher/internal/domain/invalid"
	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/queue"
	"postrider.dev/services/dispatcher/internal/domain/window"
	"postrider.dev/services/dispatcher/internal/engine/catalog"
	"postrider.dev/services/dispatcher/internal/store"
)

// settleUnleased settles messages that are named without a lease: by id, or by partition and client id. It makes no group: what nobody popped is leased
// to nobody.
func (e *Engine) settleUnleased(ctx context.Context, t tenant.ID, s *settling) error {
	q, err := e.queue(ctx, t, s.req.GetQueue(), false)
	if err != nil {
		return e.dbError(err)
	}
	name := s.req.GetGroup()
	if name == "" {
		name = queue.DefaultGroup
	}
	row, err := persist(ctx, e, func(ctx context.Context) (*catalog.Group, error) { return e.catalog.KnownGroup(ctx, q, name) })
	if err != nil {
		return e.dbError(err)
	}
	g := e.group(q, row)
	found, err := e.locate(ctx, q, s.req.GetSettlements())
	if err != nil {
		return e.dbError(err)
	}
	for i, one := range s.req.GetSettlements() {
		at := found[i]
		if at.err != nil {
			s.refuse(i, at.err)
			continue
		}
		s.results[i].MessageId = at.id.String()
		if at.gone {
			s.settled(i)
			continue
		}
		shard := g.of(at.id.Shard)
		if shard == nil {
			s.refuse(i, ErrStaleEpoch)
			continue
		}
		a := &ask{s: shard, want: &window.SettleAt{
			Offset: at.id.Offset, Hash: at.hash, Verdict: verdictOf(one.GetAction()), Reason: queue.CleanReason(one.GetReason()),
		}}
		s.asks = append(s.asks, a)
		s.where[i] = place{ask: a}
	}
	return nil
}

// located is where a message that is named without a lease is, or why its settlement is refused.
type located struct {
	id   message.ID
	hash uint64 // of its partition
	gone bool   // trimmed or deleted: it is settled for every group
	err  error
}

// locate finds messages that are named without a lease: all ids of a shard by one read, all names by one search, however many they are.
func (e *Engine) locate(ctx context.Context, q *catalog.Queue, all []*queuev1.Settlement) ([]located, error) {
	out := make([]located, len(all))
	offsets := map[message.ShardID][]message.Offset{}
	names := map[store.ClientName][]int{}
	for i, one := range all {
		switch {
		case one.GetAction() == queuev1.AckAction_ACK_ACTION_NACK:
			out[i].err = invalid.New(invalid.OutOfRange, fmt.Sprintf("settlements[%d].action", i), "nack needs a lease")
		case one.GetMessageId() != "":
			out[i].id, out[i].err = message.ParseID(one.GetMessageId())
			if out[i].err == nil && slices.Contains(q.Shards, out[i].id.Shard) {
				offsets[out[i].id.Shard] = append(offsets[out[i].id.Shard], out[i].id.Offset)
			}
		case one.GetClientId() == "":
			out[i].err = invalid.New(invalid.NameEmpty, fmt.Sprintf("settlements[%d].message_id", i), "message_id or client_id is needed")
		default:
			name := store.ClientName{Partition: one.GetPartition(), ClientID: one.GetClientId()}
			if name.Partition == "" {
				name.Partition = DefaultPartition
			}
			names[name] = append(names[name], i)
		}
	}
	if err := e.locateNames(ctx, q, names, out); err != nil {
		return nil, err
	}
	return out, e.locateIDs(ctx, q, offsets, all, out)
}

// locateIDs reads the partitions of messages that are named by id.
func (e *Engine) locateIDs(
	ctx context.Context, q *catalog.Queue, offsets map[message.ShardID][]message.Offset, all []*queuev1.Settlement, out []located,
) error {
	found := map[message.ShardID]map[message.Offset]read{}
	missing := map[message.ShardID]message.Offset{}
	for shard, wanted := range offsets {
		slices.Sort(wanted)
		var err error
		if found[shard], err = e.messages(ctx, shard, slices.Compact(wanted)); err != nil {
			return err
		}
		if len(found[shard]) < len(wanted) {
			missing[shard] = 0
		}
	}
	tails := map[message.ShardID]message.Offset{}
	if len(missing) > 0 {
		var err error
		if tails, err = e.beginnings(ctx, missing); err != nil {
			return err
		}
	}
	for i := range out {
		if at := &out[i]; at.err == nil && all[i].GetMessageId() != "" {
			m, ok := found[at.id.Shard][at.id.Offset]
			if !ok { // trimmed, or of another queue
				if at.gone = at.id.Offset < tails[at.id.Shard]; !at.gone {
					at.err = ErrStaleEpoch
				}
				continue
			}
			at.hash = q.Hash(m.Partition)
		}
	}
	return nil
}

// locateNames searches messages by what their producers call them.
func (e *Engine) locateNames(ctx context.Context, q *catalog.Queue, names map[store.ClientName][]int, out []located) error {
	if len(names) == 0 {
		return nil
	}
	wanted := slices.Collect(maps.Keys(names))
	found, err := persist(ctx, e, func(ctx context.Context) (map[store.ClientName]store.Found, error) {
		ctx, cancel := context.WithTimeout(ctx, e.cfg.StatementTimeout)
		defer cancel()
		return e.control.FindByClientIDs(ctx, q.Queue, wanted)
	})
	if err != nil {
		return err
	}
	for name, places := range names {
		m, ok := found[name]
		for _, i := range places {
			if !ok {
				out[i].err = ErrStaleEpoch
				continue
			}
			out[i].id, out[i].hash, out[i].gone = message.ID{Shard: m.Shard, Offset: m.Offset}, q.Hash(name.Partition), m.Deleted
		}
	}
	return nil
}
