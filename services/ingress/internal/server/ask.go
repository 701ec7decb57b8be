package server

import (
	"context"
	"net/http"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"postrider.dev/pkg/apierr"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/ingress/internal/engine/answers"
	"postrider.dev/services/ingress/internal/server/wire"
)

// Reads whose answers carry messages: one of them may be as large as the largest message, or as many headers as a page has dead letters. What nobody
// reads of them takes the room that answers of pops take, and no more.

// askFor is a request about a queue.
type askFor interface {
	proto.Message
	GetQueue() string
}

// rpcOf is a call of the dispatchers' control surface.
type rpcOf[Req, Resp any] func(queuev1.QueueServiceClient, context.Context, Req, ...grpc.CallOption) (Resp, error)

// ask forwards a read and takes room for its answer. Who gets it without an error MUST release hold when the answer has left.
func ask[Req askFor, Resp proto.Message](
	ctx context.Context, v *verbs, req Req, weight func(proto.Message) int64, call rpcOf[Req, Resp],
) (resp Resp, hold *answers.Hold, err error) {
	if broken := v.rules.check(req); broken != nil {
		return resp, nil, violation(broken)
	}
	if peek, ok := any(req).(*queuev1.PeekMessagesRequest); ok { // with little room it gets less: its answer says where to go on
		peek.MaxBytes = v.affordable(peek.GetMaxBytes())
	}
	resp, err = forward(ctx, v, req.GetQueue(), true, req, call)
	if err != nil {
		return resp, nil, err
	}
	if hold = v.answers.TryTake(weight(resp)); hold == nil {
		v.answers.Dropped()
		return resp, nil, errUnread()
	}
	return resp, hold, nil
}

// asked answers a read over gRPC.
func asked[Req askFor, Resp proto.Message](ctx context.Context, v *verbs, req Req, call rpcOf[Req, Resp]) (none Resp, err error) {
	resp, hold, err := ask(ctx, v, req, weightInProto, call)
	if err != nil {
		return none, err
	}
	trackDelivery(ctx, hold, func() {}) // nothing was changed
	return resp, nil
}

// reads are the handlers of such reads over REST, by route.
func (s *Server) reads() map[string]http.HandlerFunc {
	const queue = "/v1/queues/{queue}"
	return map[string]http.HandlerFunc{
		"GET " + queue + "/peek":              restAsk(s, queue+"/peek", queuev1.QueueServiceClient.PeekMessages),
		"GET " + queue + "/messages/lookup":   restAsk(s, queue+"/messages/lookup", queuev1.QueueServiceClient.LookupMessage),
		"GET " + queue + "/dead-letters":      restAsk(s, queue+"/dead-letters", queuev1.QueueServiceClient.ListDeadLetters),
		"GET " + queue + "/dead-letters/{id}": restAsk(s, queue+"/dead-letters/{id}", queuev1.QueueServiceClient.GetDeadLetter),
	}
}

// restAsk answers a read over REST, and keeps nothing of the answer but its JSON while the client reads.
func restAsk[Req askFor, Resp proto.Message](s *Server, pattern string, call rpcOf[Req, Resp]) http.HandlerFunc {
	bound := pathParams(pattern)
	return func(w http.ResponseWriter, r *http.Request) {
		var typed Req
		req, _ := typed.ProtoReflect().New().Interface().(Req)
		err := s.vetRead(w, r, req, bound)
		if err != nil {
			apierr.WriteHTTP(w, r, err)
			return
		}
		resp, hold, err := ask(r.Context(), s.verbs, req, weightInJSON, call)
		if err != nil {
			apierr.WriteHTTP(w, r, err)
			return
		}
		defer hold.Release()
		writeHeld(w, resp, hold)
	}
}

// vetRead reads a request that has no body.
func (s *Server) vetRead(w http.ResponseWriter, r *http.Request, req proto.Message, bound []string) error {
	body, free, err := s.body(w, r)
	if err != nil {
		return err
	}
	defer free()
	return s.vet(r, req, body, bound)
}

// writeHeld writes an answer as JSON, and reports whether it could. The JSON alone has room from then on: resp is emptied.
func writeHeld(w http.ResponseWriter, resp proto.Message, hold *answers.Hold) bool {
	body := wire.Append(make([]byte, 0, inJSON(resp)), resp)
	proto.Reset(resp)
	if hold.Counted() > 0 {
		hold.Resize(int64(cap(body)))
	}
	return writeBytes(w, http.StatusOK, body)
}

// weightInProto: the answer, and itself once more as it goes out.
func weightInProto(m proto.Message) int64 { return 2 * int64(proto.Size(m)) }

// weightInJSON: the answer and its JSON.
func weightInJSON(m proto.Message) int64 { return int64(proto.Size(m)) + inJSON(m) }

// inJSON is about what an answer takes as JSON: payloads in base64, and names of fields for each of what it lists.
func inJSON(m proto.Message) int64 {
	listed := 0
	switch m := m.(type) {
	case *queuev1.PopResponse:
		listed = len(m.GetDeliveries())
	case *queuev1.PeekMessagesResponse:
		listed = len(m.GetMessages())
	case *queuev1.ListDeadLettersResponse:
		listed = len(m.GetDeadLetters())
	}
	return int64(proto.Size(m))*4/3 + 512*int64(listed+1)
}
