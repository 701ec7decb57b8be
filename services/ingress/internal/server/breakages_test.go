package server_test

import (
	"net/http"
	"strings"
	"time"

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
	name string
	rule domain.Rule
	set  func(m protoreflect.Message, fd protoreflect.FieldDescriptor)
	code string
	rest string // what stands in JSON instead, where the value cannot be said by protojson
	http int
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
	b := &breaker{rule: r}
	b.texts()
	b.numbers()
	b.collections()
	if r.Check == domain.Nested && r.Required {
		b.add("empty", domain.CodeMissing, unset)
	}
	return b.out
}

// breaker collects the ways to break one rule.
type breaker struct {
	rule domain.Rule
	out  []badCase
}

type setter = func(protoreflect.Message, protoreflect.FieldDescriptor)

func (b *breaker) add(name, code string, set setter) *badCase {
	b.out = append(b.out, badCase{name: b.rule.Name() + "/" + name, rule: b.rule, set: set, code: code, http: http.StatusBadRequest})
	return &b.out[len(b.out)-1]
}

func unset(m protoreflect.Message, fd protoreflect.FieldDescriptor) { m.Clear(fd) }

func (b *breaker) texts() {
	r := b.rule
	switch r.Check {
	case domain.Name:
		if r.Required {
			b.add("empty", domain.CodeNameEmpty, unset)
		}
		b.add("too_long", domain.CodeNameTooLong, text(strings.Repeat("x", int(r.Max)+1)))
		b.add("nul", domain.CodeNameNUL, text("a\x00b"))
	case domain.Text:
		b.add("too_long", domain.CodeTextTooLong, text(strings.Repeat("x", int(r.Max)+1)))
		b.add("nul", domain.CodeTextInvalid, text("a\x00b"))
	case domain.Token:
		if r.Required {
			b.add("empty", domain.CodeMissing, unset)
		}
		b.add("too_long", domain.CodeTextTooLong, text(strings.Repeat("x", int(r.Max)+1)))
		b.add("not_ascii", domain.CodeToken, text("é"))
		b.add("control", domain.CodeToken, text("a\tb"))
	case domain.From:
		for name, bad := range map[string]string{"word": "yesterday", "negative": "-1", "empty_offset": "1,,2", "date": "2030-01-02"} {
			b.add(name, domain.CodeStart, text(bad))
		}
		b.add("too_long", domain.CodeTextTooLong, text(strings.Repeat("1", int(r.Max)+1)))
	case domain.Start:
		b.add("word", domain.CodeStart, text("yesterday"))
		b.add("too_long", domain.CodeTextTooLong, text(strings.Repeat("x", int(r.Max)+1)))
	case domain.Place:
		b.add("word", domain.CodeStart, text("yesterday"))
		b.add("negative", domain.CodeStart, text("-1"))
		b.add("beyond", domain.CodeStart, text("9223372036854775808"))
		b.add("too_long", domain.CodeTextTooLong, text(strings.Repeat("1", int(r.Max)+1)))
	case domain.MediaType:
		b.add("no_type", domain.CodeMediaType, text("json"))
		b.add("too_long", domain.CodeTextTooLong, text("a/"+strings.Repeat("x", int(r.Max))))
	case domain.TenantID:
		if r.Required {
			b.add("empty", domain.CodeMissing, unset)
		}
		b.add("upper_case", domain.CodeTenant, text("Acme"))
		b.add("too_long", domain.CodeTenant, text(strings.Repeat("a", 64)))
	case domain.ModeName:
		b.add("empty", domain.CodeMissing, unset)
		b.add("unknown", domain.CodeEnum, text("siesta"))
	case domain.Flag:
		b.add("not_said", domain.CodeMissing, unset)
	default:
	}
}

func (b *breaker) numbers() {
	r := b.rule
	switch r.Check {
	case domain.Count:
		number := func(n int64) func(protoreflect.Message, protoreflect.FieldDescriptor) {
			return func(m protoreflect.Message, fd protoreflect.FieldDescriptor) {
				if fd.Kind() == protoreflect.Int64Kind {
					m.Set(fd, protoreflect.ValueOfInt64(n))
					return
				}
				m.Set(fd, protoreflect.ValueOfInt32(int32(n)))
			}
		}
		b.add("below", domain.CodeOutOfRange, number(r.Min-1))
		b.add("above", domain.CodeOutOfRange, number(r.Max+1))
		b.add("absurd", domain.CodeOutOfRange, number(-1<<31))
	case domain.Span:
		span := func(d time.Duration) func(protoreflect.Message, protoreflect.FieldDescriptor) {
			return func(m protoreflect.Message, fd protoreflect.FieldDescriptor) {
				m.Set(fd, protoreflect.ValueOfMessage(durationpb.New(d).ProtoReflect()))
			}
		}
		b.add("below", domain.CodeOutOfRange, span(time.Duration(r.Min)-1))
		b.add("above", domain.CodeOutOfRange, span(time.Duration(r.Max)+1))
		b.add("absurd", domain.CodeOutOfRange, span(-1<<62))
	case domain.Instant:
		b.add("no_time", domain.CodeTime, func(m protoreflect.Message, fd protoreflect.FieldDescriptor) {
			m.Set(fd, protoreflect.ValueOfMessage((&timestamppb.Timestamp{Seconds: 1 << 60}).ProtoReflect()))
		}).rest = `"tomorrow"`
	case domain.Enum:
		if r.Required {
			b.add("empty", domain.CodeMissing, unset)
		}
		b.add("unknown", domain.CodeEnum, func(m protoreflect.Message, fd protoreflect.FieldDescriptor) {
			m.Set(fd, protoreflect.ValueOfEnum(99))
		}).rest = `"NOPE"`
	default:
	}
}

func (b *breaker) collections() {
	r := b.rule
	switch r.Check {
	case domain.List:
		if r.Min > 0 {
			b.add("empty", domain.CodeMissing, unset)
		}
		if r.Elements == domain.Name {
			b.add("empty_element", domain.CodeNameEmpty, text(""))
			b.add("long_element", domain.CodeNameTooLong, text(strings.Repeat("x", domain.NameBytes+1)))
			b.add("nul_element", domain.CodeNameNUL, text("a\x00b"))
		}
		b.add("too_many", domain.CodeTooMany, func(m protoreflect.Message, fd protoreflect.FieldDescriptor) {
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
		b.add("too_many", domain.CodeHeaderCount, pairs(int(r.Max)+1, "h", "v"))
		b.add("too_large", domain.CodeHeaderBytes, pairs(1, "h", strings.Repeat("x", domain.HeaderBytes)))
		b.add("empty_name", domain.CodeNameEmpty, pairs(1, "", "v"))
		b.add("nul", domain.CodeTextInvalid, pairs(1, "h", "\x00"))
	case domain.Payload:
		b.add("too_large", domain.CodeTooLarge, func(m protoreflect.Message, fd protoreflect.FieldDescriptor) {
			m.Set(fd, protoreflect.ValueOfBytes(make([]byte, r.Max+1)))
		}).http = http.StatusRequestEntityTooLarge
	default:
	}
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
		"PushRequest":    queue("Push", push),
		"PopRequest":     queue("Pop", pop),
		"AckRequest":     queue("Ack", ack),
		"RenewRequest":   queue("Renew", func() proto.Message { return &queuev1.RenewRequest{Queue: "q", Lease: "l"} }),
		"ReleaseRequest": queue("Release", func() proto.Message { return &queuev1.ReleaseRequest{Queue: "q", Lease: "l"} }),
		"TransactRequest": queue("Transact", func() proto.Message {
			return &queuev1.TransactRequest{Operations: []*queuev1.TransactOperation{{Push: push().(*queuev1.PushRequest)}}}
		}),
		"SubscribeRequest":          queue("Subscribe", func() proto.Message { return &queuev1.SubscribeRequest{Queue: "q"} }),
		"LookupMessageRequest":      queue("LookupMessage", func() proto.Message { return &queuev1.LookupMessageRequest{Queue: "q", ClientId: "c"} }),
		"DeleteMessageRequest":      queue("DeleteMessage", func() proto.Message { return &queuev1.DeleteMessageRequest{Queue: "q", ClientId: "c"} }),
		"PeekMessagesRequest":       queue("PeekMessages", func() proto.Message { return &queuev1.PeekMessagesRequest{Queue: "q"} }),
		"ConfigureQueueRequest":     queue("ConfigureQueue", configure),
		"ListQueuesRequest":         queue("ListQueues", func() proto.Message { return &queuev1.ListQueuesRequest{} }),
		"GetQueueRequest":           queue("GetQueue", func() proto.Message { return &queuev1.GetQueueRequest{Queue: "q"} }),
		"DeleteQueueRequest":        queue("DeleteQueue", func() proto.Message { return &queuev1.DeleteQueueRequest{Queue: "q"} }),
		"ListPartitionsRequest":     queue("ListPartitions", func() proto.Message { return &queuev1.ListPartitionsRequest{Queue: "q"} }),
		"CreateGroupRequest":        queue("CreateGroup", func() proto.Message { return &queuev1.CreateGroupRequest{Queue: "q", Group: "g"} }),
		"DeleteGroupRequest":        queue("DeleteGroup", func() proto.Message { return &queuev1.DeleteGroupRequest{Queue: "q", Group: "g"} }),
		"SeekGroupRequest":          queue("SeekGroup", func() proto.Message { return &queuev1.SeekGroupRequest{Queue: "q", Group: "g", To: "latest"} }),
		"ListDeadLettersRequest":    queue("ListDeadLetters", func() proto.Message { return &queuev1.ListDeadLettersRequest{Queue: "q"} }),
		"GetDeadLetterRequest":      queue("GetDeadLetter", func() proto.Message { return &queuev1.GetDeadLetterRequest{Queue: "q", Id: "d"} }),
		"RedriveDeadLettersRequest": queue("RedriveDeadLetters", func() proto.Message { return &queuev1.RedriveDeadLettersRequest{Queue: "q", Group: "g"} }),
		"PurgeDeadLettersRequest":   queue("PurgeDeadLetters", func() proto.Message { return &queuev1.PurgeDeadLettersRequest{Queue: "q", Group: "g"} }),
		"RotateQueueKeyRequest":     queue("RotateQueueKey", func() proto.Message { return &queuev1.RotateQueueKeyRequest{Queue: "q"} }),
		"CreateTenantRequest":       admin("CreateTenant", func() proto.Message { return &adminv1.CreateTenantRequest{Id: "t"} }),
		"SetModeRequest": admin("SetMode", func() proto.Message {
			return &adminv1.SetModeRequest{Mode: "pop_maintenance", Enabled: new(true)}
		}),
		"CreateAPIKeyRequest": admin("CreateAPIKey", func() proto.Message { return &adminv1.CreateAPIKeyRequest{Name: "n", Role: adminv1.Role_ROLE_READ} }),
		"ListAPIKeysRequest":  admin("ListAPIKeys", func() proto.Message { return &adminv1.ListAPIKeysRequest{} }),
		"RevokeAPIKeyRequest": admin("RevokeAPIKey", func() proto.Message { return &adminv1.RevokeAPIKeyRequest{Id: "k1"} }),
	}
	inside := func(outer, path string, at func(proto.Message) protoreflect.Message) root {
		r := out[outer]
		r.at, r.path = at, path
		return r
	}
	out["PushItem"] = inside("PushRequest", "items[0].", func(m proto.Message) protoreflect.Message {
		return m.(*queuev1.PushRequest).GetItems()[0].ProtoReflect()
	})
	out["GroupOptions"] = inside("PopRequest", "group_options.", func(m proto.Message) protoreflect.Message {
		return m.(*queuev1.PopRequest).GetGroupOptions().ProtoReflect()
	})
	out["Settlement"] = inside("AckRequest", "settlements[0].", func(m proto.Message) protoreflect.Message {
		return m.(*queuev1.AckRequest).GetSettlements()[0].ProtoReflect()
	})
	out["QueueOptions"] = inside("ConfigureQueueRequest", "options.", func(m proto.Message) protoreflect.Message {
		return m.(*queuev1.ConfigureQueueRequest).GetOptions().ProtoReflect()
	})
	return out
}

// bad builds the request of a case.
func (c badCase) bad(r root) proto.Message {
	m := r.good()
	at := r.at(m)
	fd := at.Descriptor().Fields().ByName(protoreflect.Name(c.rule.Field))
	if c.rule.Message == "Settlement" && (c.rule.Field == "client_id" || c.rule.Field == "partition") {
		at.Clear(at.Descriptor().Fields().ByName("message_id"))
		text("c")(at, at.Descriptor().Fields().ByName("client_id"))
	}
	c.set(at, fd)
	return m
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
