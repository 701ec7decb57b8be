package engine

import (
	"context"
	"errors"

	"postrider.dev/pkg/tenant"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/dispatcher/internal/domain/invalid"
	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/store"
)

// ofGroup refuses a lease of another group than the one the caller says it is of.
func (h held) ofGroup(name string) error {
	for _, part := range h.parts {
		if name != "" && part.s.grp.name != name {
			return invalid.New(invalid.GroupMismatch, "group", "is not the group of the lease")
		}
	}
	return nil
}

// leased finds which messages the settlements of a lease mean; the error of one says why it means none.
func (e *Engine) leased(ctx context.Context, t tenant.ID, h held, req *queuev1.AckRequest) ([]located, error) {
	all := req.GetSettlements()
	out := make([]located, len(all))
	names := map[store.ClientName][]int{}
	for i, one := range all {
		switch {
		case one.GetMessageId() != "":
			out[i].id, out[i].err = message.ParseID(one.GetMessageId())
		case one.GetClientId() == "":
			out[i].err = invalid.New(invalid.NameEmpty, "message_id", "message_id or client_id is needed")
		default:
			name := store.ClientName{Partition: one.GetPartition(), ClientID: one.GetClientId()}
			if name.Partition == "" {
				name.Partition = DefaultPartition
			}
			names[name] = append(names[name], i)
		}
	}
	if len(names) == 0 {
		return out, nil
	}
	return out, e.leasedNames(ctx, t, h, req.GetQueue(), names, out)
}

// leasedNames finds messages by what their producers call them: in the lease, and what is not there in the log, where a repeated ack finds that all is
// settled. Of several messages of that name in the lease the first one is meant.
func (e *Engine) leasedNames(
	ctx context.Context, t tenant.ID, h held, queueName string, names map[store.ClientName][]int, out []located,
) error {
	open := false
	for _, part := range h.parts {
		offsets, err := e.leasedOffsets(ctx, part)
		if errors.Is(err, ErrStaleEpoch) {
			continue // this part is settled to its end, or lost
		}
		if err != nil {
			return err
		}
		open = true
		found, err := e.messages(ctx, part.s.shard.id, offsets)
		if err != nil {
			return e.dbError(err)
		}
		for _, at := range offsets {
			name := store.ClientName{Partition: found[at].Partition, ClientID: found[at].ClientID}
			for _, i := range names[name] {
				out[i].id = message.ID{Shard: part.s.shard.id, Offset: at}
			}
			delete(names, name)
		}
	}
	q, err := e.queue(ctx, t, queueName, false)
	if err != nil {
		return e.dbError(err)
	}
	if err := e.locateNames(ctx, q, names, out); err != nil {
		return e.dbError(err)
	}
	for _, places := range names {
		for _, i := range places {
			if open && errors.Is(out[i].err, ErrStaleEpoch) {
				out[i].err = errNotLeased
			}
		}
	}
	return nil
}
