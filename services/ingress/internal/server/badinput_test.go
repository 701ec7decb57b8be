package server_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	adminv1 "postrider.dev/proto/gen/postrider/admin/v1"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/ingress/internal/domain"
)

func TestEveryFieldOfEveryRequestHasARule(t *testing.T) {
	t.Parallel()
	rules := map[string]bool{}
	for _, r := range domain.Rules() {
		require.False(t, rules[r.Name()], "%s has two rules", r.Name())
		rules[r.Name()] = true
	}
	var walk func(md protoreflect.MessageDescriptor)
	seen := map[protoreflect.FullName]bool{}
	walk = func(md protoreflect.MessageDescriptor) {
		if seen[md.FullName()] || !strings.HasPrefix(string(md.FullName()), "postrider.") {
			return
		}
		seen[md.FullName()] = true
		name := strings.TrimPrefix(string(md.FullName()), string(md.ParentFile().Package())+".")
		for i := range md.Fields().Len() {
			fd := md.Fields().Get(i)
			require.True(t, rules[name+"."+string(fd.Name())], "%s.%s has no rule", name, fd.Name())
			delete(rules, name+"."+string(fd.Name()))
			if fd.Message() != nil && !fd.IsMap() {
				walk(fd.Message())
			}
		}
	}
	for _, file := range []protoreflect.FileDescriptor{queuev1.File_postrider_queue_v1_queue_service_proto, adminv1.File_postrider_admin_v1_admin_service_proto} {
		for i := range file.Services().Len() {
			methods := file.Services().Get(i).Methods()
			for j := range methods.Len() {
				walk(methods.Get(j).Input())
			}
		}
	}
	require.Empty(t, rules, "rules of fields that do not exist")
}

func TestEveryBrokenRuleIsRefusedOverGRPCBeforeAnythingIsForwarded(t *testing.T) {
	t.Parallel()
	s := start(t)
	cases := badCases()
	require.GreaterOrEqual(t, len(cases), 60)
	for _, c := range cases { //nolint:paralleltest // each counts what the one exchange got
		t.Run(c.name, func(t *testing.T) {
			r := roots()[c.rule.Message]
			m := c.bad(r)
			before := s.exchange.forwarded()
			resp := newResponse(t, r.rpc)

			err := s.invoke(r.rpc, m, resp)

			require.Equal(t, before, s.exchange.forwarded(), "it was forwarded")
			if push, ok := resp.(*queuev1.PushResponse); ok && c.rule.Message == "PushItem" {
				require.NoError(t, err)
				require.Equal(t, c.code, push.GetResults()[0].GetError().GetCode())
				require.True(t, strings.HasPrefix(push.GetResults()[0].GetError().GetField(), "items[0]."+c.rule.Field))
				return
			}
			require.Equal(t, codes.InvalidArgument, status.Code(err), "%v", err)
			code, field := reason(err)
			require.Equal(t, c.code, code, "%v", err)
			require.True(t, strings.HasPrefix(field, r.path+c.rule.Field), "%s is not %s", field, r.path+c.rule.Field)
		})
	}
}

// invoke calls a method; of a stream it takes the first answer.
func (s *surface) invoke(rpc string, req, resp proto.Message) error {
	if !strings.HasSuffix(rpc, "/Subscribe") {
		return s.conn.Invoke(s.as(adminKey), "/"+rpc, req, resp)
	}
	ctx, cancel := context.WithCancel(s.as(adminKey))
	defer cancel()
	stream, err := s.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, "/"+rpc)
	if err != nil {
		return err
	}
	if err := errors.Join(stream.SendMsg(req), stream.CloseSend()); err != nil {
		return err
	}
	return stream.RecvMsg(resp)
}

func reason(err error) (code, field string) {
	for _, d := range status.Convert(err).Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			code = d.GetReason()
		case *errdetails.BadRequest:
			field = d.GetFieldViolations()[0].GetField()
		}
	}
	return code, field
}

func TestEveryBrokenRuleIsRefusedOverRESTBeforeAnythingIsForwarded(t *testing.T) {
	t.Parallel()
	s := start(t)
	tried := 0
	for _, c := range badCases() { //nolint:paralleltest // each counts what the one exchange got
		r := roots()[c.rule.Message]
		policy := policyOf("/" + r.rpc)
		m := c.bad(r)
		path, body, ok := asREST(t, policy, m, c)
		if !ok {
			continue // an empty path segment is no such route
		}
		tried++
		t.Run(c.name, func(t *testing.T) {
			before := s.exchange.forwarded()

			got := s.request(policy.Method, path, body)

			require.Equal(t, before, s.exchange.forwarded(), "it was forwarded")
			require.Equal(t, c.http, got.status, "%.300s", got.body)
			var problem struct{ Code, Field string }
			require.NoError(t, json.Unmarshal([]byte(got.body), &problem), "%.300s", got.body)
			require.Equal(t, c.code, problem.Code, "%.300s", got.body)
			require.True(t, strings.HasPrefix(problem.Field, r.path+c.rule.Field), "%s is not %s", problem.Field, r.path+c.rule.Field)
		})
	}
	require.GreaterOrEqual(t, tried, 60)
}

func policyOf(rpc string) domain.Policy {
	for _, p := range domain.Policies() {
		if p.RPC == rpc {
			return p
		}
	}
	return domain.Policy{}
}

// asREST writes a request as its route has it; false if its path would have an empty segment.
func asREST(t *testing.T, p domain.Policy, m proto.Message, c badCase) (path, body string, ok bool) {
	t.Helper()
	fields := map[string]json.RawMessage{}
	raw, err := (protojson.MarshalOptions{UseProtoNames: true, AllowPartial: true}).Marshal(m)
	if err != nil { // a timestamp that does not exist
		raw = []byte(`{}`)
		if n, ok := m.(*adminv1.CreateAPIKeyRequest); ok {
			raw = fmt.Appendf(nil, `{"name":%q,"role":"read"}`, n.GetName())
		}
		if p, ok := m.(*queuev1.PushRequest); ok {
			raw = fmt.Appendf(nil, `{"queue":%q}`, p.GetQueue())
		}
	}
	require.NoError(t, json.Unmarshal(raw, &fields))
	if c.rest != "" {
		fields = edit(t, fields, c)
	}
	if strings.HasSuffix(p.RPC, "/Push") {
		var items []map[string]json.RawMessage
		require.NoError(t, json.Unmarshal(orElse(fields["items"], `[]`), &items))
		for _, it := range items {
			it["payload_base64"] = orElse(it["payload"], `""`)
			delete(it, "payload")
		}
		fields["items"], err = json.Marshal(items)
		require.NoError(t, err)
	}
	path = p.Pattern
	for _, name := range []string{"queue", "group", "id", "mode"} {
		if !strings.Contains(path, "{"+name+"}") {
			continue
		}
		var value string
		require.NoError(t, json.Unmarshal(orElse(fields[name], `""`), &value))
		if value == "" {
			return "", "", false
		}
		path = strings.Replace(path, "{"+name+"}", escape(value), 1)
		delete(fields, name)
	}
	if p.Method == http.MethodGet || p.Method == http.MethodDelete {
		var query strings.Builder
		sep := "?"
		for name, v := range fields {
			if v[0] == '[' || v[0] == '{' {
				query.WriteString(inQuery(t, name, v, &sep))
				continue
			}
			text := strings.Trim(string(v), `"`)
			if v[0] == '"' {
				require.NoError(t, json.Unmarshal(v, &text))
			}
			query.WriteString(sep + name + "=" + escape(text))
			sep = "&"
		}
		return path + query.String(), "", true
	}
	out, err := json.Marshal(fields)
	require.NoError(t, err)
	return path, string(out), true
}

// inQuery writes a list or a map of texts as parameters.
func inQuery(t *testing.T, name string, v json.RawMessage, sep *string) string {
	t.Helper()
	var query strings.Builder
	add := func(name, value string) {
		query.WriteString(*sep + escape(name) + "=" + escape(value))
		*sep = "&"
	}
	if v[0] == '[' {
		var list []string
		require.NoError(t, json.Unmarshal(v, &list))
		for _, value := range list {
			add(name, value)
		}
		return query.String()
	}
	var entries map[string]string
	require.NoError(t, json.Unmarshal(v, &entries))
	for key, value := range entries {
		add(name+"["+key+"]", value)
	}
	return query.String()
}

func orElse(v json.RawMessage, other string) json.RawMessage {
	if v == nil {
		return json.RawMessage(other)
	}
	return v
}

// edit puts c.rest where the rule's field is.
func edit(t *testing.T, fields map[string]json.RawMessage, c badCase) map[string]json.RawMessage {
	t.Helper()
	put := func(outer string, list bool) {
		inner := map[string]json.RawMessage{c.rule.Field: json.RawMessage(c.rest)}
		if c.rule.Message == "Settlement" {
			inner["message_id"] = json.RawMessage(`"m"`)
		}
		text, err := json.Marshal(inner)
		require.NoError(t, err)
		if list {
			text = []byte("[" + string(text) + "]")
		}
		fields[outer] = text
	}
	switch c.rule.Message {
	case "GroupOptions":
		put("group_options", false)
	case "QueueOptions":
		put("options", false)
	case "Settlement":
		put("settlements", true)
	case "PushItem":
		put("items", true)
	default:
		fields[c.rule.Field] = json.RawMessage(c.rest)
	}
	return fields
}
