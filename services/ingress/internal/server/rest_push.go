package server

import (
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"postrider.dev/pkg/apierr"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/ingress/internal/domain"
	"postrider.dev/services/ingress/internal/domain/jsonscan"
	"postrider.dev/services/ingress/internal/server/wire"
)

// restPush appends the messages of a body. 201: all in the log; 202: all accepted, and on a host's disk for now; 207: some accepted; else the first
// item's error, with all results.
func (s *Server) restPush(w http.ResponseWriter, r *http.Request) {
	req, faults, err := s.readPush(w, r)
	if err != nil {
		apierr.WriteHTTP(w, r, err)
		return
	}
	ctx := withTraceparent(r.Context(), r.Header.Get(traceHeader))
	resp, err := s.verbs.push(ctx, req, faults, true)
	if err != nil {
		apierr.WriteHTTP(w, r, err)
		return
	}
	if resp.GetReplayed() {
		w.Header().Set(replayedHeader, "true")
	}
	switch refused := firstRefused(resp); {
	case refused == nil && isBuffered(resp):
		writeJSON(w, http.StatusAccepted, resp)
	case refused == nil:
		writeJSON(w, http.StatusCreated, resp)
	case allRefused(resp):
		writeRefusal(w, itemError(refused), resp)
	default:
		writeJSON(w, http.StatusMultiStatus, resp)
	}
}

func (s *Server) readPush(w http.ResponseWriter, r *http.Request) (*queuev1.PushRequest, []*queuev1.ItemError, error) {
	body, free, err := s.body(w, r)
	if err != nil {
		return nil, nil, err
	}
	defer free() // from here the exchange counts it
	push, err := jsonscan.ParsePush(body, domain.MaxItems)
	if err != nil {
		return nil, nil, wireError(err)
	}
	key, err := requestKey(r, push.IdempotencyKey)
	if err != nil {
		return nil, nil, err
	}
	require, err := requirement(push.Require)
	if err != nil {
		return nil, nil, err
	}
	req := &queuev1.PushRequest{
		Queue: param(r, "queue"), IdempotencyKey: key, Resent: push.Resent, Origin: push.Origin, Require: require,
		Items: make([]*queuev1.PushItem, len(push.Items)),
	}
	faults := make([]*queuev1.ItemError, len(push.Items))
	items := make([]queuev1.PushItem, len(push.Items))
	for i := range push.Items {
		req.Items[i] = &items[i]
		faults[i] = fillItem(&items[i], &push.Items[i], i)
	}
	return req, faults, nil
}

// requirement reads the enum as wire.Decode does.
func requirement(text string) (queuev1.PushRequire, error) {
	if text == "" {
		return queuev1.PushRequire_PUSH_REQUIRE_UNSPECIFIED, nil
	}
	v := wire.EnumValue(queuev1.PushRequire(0).Descriptor(), text)
	if v == nil {
		return 0, apierr.InvalidArgument(domain.CodeEnum, "require", "has a value that is not known")
	}
	return queuev1.PushRequire(v.Number()), nil
}

// requestKey returns the key that covers the request: of the header or of the body.
func requestKey(r *http.Request, inBody string) (string, error) {
	given := r.Header.Values("Idempotency-Key")
	switch {
	case len(given) == 0:
		return inBody, nil
	case len(given) > 1 || inBody != "" && inBody != given[0]:
		return "", apierr.InvalidArgument(domain.CodeConflict, "idempotency_key", "two different idempotency keys for one request")
	case given[0] == "":
		return "", apierr.InvalidArgument(domain.CodeNameEmpty, "idempotency_key", "the Idempotency-Key header is empty")
	}
	return given[0], nil
}

// fillItem translates an item, and returns what is wrong with it alone.
func fillItem(to *queuev1.PushItem, from *jsonscan.Item, i int) *queuev1.ItemError {
	to.Partition, to.ClientId, to.IdempotencyKey = from.Partition, from.ClientID, from.IdempotencyKey
	to.ContentType, to.Headers, to.Payload = from.ContentType, from.Headers, from.Payload
	to.Priority = from.Priority
	if from.DeliverAt != nil {
		to.DeliverAt = timestamppb.New(*from.DeliverAt)
	}
	if from.Delay != nil {
		to.Delay = durationpb.New(*from.Delay)
	}
	switch {
	case from.Err != nil:
		return &queuev1.ItemError{Code: from.Err.Code, Message: from.Err.Detail, Field: from.Err.Field}
	case from.JSON && from.ContentType == "":
		to.ContentType = domain.MediaJSON
	case from.JSON && !domain.IsJSON(from.ContentType):
		return &queuev1.ItemError{
			Code: domain.CodeMediaType, Field: itemField(i, "content_type"),
			Message: "payload is JSON; another content type goes with payload_base64",
		}
	case !from.JSON && domain.IsJSON(from.ContentType) && jsonscan.Valid(from.Payload) != nil:
		return &queuev1.ItemError{
			Code: domain.CodeNotJSON, Field: itemField(i, "payload_base64"), Message: "the content type says JSON, the payload is not",
		}
	}
	return nil
}

// isBuffered says that the messages have no place in the log yet. All of a request go the same way.
func isBuffered(resp *queuev1.PushResponse) bool {
	for _, r := range resp.GetResults() {
		if r.GetStatus() == queuev1.PushStatus_PUSH_STATUS_BUFFERED {
			return true
		}
	}
	return false
}

func firstRefused(resp *queuev1.PushResponse) *queuev1.ItemError {
	for _, r := range resp.GetResults() {
		if r.GetStatus() == queuev1.PushStatus_PUSH_STATUS_FAILED {
			return r.GetError()
		}
	}
	return nil
}

func allRefused(resp *queuev1.PushResponse) bool {
	for _, r := range resp.GetResults() {
		if r.GetStatus() != queuev1.PushStatus_PUSH_STATUS_FAILED {
			return false
		}
	}
	return true
}

// writeRefusal is apierr.WriteHTTP with the results beside the problem.
func writeRefusal(w http.ResponseWriter, e *apierr.Error, resp proto.Message) {
	problem, err := json.Marshal(e.Problem())
	if err != nil { // strings and numbers always marshal
		problem = []byte(`{}`)
	}
	body := append(problem[:len(problem)-1], ',')
	body = append(body, wire.Append(nil, resp)[1:]...)
	h := w.Header()
	h.Set("Content-Type", apierr.ContentType)
	h.Set("Cache-Control", "no-store")
	if e.RetryAfter > 0 {
		h.Set("Retry-After", strconv.FormatInt(int64((e.RetryAfter+time.Second-1)/time.Second), 10))
	}
	w.WriteHeader(e.HTTPStatus())
	_, _ = w.Write(body)
}
