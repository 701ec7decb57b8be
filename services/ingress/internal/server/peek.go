package server

import (
	"context"
	"net/http"

	"google.golang.org/protobuf/proto"

	"postrider.dev/pkg/apierr"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/ingress/internal/engine/answers"
	"postrider.dev/services/ingress/internal/server/wire"
)

// peek asks for messages and takes room for its answer, until hold is released; see sendPop. While there is little room it asks for fewer bytes: the answer
// says where to go on.
func (v *verbs) peek(ctx context.Context, req *queuev1.PeekMessagesRequest, weigh func(*queuev1.PeekMessagesResponse) int64) (*queuev1.PeekMessagesResponse, *answers.Hold, error) {
	if broken := v.rules.check(req); broken != nil {
		return nil, nil, violation(broken)
	}
	req.MaxBytes = v.affordable(req.GetMaxBytes())
	resp, err := forward(ctx, v, req.GetQueue(), true, req, queuev1.QueueServiceClient.PeekMessages)
	if err != nil {
		return nil, nil, err
	}
	hold := v.answers.TryTake(weigh(resp))
	if hold == nil {
		v.answers.Dropped()
		return nil, nil, errUnread()
	}
	return resp, hold, nil
}

// PeekMessages implements the contract over gRPC.
func (s *queueService) PeekMessages(ctx context.Context, req *queuev1.PeekMessagesRequest) (*queuev1.PeekMessagesResponse, error) {
	resp, hold, err := s.verbs.peek(ctx, req, func(r *queuev1.PeekMessagesResponse) int64 { return 2 * int64(proto.Size(r)) })
	if err != nil {
		return nil, err
	}
	trackDelivery(ctx, hold, func() {}) // nothing was changed
	return resp, nil
}

// restPeek keeps nothing of the answer but its JSON while the client reads.
func (s *Server) restPeek(w http.ResponseWriter, r *http.Request) {
	req, err := readPeek(r)
	if err != nil {
		apierr.WriteHTTP(w, r, err)
		return
	}
	inJSON := func(resp *queuev1.PeekMessagesResponse) int64 {
		return int64(proto.Size(resp))*4/3 + 512*int64(len(resp.GetMessages())+1)
	}
	resp, hold, err := s.verbs.peek(r.Context(), req, func(resp *queuev1.PeekMessagesResponse) int64 { return int64(proto.Size(resp)) + inJSON(resp) })
	if err != nil {
		apierr.WriteHTTP(w, r, err)
		return
	}
	defer hold.Release()
	body := wire.Append(make([]byte, 0, inJSON(resp)), resp)
	resp.Messages = nil
	if hold.Counted() > 0 {
		hold.Resize(int64(cap(body)))
	}
	writeBytes(w, http.StatusOK, body)
}

func readPeek(r *http.Request) (*queuev1.PeekMessagesRequest, error) {
	if r.ContentLength != 0 {
		return nil, apierr.InvalidArgument("UNEXPECTED_BODY", "", "this request has no body")
	}
	req := &queuev1.PeekMessagesRequest{}
	if err := (wire.Decoder{Bound: []string{"queue"}}).Query(r.URL.Query(), req); err != nil {
		return nil, wireError(err)
	}
	req.Queue = param(r, "queue")
	return req, nil
}
