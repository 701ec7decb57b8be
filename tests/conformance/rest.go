package conformance

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
)

// overREST is the surface over REST.
type overREST struct {
	base string
	key  string
	http *http.Client
}

func queue(name string) string { return "/v1/queues/" + url.PathEscape(name) }

// Answer is a raw answer of the REST surface.
type Answer struct {
	Status int
	Header http.Header
	Body   []byte
}

// do sends one request with the client's key.
func (c overREST) do(ctx context.Context, method, path string, header http.Header, body []byte) (*Answer, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if len(body) > 0 {
		req.Header.Set("Content-Type", "application/json")
	}
	if c.key != "" {
		req.Header.Set("Authorization", "Bearer "+c.key)
	}
	for name, values := range header {
		req.Header[name] = values
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close() //nolint:errcheck // read to its end
	answer, err := io.ReadAll(resp.Body)
	return &Answer{Status: resp.StatusCode, Header: resp.Header, Body: answer}, err
}

// problem returns the error of an answer, nil for a success.
func (a *Answer) problem() error {
	if a.Status < 400 {
		return nil
	}
	var p struct {
		Code   string `json:"code"`
		Field  string `json:"field"`
		Detail string `json:"detail"`
		Status int    `json:"status"`
	}
	if err := json.Unmarshal(a.Body, &p); err != nil {
		return fmt.Errorf("status %d without a problem: %q", a.Status, a.Body)
	}
	if ct := a.Header.Get("Content-Type"); ct != "application/problem+json" || p.Status != a.Status {
		return fmt.Errorf("status %d with content type %s and body %q", a.Status, ct, a.Body)
	}
	return &Error{Code: p.Code, Field: p.Field, Detail: p.Detail, HTTP: a.Status}
}

// call sends req as the route has it: fields of bound are in the path, the others in the body, or in the query for methods without one.
func (c overREST) call(ctx context.Context, method, path string, req, resp proto.Message, bound ...string) error {
	rest := proto.Clone(req)
	for _, name := range bound {
		rest.ProtoReflect().Clear(rest.ProtoReflect().Descriptor().Fields().ByName(protoreflect.Name(name)))
	}
	var body []byte
	if method == http.MethodPost || method == http.MethodPatch || method == http.MethodPut {
		var err error
		if body, err = (protojson.MarshalOptions{UseProtoNames: true}).Marshal(rest); err != nil {
			return err
		}
	} else if q := query(rest); q != "" {
		path += "?" + q
	}
	answer, err := c.do(ctx, method, path, nil, body)
	if err != nil {
		return err
	}
	if err := answer.problem(); err != nil {
		return err
	}
	return decode(answer.Body, resp)
}

func query(m proto.Message) string {
	values := url.Values{}
	m.ProtoReflect().Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		values.Set(string(fd.Name()), v.String())
		return true
	})
	return values.Encode()
}

// decode reads an answer whose payloads are written as payload or payload_base64.
func decode(body []byte, resp proto.Message) error {
	var tree any
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber()
	if err := d.Decode(&tree); err != nil {
		return fmt.Errorf("answer %q: %w", body, err)
	}
	raw := map[string]json.RawMessage{}
	if err := json.Unmarshal(body, &raw); err != nil {
		return err
	}
	text, err := payloads(raw)
	if err != nil {
		return err
	}
	return protojson.Unmarshal(text, resp)
}

// payloads rewrites each payload, at any depth of objects, into base64 of its bytes, as protojson wants it.
func payloads(object map[string]json.RawMessage) ([]byte, error) {
	if value, ok := object["payload"]; ok {
		object["payload"] = json.RawMessage(strconv.Quote(base64.StdEncoding.EncodeToString(value)))
	}
	if value, ok := object["payload_base64"]; ok {
		object["payload"] = value
		delete(object, "payload_base64")
	}
	for name, value := range object {
		switch trimmed := strings.TrimSpace(string(value)); {
		case strings.HasPrefix(trimmed, "{"):
			var inner map[string]json.RawMessage
			if err := json.Unmarshal(value, &inner); err != nil {
				return nil, err
			}
			text, err := payloads(inner)
			if err != nil {
				return nil, err
			}
			object[name] = text
		case strings.HasPrefix(trimmed, "[{"):
			var inner []map[string]json.RawMessage
			if err := json.Unmarshal(value, &inner); err != nil {
				return nil, err
			}
			list := make([]json.RawMessage, len(inner))
			for i := range inner {
				text, err := payloads(inner[i])
				if err != nil {
					return nil, err
				}
				list[i] = text
			}
			text, err := raw(list)
			if err != nil {
				return nil, err
			}
			object[name] = text
		}
	}
	return raw(object)
}

// raw is json.Marshal without its compacting of raw messages mattering: payloads are base64 by then.
func raw(v any) ([]byte, error) { return json.Marshal(v) }

// pushBody writes a push as REST has it.
func pushBody(req *queuev1.PushRequest) []byte {
	b := []byte(`{`)
	if req.GetOrigin() != "" {
		b = append(appendJSON(append(b, `"origin":`...), req.GetOrigin()), ',')
	}
	if req.GetRequire() != queuev1.PushRequire_PUSH_REQUIRE_UNSPECIFIED {
		b = append(appendJSON(append(b, `"require":`...), req.GetRequire().String()), ',')
	}
	b = append(b, `"items":[`...)
	for i, it := range req.GetItems() {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, '{')
		if it.GetContentType() == "application/json" {
			b = append(append(b, `"payload":`...), it.GetPayload()...)
		} else {
			b = append(b, `"payload_base64":`...)
			b = appendJSON(b, base64.StdEncoding.EncodeToString(it.GetPayload()))
		}
		for name, value := range map[string]string{
			"partition": it.GetPartition(), "content_type": it.GetContentType(), "client_id": it.GetClientId(), "idempotency_key": it.GetIdempotencyKey(),
		} {
			if value != "" {
				b = append(b, `,"`+name+`":`...)
				b = appendJSON(b, value)
			}
		}
		if it.GetDeliverAt() != nil {
			b = append(b, `,"deliver_at":`...)
			b = appendJSON(b, it.GetDeliverAt().AsTime())
		}
		if it.GetDelay() != nil {
			b = append(b, `,"delay":`...)
			b = appendJSON(b, it.GetDelay().AsDuration().String())
		}
		if it.GetPriority() != 0 {
			b = strconv.AppendInt(append(b, `,"priority":`...), int64(it.GetPriority()), 10)
		}
		if len(it.GetHeaders()) > 0 {
			b = append(b, `,"headers":`...)
			b = appendJSON(b, it.GetHeaders())
		}
		b = append(b, '}')
	}
	b = append(b, ']')
	if req.GetIdempotencyKey() != "" {
		b = append(b, `,"idempotency_key":`...)
		b = appendJSON(b, req.GetIdempotencyKey())
	}
	return append(b, '}')
}

func appendJSON(b []byte, v any) []byte {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err) // strings, times and maps of strings always marshal
	}
	return append(b, text...)
}

// Push appends messages. Where REST answers an error because no item was accepted, the results that come with it are returned, as gRPC does.
func (c overREST) Push(ctx context.Context, req *queuev1.PushRequest) (*queuev1.PushResponse, error) {
	answer, err := c.do(ctx, http.MethodPost, queue(req.GetQueue())+"/messages", nil, pushBody(req))
	if err != nil {
		return nil, err
	}
	resp := &queuev1.PushResponse{}
	if err := answer.problem(); err != nil {
		var with struct {
			Results json.RawMessage `json:"results"`
		}
		if json.Unmarshal(answer.Body, &with) != nil || with.Results == nil {
			return nil, err
		}
		return resp, protojson.Unmarshal(fmt.Appendf(nil, `{"results":%s}`, with.Results), resp)
	}
	return resp, protojson.Unmarshal(answer.Body, resp)
}

// Pop leases messages; 204 is an empty answer.
func (c overREST) Pop(ctx context.Context, req *queuev1.PopRequest) (*queuev1.PopResponse, error) {
	sent := proto.CloneOf(req)
	sent.Queue = ""
	body, err := (protojson.MarshalOptions{UseProtoNames: true}).Marshal(sent)
	if err != nil {
		return nil, err
	}
	answer, err := c.do(ctx, http.MethodPost, queue(req.GetQueue())+"/pop", nil, body)
	if err != nil {
		return nil, err
	}
	resp := &queuev1.PopResponse{}
	if answer.Status == http.StatusNoContent {
		resp.Draining = answer.Header.Get("Postrider-Draining") == "true"
		return resp, nil
	}
	if err := answer.problem(); err != nil {
		return nil, err
	}
	return resp, decode(answer.Body, resp)
}
