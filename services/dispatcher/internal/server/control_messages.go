package server

import (
	"context"
	"fmt"
	"strconv"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	"postrider.dev/pkg/idempotency"
	"postrider.dev/pkg/tenant"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/dispatcher/internal/domain/invalid"
	"postrider.dev/services/dispatcher/internal/domain/queue"
	"postrider.dev/services/dispatcher/internal/store"
)

// ListDeadLetters implements the contract.
func (s *Queues) ListDeadLetters(ctx context.Context, req *queuev1.ListDeadLettersRequest) (*queuev1.ListDeadLettersResponse, error) {
	by, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	if err := firstOf(queue.CheckName("queue", req.GetQueue()), queue.CheckOptionalName("group", req.GetGroup())); err != nil {
		return nil, wireError(err)
	}
	size, err := pageSize(req.GetPageSize())
	if err != nil {
		return nil, wireError(err)
	}
	list := listing{"dead letters", by.Tenant.String(), req.GetQueue(), req.GetGroup(), strconv.FormatBool(req.GetIncludeRedriven())}
	filter := store.DeadLetterFilter{Group: req.GetGroup(), Redriven: req.GetIncludeRedriven(), Limit: size + 1}
	cursor, err := list.cursor(req.GetPageToken())
	if err != nil {
		return nil, wireError(err)
	}
	if copy(filter.After[:], cursor) != len(cursor) || cursor != "" && len(cursor) != len(filter.After) {
		return nil, wireError(badToken("is damaged"))
	}
	page, err := s.control.ListDeadLetters(ctx, by.Tenant, req.GetQueue(), filter)
	if err != nil {
		return nil, wireError(err)
	}
	resp := &queuev1.ListDeadLettersResponse{}
	if len(page) > size {
		page = page[:size]
		resp.NextPageToken = list.next(string(page[size-1].ID[:]))
	}
	for _, d := range page {
		resp.DeadLetters = append(resp.DeadLetters, deadLetterOf(req.GetQueue(), d))
	}
	return resp, nil
}

// GetDeadLetter implements the contract.
func (s *Queues) GetDeadLetter(ctx context.Context, req *queuev1.GetDeadLetterRequest) (*queuev1.GetDeadLetterResponse, error) {
	by, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	if err := queue.CheckName("queue", req.GetQueue()); err != nil {
		return nil, wireError(err)
	}
	id, err := deadLetterID("id", req.GetId())
	if err != nil {
		return nil, wireError(err)
	}
	d, err := s.control.GetDeadLetter(ctx, by.Tenant, req.GetQueue(), id)
	if err != nil {
		return nil, wireError(err)
	}
	return &queuev1.GetDeadLetterResponse{DeadLetter: deadLetterOf(req.GetQueue(), d)}, nil
}

// RedriveDeadLetters implements the contract.
func (s *Queues) RedriveDeadLetters(ctx context.Context, req *queuev1.RedriveDeadLettersRequest) (*queuev1.RedriveDeadLettersResponse, error) {
	by, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	redrive, err := redriveOf(req)
	if err != nil {
		return nil, wireError(err)
	}
	key, err := idempotency.NewRequest(ctx, by.Tenant, queuev1.QueueService_RedriveDeadLetters_FullMethodName, req)
	if err != nil {
		return nil, wireError(err)
	}
	if key.Keyed() {
		return s.redriveOnce(ctx, by, key, req.GetQueue(), redrive)
	}
	done, err := s.control.Redrive(ctx, by, req.GetQueue(), redrive)
	if len(done.Heads) > 0 { // also of steps before a failure
		s.notify.Appended(by.Tenant, req.GetQueue(), done.Heads)
	}
	if err != nil {
		return nil, wireError(err)
	}
	return addRedriven(&queuev1.RedriveDeadLettersResponse{}, done), nil
}

// redriveOnce is a redrive under an idempotency key.
func (s *Queues) redriveOnce(
	ctx context.Context, by tenant.Caller, key idempotency.Request, name string, redrive store.RedriveRequest,
) (*queuev1.RedriveDeadLettersResponse, error) {
	var step store.Redriven
	resp := &queuev1.RedriveDeadLettersResponse{}
	return resp, s.inSteps(ctx, key, resp, steps{
		choose: func(c *store.Control) ([]store.DeadLetterID, error) {
			return c.ChooseDeadLetters(ctx, by.Tenant, name, redrive)
		},
		some: func(c *store.Control, ids []store.DeadLetterID) (rest []store.DeadLetterID, err error) {
			if step, rest, err = c.RedriveSome(ctx, by, name, redrive, ids); err == nil {
				addRedriven(resp, step)
			}
			return rest, err
		},
		done: func() {
			if len(step.Heads) > 0 {
				s.notify.Appended(by.Tenant, name, step.Heads)
			}
		},
	})
}

// steps is a call about dead letters that may take several transactions. choose and some run inside one and MAY run more than once; done runs after its
// commit.
type steps struct {
	choose func(*store.Control) ([]store.DeadLetterID, error)
	some   func(*store.Control, []store.DeadLetterID) (rest []store.DeadLetterID, err error)
	done   func()
}

// inSteps runs a call under an idempotency key: each of its transactions keeps what is done and what is left, so a repeat after a failure goes on from
// there, with the dead letters that were chosen at first. Before choose or some runs, resp is what is to be answered of what was done before.
func (s *Queues) inSteps(ctx context.Context, key idempotency.Request, resp proto.Message, call steps) error {
	for {
		now, replayed, err := s.control.Step(ctx, key, func(c *store.Control, was store.Progress) (next store.Progress, err error) {
			if err := proto.Unmarshal(was.Answer, resp); err != nil {
				return next, err
			}
			if !was.Begun {
				if was.Rest, err = call.choose(c); err != nil {
					return next, err
				}
			}
			if next.Rest, err = call.some(c, was.Rest); err != nil {
				return next, err
			}
			next.Answer, err = proto.Marshal(resp)
			return next, err
		})
		if err != nil {
			return wireError(err)
		}
		if replayed {
			if err := proto.Unmarshal(now.Answer, resp); err != nil {
				return wireError(err)
			}
			return idempotency.MarkReplayed(ctx)
		}
		call.done()
		if len(now.Rest) == 0 {
			return nil
		}
	}
}

// addRedriven adds what a redrive did to its answer.
func addRedriven(resp *queuev1.RedriveDeadLettersResponse, done store.Redriven) *queuev1.RedriveDeadLettersResponse {
	resp.Redriven += int32(done.Redriven)
	resp.AlreadyRedriven += int32(done.Already)
	for _, id := range done.NotFound {
		resp.NotFound = append(resp.NotFound, uuid.UUID(id).String())
	}
	return resp
}

// redriveOf accepts ids, or a group with an optional limit, and not both.
func redriveOf(req *queuev1.RedriveDeadLettersRequest) (store.RedriveRequest, error) {
	out := store.RedriveRequest{Group: req.GetGroup(), Limit: int(req.GetLimit())}
	if err := firstOf(
		queue.CheckName("queue", req.GetQueue()),
		queue.CheckOptionalName("group", req.GetGroup()),
		between("ids", len(req.GetIds()), 0, maxClientIDs),
	); err != nil {
		return out, err
	}
	switch {
	case out.Group == "" && len(req.GetIds()) == 0:
		return out, invalid.New(invalid.NameEmpty, "ids", "or group must be given")
	case out.Group != "" && len(req.GetIds()) > 0:
		return out, invalid.New(invalid.OutOfRange, "group", "must not be given beside ids")
	case out.Group == "" && req.GetLimit() != 0:
		return out, invalid.New(invalid.OutOfRange, "limit", "goes with group only")
	case out.Group != "" && out.Limit == 0:
		out.Limit = defaultPage
	case out.Group != "":
		if err := between("limit", out.Limit, 1, maxPage); err != nil {
			return out, err
		}
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
