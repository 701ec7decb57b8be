package server

import (
	"context"
	"fmt"
	"strings"

	"postrider.dev/pkg/apierr"
	dispatcherv1 "postrider.dev/proto/gen/postrider/private/dispatcher/v1"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/ingress/internal/domain"
	"postrider.dev/services/ingress/internal/domain/jsonscan"
)

// pushing is one push on its way: the items that are good travel, those that are not already have their result.
type pushing struct {
	op      *dispatcherv1.Operation // nil if no item is good
	results []*queuev1.PushResult   // of the request; nil where the dispatcher's answer goes
}

// preparePush judges a push. faults, where given, holds what is already known to be wrong with an item; a checked item's JSON was looked at when it was
// parsed. The request is changed: only good items stay in it, with their content types filled in.
func (v *verbs) preparePush(ctx context.Context, req *queuev1.PushRequest, faults []*queuev1.ItemError, checked bool) (*pushing, error) {
	op, err := v.operation(ctx)
	if err != nil {
		return nil, err
	}
	if broken := v.rules.check(req); broken != nil {
		return nil, violation(broken)
	}
	if broken := tooLarge(req); broken != nil {
		return nil, violation(broken)
	}
	p := &pushing{results: make([]*queuev1.PushResult, len(req.GetItems()))}
	traceparent := traceparentOf(ctx)
	good := make([]*queuev1.PushItem, 0, len(req.GetItems()))
	for i, it := range req.GetItems() {
		var fault *queuev1.ItemError
		if faults != nil {
			fault = faults[i]
		}
		if fault == nil {
			fault = v.judge(it, i, checked)
		}
		if fault != nil {
			p.results[i] = &queuev1.PushResult{Status: queuev1.PushStatus_PUSH_STATUS_FAILED, Error: fault}
			continue
		}
		carryTrace(it, traceparent)
		carryOrigin(it, req.GetOrigin())
		good = append(good, it)
	}
	if len(good) > 0 {
		op.Op = &dispatcherv1.Operation_Push{Push: &queuev1.PushRequest{
			Queue: req.GetQueue(), IdempotencyKey: req.GetIdempotencyKey(), Items: good, Resent: req.GetResent(), Require: req.GetRequire(),
		}}
		p.op = op
	}
	return p, nil
}

// carryOrigin keeps with a message who pushed it, for subscribers that do not want to hear of their own.
func carryOrigin(it *queuev1.PushItem, origin string) {
	if origin == "" {
		return
	}
	if it.Headers == nil {
		it.Headers = make(map[string]string, 1)
	}
	it.Headers[domain.OriginHeader] = origin
}

// tooLarge is the rule about a request as a whole. REST has it as the limit of its body; gRPC frames may be a little larger.
func tooLarge(req *queuev1.PushRequest) *domain.Violation {
	var size int64
	for _, it := range req.GetItems() {
		size += int64(len(it.GetPayload()))
	}
	if size <= domain.RequestBytes {
		return nil
	}
	return &domain.Violation{
		Rule: "PushRequest.bytes", Field: "items", Code: domain.CodeTooLarge, Size: size, Limit: domain.RequestBytes,
		Detail: fmt.Sprintf("the payloads have %d bytes together, at most %d are allowed", size, domain.RequestBytes),
	}
}

// judge returns what is wrong with an item, nil if it may travel; then its content type is set.
func (v *verbs) judge(it *queuev1.PushItem, i int, checked bool) *queuev1.ItemError {
	if it == nil {
		return itemFault(missing("PushRequest.item", itemField(i, "payload"), "an item is empty"))
	}
	if broken := v.rules.pushItem(it, i); broken != nil {
		return itemFault(broken)
	}
	if it.GetContentType() == "" {
		it.ContentType = domain.MediaBytes
	}
	if checked || !domain.IsJSON(it.GetContentType()) {
		return nil
	}
	if err := jsonscan.Valid(it.GetPayload()); err != nil {
		return &queuev1.ItemError{
			Code: domain.CodeNotJSON, Field: itemField(i, "payload"),
			Message: "the content type says JSON, the payload is not: " + err.Error(),
		}
	}
	return nil
}

// merge puts the dispatcher's results where they belong.
func (p *pushing) merge(resp *queuev1.PushResponse) (*queuev1.PushResponse, error) {
	given := resp.GetResults()
	for i, r := range p.results {
		if r != nil {
			continue
		}
		if len(given) == 0 {
			return nil, apierr.Internal(errShortAnswer)
		}
		p.results[i], given = given[0], given[1:]
		if e := p.results[i].GetError(); e.GetField() != "" {
			e.Field = itemField(i, withoutItem(e.GetField())) // the dispatcher counted the good items only
		}
	}
	return &queuev1.PushResponse{Results: p.results, Replayed: resp.GetReplayed()}, nil
}

// withoutItem returns the path of a field inside its item.
func withoutItem(field string) string {
	if _, rest, ok := strings.Cut(field, "]."); ok && strings.HasPrefix(field, "items[") {
		return rest
	}
	return field
}

// push appends messages and waits for the commit.
func (v *verbs) push(ctx context.Context, req *queuev1.PushRequest, faults []*queuev1.ItemError, checked bool) (*queuev1.PushResponse, error) {
	p, err := v.preparePush(ctx, req, faults, checked)
	if err != nil {
		return nil, err
	}
	if p.op == nil {
		return p.merge(nil)
	}
	ctx, cancel := context.WithTimeout(ctx, v.timeout)
	defer cancel()
	res, err := v.exchange.Do(ctx, p.op)
	return p.answer(res, err)
}

// answer turns the outcome of the exchange into the answer of the push.
func (p *pushing) answer(res *dispatcherv1.Result, err error) (*queuev1.PushResponse, error) {
	if err != nil {
		return nil, wireError(err)
	}
	if s := res.GetError(); s != nil {
		return nil, statusError(s)
	}
	return p.merge(res.GetPush())
}
