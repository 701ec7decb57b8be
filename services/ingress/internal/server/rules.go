package server

import (
	"fmt"
	"strconv"
	"sync"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/ingress/internal/domain"
)

// rules applies domain.Rules to messages of the contract, whichever way they came.
type rules struct {
	byMessage map[string][]domain.Rule
	item      itemRules
	bound     sync.Map // protoreflect.FullName -> []boundRule, filled at first use
}

// boundRule is a rule with the field it is about.
type boundRule struct {
	rule domain.Rule
	fd   protoreflect.FieldDescriptor
}

// of returns the rules of a message.
func (r *rules) of(d protoreflect.MessageDescriptor) []boundRule {
	if known, ok := r.bound.Load(d.FullName()); ok {
		return known.([]boundRule) //nolint:forcetypeassert // nothing else is stored
	}
	var out []boundRule
	for _, rule := range r.byMessage[messageName(d)] {
		out = append(out, boundRule{rule, d.Fields().ByName(protoreflect.Name(rule.Field))})
	}
	r.bound.Store(d.FullName(), out)
	return out
}

// itemRules are the rules of PushItem, looked up once: a push may hold a thousand.
type itemRules struct{ partition, payload, contentType, headers, clientID, key, deliverAt, delay, priority domain.Rule }

func newRules() *rules {
	r := &rules{byMessage: map[string][]domain.Rule{}}
	for _, rule := range domain.Rules() {
		r.byMessage[rule.Message] = append(r.byMessage[rule.Message], rule)
	}
	into := map[string]*domain.Rule{
		"partition": &r.item.partition, "payload": &r.item.payload, "content_type": &r.item.contentType,
		"headers": &r.item.headers, "client_id": &r.item.clientID, "idempotency_key": &r.item.key,
		"deliver_at": &r.item.deliverAt, "delay": &r.item.delay, "priority": &r.item.priority,
	}
	for _, rule := range r.byMessage["PushItem"] {
		*into[rule.Field] = rule
	}
	return r
}

// check returns the first violation in m, nil if there is none. The items of a push are left out: they are judged one by one.
func (r *rules) check(m proto.Message) *domain.Violation {
	if v := r.message(m.ProtoReflect(), ""); v != nil {
		return v
	}
	return across(m)
}

// messageName is the name without its package: PushStreamRequest.Entry.
func messageName(d protoreflect.MessageDescriptor) string {
	return string(d.FullName()[len(d.ParentFile().Package())+1:])
}

func (r *rules) message(m protoreflect.Message, path string) *domain.Violation {
	for _, b := range r.of(m.Descriptor()) {
		if v := r.field(m, b.fd, b.rule, path); v != nil {
			if v.Field == b.rule.Field { // else it is a nested one's, with its path
				v.Field = path + v.Field
			}
			return v
		}
	}
	return nil
}

func (r *rules) field(m protoreflect.Message, fd protoreflect.FieldDescriptor, rule domain.Rule, path string) *domain.Violation {
	switch rule.Check {
	case domain.Name, domain.Text, domain.Token, domain.MediaType, domain.Start, domain.From, domain.Place, domain.TenantID, domain.ModeName:
		return rule.String(m.Get(fd).String())
	case domain.Count:
		if fd.HasPresence() && !m.Has(fd) {
			return rule.Missing()
		}
		return rule.Number(m.Get(fd).Int())
	case domain.Enum:
		return enumRule(rule, fd, m.Get(fd).Enum())
	case domain.List:
		return r.list(m.Get(fd).List(), fd, rule, path)
	case domain.Headers:
		return rule.Pairs(stringMap(m.Get(fd).Map()))
	case domain.Payload:
		return rule.Bytes(len(m.Get(fd).Bytes()))
	case domain.Span, domain.Instant, domain.Nested:
		if !m.Has(fd) {
			return rule.Missing()
		}
		return r.nested(m.Get(fd).Message(), rule, path)
	case domain.Flag:
		if !m.Has(fd) {
			return rule.Missing()
		}
	case domain.Free:
	}
	return nil
}

func (r *rules) nested(m protoreflect.Message, rule domain.Rule, path string) *domain.Violation {
	switch v := m.Interface().(type) {
	case *durationpb.Duration:
		return rule.Duration(v.AsDuration(), v.IsValid())
	case *timestamppb.Timestamp:
		return rule.Time(v.IsValid())
	}
	return r.message(m, path+rule.Field+".")
}

func (r *rules) list(list protoreflect.List, fd protoreflect.FieldDescriptor, rule domain.Rule, path string) *domain.Violation {
	if v := rule.Len(list.Len()); v != nil {
		return v
	}
	if rule.Message == "PushRequest" {
		return nil
	}
	element := domain.Rule{Message: rule.Message, Field: rule.Field, Check: domain.Token, Required: true, Max: domain.TokenBytes}
	if rule.Elements == domain.Name {
		element.Check, element.Max = domain.Name, domain.NameBytes
	}
	for i := range list.Len() {
		at := path + rule.Field + "[" + strconv.Itoa(i) + "]"
		if fd.Kind() == protoreflect.MessageKind {
			if v := r.message(list.Get(i).Message(), at+"."); v != nil {
				return v
			}
			continue
		}
		if v := element.String(list.Get(i).String()); v != nil {
			v.Field = at
			return v
		}
	}
	return nil
}

func enumRule(rule domain.Rule, fd protoreflect.FieldDescriptor, n protoreflect.EnumNumber) *domain.Violation {
	if n == 0 {
		return rule.Missing()
	}
	return rule.Known(fd.Enum().Values().ByNumber(n) != nil)
}

func stringMap(m protoreflect.Map) map[string]string {
	out := make(map[string]string, m.Len())
	m.Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
		out[k.String()] = v.String()
		return true
	})
	return out
}

// pushItem returns the first violation of an item, with its path.
func (r *rules) pushItem(it *queuev1.PushItem, i int) *domain.Violation {
	v := r.item.partition.String(it.GetPartition())
	if v == nil {
		v = r.item.payload.Bytes(len(it.GetPayload()))
	}
	if v == nil {
		v = r.item.contentType.String(it.GetContentType())
	}
	if v == nil {
		v = r.item.headers.Pairs(it.GetHeaders())
	}
	if v == nil {
		v = r.item.clientID.String(it.GetClientId())
	}
	if v == nil {
		v = r.item.key.String(it.GetIdempotencyKey())
	}
	if v == nil {
		v = r.itemTime(it)
	}
	if v == nil {
		v = r.item.priority.Number(int64(it.GetPriority()))
	}
	if v != nil {
		v.Field = fmt.Sprintf("items[%d].%s", i, v.Field)
	}
	return v
}

// itemTime returns what is wrong with when an item is to be delivered.
func (r *rules) itemTime(it *queuev1.PushItem) *domain.Violation {
	at, delay := it.GetDeliverAt(), it.GetDelay()
	if at != nil && delay != nil {
		return conflict("PushItem.one_time", "delay", "deliver_at and delay exclude each other")
	}
	if at != nil {
		return r.item.deliverAt.Time(at.IsValid())
	}
	if delay != nil {
		return r.item.delay.Duration(delay.AsDuration(), delay.IsValid())
	}
	return nil
}
