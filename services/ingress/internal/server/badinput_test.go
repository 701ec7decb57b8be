package server_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	adminv1 "postrider.dev/proto/gen/postrider/admin/v1"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/ingress/internal/domain"
)

// badCase is one way to break one rule.
type badCase struct {
	name  string
	rule  domain.Rule
	set   func(m protoreflect.Message, fd protoreflect.FieldDescriptor)
	code  string
	rest  string // what stands in JSON instead, where the value cannot be said by protojson
	http  int
	grpc1 bool // can only be said over gRPC
}

func text(v string) func(protoreflect.Message, protoreflect.FieldDescriptor) {
	return func(m protoreflect.Message, fd protoreflect.FieldDescriptor) {
		if fd.IsList() {
			m.Mutable(fd).List().Append(protoreflect.ValueOfString(v))
			return
		}
		m.Set(fd, protoreflect.ValueOfString(v))
	}
}

// breakages makes every way to break a rule.
func breakages(r domain.Rule) []badCase {
	var out []badCase
	add := func(name, code string, set func(protoreflect.Message, protoreflect.FieldDescriptor)) *badCase {
		out = append(out, badCase{name: r.Name() + "/" + name, rule: r, set: set, code: code, http: http.StatusBadRequest})
		return &out[len(out)-1]
	}
	unset := func(m protoreflect.Message, fd protoreflect.FieldDescriptor) { m.Clear(fd) }
	switch r.Check {
	case domain.Name:
		if r.Required {
			add("empty", domain.CodeNameEmpty, unset)
		}
		add("too_long", domain.CodeNameTooLong, text(strings.Repeat("x", int(r.Max)+1)))
		add("nul", domain.CodeNameNUL, text("a\x00b"))
	case domain.Text:
		add("too_long", domain.CodeTextTooLong, text(strings.Repeat("x", int(r.Max)+1)))
		add("nul", domain.CodeTextInvalid, text("a\x00b"))
	case domain.Token:
		if r.Required {
			add("empty", domain.CodeMissing, unset)
		}
		add("too_long", domain.CodeTextTooLong, text(strings.Repeat("x", int(r.Max)+1)))
		add("not_ascii", domain.CodeToken, text("é"))
		add("control", domain.CodeToken, text("a\tb"))
	case domain.Start:
		add("word", domain.CodeStart, text("yesterday"))
		add("too_long", domain.CodeTextTooLong, text(strings.Repeat("x", int(r.Max)+1)))
	case domain.MediaType:
		add("no_type", domain.CodeMediaType, text("json"))
		add("too_long", domain.CodeTextTooLong, text("a/"+strings.Repeat("x", int(r.Max))))
	case domain.TenantID:
		if r.Required {
			add("empty", domain.CodeMissing, unset)
		}
		add("upper_case", domain.CodeTenant, text("Acme"))
		add("too_long", domain.CodeTenant, text(strings.Repeat("a", 64)))
	case domain.Count:
		number := func(n int64) func(protoreflect.Message, protoreflect.FieldDescriptor) {
			return func(m protoreflect.Message, fd protoreflect.FieldDescriptor) {
				m.Set(fd, protoreflect.ValueOfInt32(int32(n)))
			} //nolint:gosec // G115: small
		}
		add("below", domain.CodeOutOfRange, number(r.Min-1))
		add("above", domain.CodeOutOfRange, number(r.Max+1))
		add("absurd", domain.CodeOutOfRange, number(-1<<31))
	case domain.Span:
		span := func(d time.Duration) func(protoreflect.Message, protoreflect.FieldDescriptor) {
			return func(m protoreflect.Message, fd protoreflect.FieldDescriptor) {
				m.Set(fd, protoreflect.ValueOfMessage(durationpb.New(d).ProtoReflect()))
			}
		}
		add("below", domain.CodeOutOfRange, span(time.Duration(r.Min)-1))
		add("above", domain.CodeOutOfRange, span(time.Duration(r.Max)+1))
		add("absurd", domain.CodeOutOfRange, span(-1<<62))
	case domain.Instant:
		add("no_time", domain.CodeTime, func(m protoreflect.Message, fd protoreflect.FieldDescriptor) {
			m.Set(fd, protoreflect.ValueOfMessage((&timestamppb.Timestamp{Seconds: 1 << 60}).ProtoReflect()))
		}).rest = `"tomorrow"`
	case domain.Enum:
		if r.Required {
			add("empty", domain.CodeMissing, unset)
		}
		add("unknown", domain.CodeEnum, func(m protoreflect.Message, fd protoreflect.FieldDescriptor) {
			m.Set(fd, protoreflect.ValueOfEnum(99))
		}).rest = `"NOPE"`
	case domain.List:
		if r.Min > 0 {
			add("empty", domain.CodeMissing, unset)
		}
		add("too_many", domain.CodeTooMany, func(m protoreflect.Message, fd protoreflect.FieldDescriptor) {
			list := m.Mutable(fd).List()
			for list.Len() <= int(r.Max) {
				if fd.Kind() == protoreflect.StringKind {
					list.Append(protoreflect.ValueOfString("x"))
					continue
				}
				list.Append(list.NewElement())
			}
		})
	case domain.Headers:
		pairs := func(n int, key, value string) func(protoreflect.Message, protoreflect.FieldDescriptor) {
			return func(m protoreflect.Message, fd protoreflect.FieldDescriptor) {
				for i := range n {
					m.Mutable(fd).Map().Set(protoreflect.ValueOfString(key+strings.Repeat("x", i)).MapKey(), protoreflect.ValueOfString(value))
				}
			}
		}
		add("too_many", domain.CodeHeaderCount, pairs(int(r.Max)+1, "h", "v"))
		add("too_large", domain.CodeHeaderBytes, pairs(1, "h", strings.Repeat("x", domain.HeaderBytes)))
		add("empty_name", domain.CodeNameEmpty, pairs(1, "", "v"))
		add("nul", domain.CodeTextInvalid, pairs(1, "h", "\x00"))
	case domain.Payload:
		add("too_large", domain.CodeTooLarge, func(m protoreflect.Message, fd protoreflect.FieldDescriptor) {
			m.Set(fd, protoreflect.ValueOfBytes(make([]byte, r.Max+1)))
		}).http = http.StatusRequestEntityTooLarge
	case domain.Nested:
		if r.Required {
			add("empty", domain.CodeMissing, unset)
		}
	case domain.Free:
	}
	return out
}

// root is how a message is reached: a good request, and where in it the message is.
type root struct {
	rpc  string // Service/Method
	good func() proto.Message
	at   func(m proto.Message) protoreflect.Message
	path string // of the message in the request
}

func self(m proto.Message) protoreflect.Message { return m.ProtoReflect() }

func roots() map[string]root {
	queue := func(method string, good func() proto.Message) root {
		return root{rpc: "postrider.queue.v1.QueueService/" + method, good: good, at: self}
	}
	admin := func(method string, good func() proto.Message) root {
		return root{rpc: "postrider.admin.v1.AdminService/" + method, good: good, at: self}
	}
	push := func() proto.Message {
		return &queuev1.PushRequest{Queue: "q", Items: []*queuev1.PushItem{{Payload: []byte("x")}}}
	}
	pop := func() proto.Message {
		return &queuev1.PopRequest{Queue: "q", GroupOptions: &queuev1.GroupOptions{}}
	}
	ack := func() proto.Message {
		return &queuev1.AckRequest{Queue: "q", Lease: "l", Settlements: []*queuev1.Settlement{{MessageId: "m", Action: queuev1.AckAction_ACK_ACTION_NACK}}}
	}
	configure := func() proto.Message {
		return &queuev1.ConfigureQueueRequest{Queue: "q", Options: &queuev1.QueueOptions{}}
	}
	out := map[string]root{
		"PushRequest":               queue("Push", push),
		"PopRequest":                queue("Pop", pop),
		"AckRequest":                queue("Ack", ack),
		"RenewRequest":              queue("Renew", func() proto.Message { return &queuev1.RenewRequest{Queue: "q", Lease: "l"} }),
		"ReleaseRequest":            queue("Release", func() proto.Message { return &queuev1.ReleaseRequest{Queue: "q", Lease: "l"} }),
		"LookupMessageRequest":      queue("LookupMessage", func() proto.Message { return &queuev1.LookupMessageRequest{Queue: "q", ClientId: "c"} }),
		"ConfigureQueueRequest":     queue("ConfigureQueue", configure),
		"ListQueuesRequest":         queue("ListQueues", func() proto.Message { return &queuev1.ListQueuesRequest{} }),
		"GetQueueRequest":           queue("GetQueue", func() proto.Message { return &queuev1.GetQueueRequest{Queue: "q"} }),
		"DeleteQueueRequest":        queue("DeleteQueue", func() proto.Message { return &queuev1.DeleteQueueRequest{Queue: "q"} }),
		"ListPartitionsRequest":     queue("ListPartitions", func() proto.Message { return &queuev1.ListPartitionsRequest{Queue: "q"} }),
		"CreateGroupRequest":        queue("CreateGroup", func() proto.Message { return &queuev1.CreateGroupRequest{Queue: "q", Group: "g"} }),
		"DeleteGroupRequest":        queue("DeleteGroup", func() proto.Message { return &queuev1.DeleteGroupRequest{Queue: "q", Group: "g"} }),
		"ListDeadLettersRequest":    queue("ListDeadLetters", func() proto.Message { return &queuev1.ListDeadLettersRequest{Queue: "q"} }),
		"GetDeadLetterRequest":      queue("GetDeadLetter", func() proto.Message { return &queuev1.GetDeadLetterRequest{Queue: "q", Id: "d"} }),
		"RedriveDeadLettersRequest": queue("RedriveDeadLetters", func() proto.Message { return &queuev1.RedriveDeadLettersRequest{Queue: "q", Group: "g"} }),
		"CreateTenantRequest":       admin("CreateTenant", func() proto.Message { return &adminv1.CreateTenantRequest{Id: "t"} }),
		"CreateAPIKeyRequest":       admin("CreateAPIKey", func() proto.Message { return &adminv1.CreateAPIKeyRequest{Name: "n", Role: adminv1.Role_ROLE_READ} }),
		"ListAPIKeysRequest":        admin("ListAPIKeys", func() proto.Message { return &adminv1.ListAPIKeysRequest{} }),
		"RevokeAPIKeyRequest":       admin("RevokeAPIKey", func() proto.Message { return &adminv1.RevokeAPIKeyRequest{Id: "k1"} }),
	}
	inside := func(outer string, path string, at func(proto.Message) protoreflect.Message) root {
		r := out[outer]
		r.at, r.path = at, path
		return r
	}
	out["PushItem"] = inside("PushRequest", "items[0].", func(m proto.Message) protoreflect.Message {
		return m.(*queuev1.PushRequest).GetItems()[0].ProtoReflect() //nolint:forcetypeassert // made above
	})
	out["GroupOptions"] = inside("PopRequest", "group_options.", func(m proto.Message) protoreflect.Message {
		return m.(*queuev1.PopRequest).GetGroupOptions().ProtoReflect() //nolint:forcetypeassert // made above
	})
	out["Settlement"] = inside("AckRequest", "settlements[0].", func(m proto.Message) protoreflect.Message {
		return m.(*queuev1.AckRequest).GetSettlements()[0].ProtoReflect() //nolint:forcetypeassert // made above
	})
	out["QueueOptions"] = inside("ConfigureQueueRequest", "options.", func(m proto.Message) protoreflect.Message {
		return m.(*queuev1.ConfigureQueueRequest).GetOptions().ProtoReflect() //nolint:forcetypeassert // made above
	})
	return out
}

// bad builds the request of a case.
func (c badCase) bad(r root) (proto.Message, protoreflect.FieldDescriptor) {
	m := r.good()
	at := r.at(m)
	fd := at.Descriptor().Fields().ByName(protoreflect.Name(c.rule.Field))
	if c.rule.Message == "Settlement" && (c.rule.Field == "client_id" || c.rule.Field == "partition") {
		at.Clear(at.Descriptor().Fields().ByName("message_id"))
		text("c")(at, at.Descriptor().Fields().ByName("client_id"))
	}
	c.set(at, fd)
	return m, fd
}

func badCases() []badCase {
	var out []badCase
	for _, r := range domain.Rules() {
		if strings.HasPrefix(r.Message, "PushStreamRequest") {
			continue // over its stream only; see the tests of the stream
		}
		out = append(out, breakages(r)...)
	}
	return out
}

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
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) { //nolint:paralleltest // counts what the one exchange got
			r := roots()[c.rule.Message]
			m, _ := c.bad(r)
			before := s.exchange.forwarded()
			resp := newResponse(t, r.rpc)

			err := s.conn.Invoke(s.as(adminKey), "/"+r.rpc, m, resp)

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
	for _, c := range badCases() {
		r := roots()[c.rule.Message]
		policy := policyOf("/" + r.rpc)
		m, _ := c.bad(r)
		path, body, ok := asREST(t, policy, m, c)
		if !ok {
			continue // an empty path segment is no such route
		}
		tried++
		t.Run(c.name, func(t *testing.T) { //nolint:paralleltest // counts what the one exchange got
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
	for _, name := range []string{"queue", "group", "id"} {
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
		sep := "?"
		for name, v := range fields {
			text := strings.Trim(string(v), `"`)
			if v[0] == '"' {
				require.NoError(t, json.Unmarshal(v, &text))
			}
			path += sep + name + "=" + escape(text)
			sep = "&"
		}
		return path, "", true
	}
	out, err := json.Marshal(fields)
	require.NoError(t, err)
	return path, string(out), true
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
	case "Settlement":
		put("settlements", true)
	default:
		fields[c.rule.Field] = json.RawMessage(c.rest)
	}
	return fields
}
