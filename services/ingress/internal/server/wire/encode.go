package wire

import (
	"encoding/base64"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"postrider.dev/services/ingress/internal/domain"
	"postrider.dev/services/ingress/internal/domain/jsonscan"
)

// Append appends m as JSON. Scalars and lists are written even when they are zero or empty, so that a reader finds every field; messages that are not set are
// left out. A payload is written as `payload`, its own bytes, if its content type is JSON, and as `payload_base64` otherwise.
func Append(b []byte, m proto.Message) []byte { return appendMessage(b, m.ProtoReflect()) }

// AppendLines is Append for where a carriage return cannot be carried: a payload of m itself that has one in its white space is written as payload_base64, so
// that its bytes come out unchanged.
func AppendLines(b []byte, m proto.Message) []byte { return appendFields(b, m.ProtoReflect(), true) }

func appendMessage(b []byte, m protoreflect.Message) []byte {
	switch v := m.Interface().(type) {
	case *timestamppb.Timestamp:
		b = append(b, '"')
		b = v.AsTime().AppendFormat(b, time.RFC3339Nano)
		return append(b, '"')
	case *durationpb.Duration:
		return AppendString(b, durationText(v))
	}
	return appendFields(b, m, false)
}

func appendFields(b []byte, m protoreflect.Message, lines bool) []byte {
	fields := m.Descriptor().Fields()
	b = append(b, '{')
	first := true
	for i := range fields.Len() {
		fd := fields.Get(i)
		if fd.HasPresence() && !m.Has(fd) || leftOut(m, fd) {
			continue
		}
		if !first {
			b = append(b, ',')
		}
		first = false
		if fd.Kind() == protoreflect.BytesKind && fd.Name() == "payload" {
			b = appendPayload(b, m, fd, lines)
			continue
		}
		b = appendName(b, string(fd.Name()))
		b = appendField(b, fd, m.Get(fd))
	}
	return append(b, '}')
}

// leftOut says that a field would tell nothing: the payload of what is listed, which has the payload's size instead, and the offset of a message that waits
// for its time.
func leftOut(m protoreflect.Message, fd protoreflect.FieldDescriptor) bool {
	if fd.Name() == "offset" {
		due := m.Descriptor().Fields().ByName("available_at")
		return due != nil && m.Has(due)
	}
	size := m.Descriptor().Fields().ByName("payload_bytes")
	return fd.Name() == "payload" && size != nil && len(m.Get(fd).Bytes()) == 0 && m.Get(size).Int() > 0
}

func appendName(b []byte, name string) []byte {
	b = append(b, '"')
	b = append(b, name...)
	return append(b, '"', ':')
}

func appendPayload(b []byte, m protoreflect.Message, fd protoreflect.FieldDescriptor, lines bool) []byte {
	payload := m.Get(fd).Bytes()
	contentType := ""
	if ct := m.Descriptor().Fields().ByName("content_type"); ct != nil {
		contentType = m.Get(ct).String()
	}
	// What is stored was checked when it was pushed. It is looked at again because a body that is not JSON would spoil the whole answer.
	if domain.IsJSON(contentType) && jsonscan.Valid(payload) == nil && (!lines || !slices.Contains(payload, '\r')) {
		return append(appendName(b, "payload"), payload...)
	}
	b = append(appendName(b, "payload_base64"), '"')
	b = base64.StdEncoding.AppendEncode(b, payload)
	return append(b, '"')
}

func appendField(b []byte, fd protoreflect.FieldDescriptor, v protoreflect.Value) []byte {
	switch {
	case fd.IsMap():
		return appendMap(b, fd, v.Map())
	case fd.IsList():
		list := v.List()
		b = append(b, '[')
		for i := range list.Len() {
			if i > 0 {
				b = append(b, ',')
			}
			b = appendValue(b, fd, list.Get(i))
		}
		return append(b, ']')
	}
	return appendValue(b, fd, v)
}

func appendMap(b []byte, fd protoreflect.FieldDescriptor, m protoreflect.Map) []byte {
	keys := make([]string, 0, m.Len())
	m.Range(func(k protoreflect.MapKey, _ protoreflect.Value) bool {
		keys = append(keys, k.String())
		return true
	})
	slices.Sort(keys)
	b = append(b, '{')
	for i, k := range keys {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(AppendString(b, k), ':')
		b = appendValue(b, fd.MapValue(), m.Get(protoreflect.ValueOfString(k).MapKey()))
	}
	return append(b, '}')
}

func appendValue(b []byte, fd protoreflect.FieldDescriptor, v protoreflect.Value) []byte {
	switch fd.Kind() {
	case protoreflect.BoolKind:
		return strconv.AppendBool(b, v.Bool())
	case protoreflect.Int32Kind:
		return strconv.AppendInt(b, v.Int(), 10)
	case protoreflect.Int64Kind:
		b = append(b, '"')
		b = strconv.AppendInt(b, v.Int(), 10)
		return append(b, '"')
	case protoreflect.Uint64Kind:
		b = append(b, '"')
		b = strconv.AppendUint(b, v.Uint(), 10)
		return append(b, '"')
	case protoreflect.DoubleKind:
		return strconv.AppendFloat(b, v.Float(), 'g', -1, 64)
	case protoreflect.EnumKind:
		if ev := fd.Enum().Values().ByNumber(v.Enum()); ev != nil {
			return AppendString(b, string(ev.Name()))
		}
		return strconv.AppendInt(b, int64(v.Enum()), 10)
	case protoreflect.BytesKind:
		b = append(b, '"')
		b = base64.StdEncoding.AppendEncode(b, v.Bytes())
		return append(b, '"')
	case protoreflect.MessageKind:
		return appendMessage(b, v.Message())
	default:
		return AppendString(b, v.String())
	}
}

// durationText writes a duration as protojson does: seconds with 0, 3, 6 or 9 decimals.
func durationText(d *durationpb.Duration) string {
	v := d.AsDuration()
	sign := ""
	if v < 0 {
		sign, v = "-", -v
	}
	text := sign + strconv.FormatInt(int64(v/time.Second), 10)
	frac := int64(v % time.Second)
	if frac == 0 {
		return text + "s"
	}
	digits := strconv.FormatInt(frac+int64(time.Second), 10)[1:]
	for strings.HasSuffix(digits, "000") {
		digits = digits[:len(digits)-3]
	}
	return text + "." + digits + "s"
}

const hexDigits = "0123456789abcdef"

// AppendString appends s as a JSON string. Bytes that are not UTF-8 become U+FFFD.
func AppendString(b []byte, s string) []byte {
	b = append(b, '"')
	start := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= utf8.RuneSelf {
			r, n := utf8.DecodeRuneInString(s[i:])
			if r == utf8.RuneError && n == 1 {
				b = append(append(b, s[start:i]...), `\ufffd`...)
				start = i + 1
			}
			i += n
			continue
		}
		if c >= 0x20 && c != '"' && c != '\\' {
			i++
			continue
		}
		b = append(b, s[start:i]...)
		if c == '"' || c == '\\' {
			b = append(b, '\\', c)
		} else {
			b = append(b, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
		}
		i++
		start = i
	}
	return append(append(b, s[start:]...), '"')
}
