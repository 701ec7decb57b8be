package server

import (
	"context"
	"fmt"

	"github.com/google/uuid"

	"postrider.dev/pkg/idempotency"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/dispatcher/internal/domain/invalid"
	"postrider.dev/services/dispatcher/internal/domain/queue"
	"postrider.dev/services/dispatcher/internal/store"
)

// PurgeDeadLetters implements the contract.
func (s *Queues) PurgeDeadLetters(ctx context.Context, req *queuev1.PurgeDeadLettersRequest) (*queuev1.PurgeDeadLettersResponse, error) {
	by, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	purge, err := purgeOf(req)
	if err != nil {
		return nil, wireError(err)
	}
	key, err := idempotency.NewRequest(ctx, by.Tenant, queuev1.QueueService_PurgeDeadLetters_FullMethodName, req)
	if err != nil {
		return nil, wireError(err)
	}
	resp := &queuev1.PurgeDeadLettersResponse{}
	if !key.Keyed() {
		done, err := s.control.PurgeDeadLetters(ctx, by, req.GetQueue(), purge)
		if err != nil {
			return nil, wireError(err)
		}
		resp.More = done.More
		return addPurged(resp, done), nil
	}
	return resp, s.inSteps(ctx, key, resp, steps{
		choose: func(c *store.Control) (ids []store.DeadLetterID, err error) {
			ids, resp.More, err = c.ChooseToPurge(ctx, by.Tenant, req.GetQueue(), purge)
			return ids, err
		},
		some: func(c *store.Control, ids []store.DeadLetterID) ([]store.DeadLetterID, error) {
			step, rest, err := c.PurgeSome(ctx, by, req.GetQueue(), purge, ids)
			if err == nil {
				addPurged(resp, step)
			}
			return rest, err
		},
		done: func() {}, // nobody waits for it
	})
}

// addPurged adds what a purge did to its answer.
func addPurged(resp *queuev1.PurgeDeadLettersResponse, step store.PurgedLetters) *queuev1.PurgeDeadLettersResponse {
	resp.Purged += int32(step.Purged)
	resp.AlreadyRedriven += int32(step.Already)
	for _, id := range step.NotFound {
		resp.NotFound = append(resp.NotFound, uuid.UUID(id).String())
	}
	return resp
}

// purgeOf accepts one of ids, group and all; limit and failed_before go with the latter two.
func purgeOf(req *queuev1.PurgeDeadLettersRequest) (store.PurgeRequest, error) {
	out := store.PurgeRequest{Group: req.GetGroup(), Limit: int(req.GetLimit()), Redriven: req.GetIncludeRedriven()}
	if err := firstOf(
		queue.CheckName("queue", req.GetQueue()),
		queue.CheckOptionalName("group", req.GetGroup()),
		between("ids", len(req.GetIds()), 0, maxClientIDs),
		between("limit", out.Limit, 0, maxPage),
	); err != nil {
		return out, err
	}
	named, before := len(req.GetIds()) > 0, req.GetFailedBefore()
	switch {
	case !named && out.Group == "" && !req.GetAll():
		return out, invalid.New(invalid.NameEmpty, "ids", "or group or all must be given")
	case out.Group != "" && named:
		return out, invalid.New(invalid.OutOfRange, "group", "must not be given beside ids")
	case req.GetAll() && (named || out.Group != ""):
		return out, invalid.New(invalid.OutOfRange, "all", "must not be given beside ids or group")
	case named && out.Limit != 0:
		return out, invalid.New(invalid.OutOfRange, "limit", "goes with group and all only")
	case named && before != nil:
		return out, invalid.New(invalid.OutOfRange, "failed_before", "goes with group and all only")
	case before != nil && before.CheckValid() != nil:
		return out, invalid.New(invalid.OutOfRange, "failed_before", "is no time")
	}
	if before != nil {
		out.Before = new(before.AsTime())
	}
	if out.Limit == 0 {
		out.Limit = maxPage
	}
	for i, text := range req.GetIds() {
		id, err := deadLetterID(fmt.Sprintf("ids[%d]", i), text)
		if err != nil {
			return out, err
		}
		out.IDs = append(out.IDs, id)
	}
	return out, nil
}
