// Package wire translates between JSON and protobuf messages as the REST surface speaks it: snake_case names, 64-bit numbers and durations as strings,
// enums by name. Unlike protojson it says precisely which field is wrong and where, and it passes JSON payloads through byte for byte.
package wire

import (
	"encoding/base64"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"postrider.dev/services/ingress/internal/domain/jsonscan"
)

// CodeEnum stands beside the codes of jsonscan.
const CodeEnum = "ENUM_UNKNOWN"

// Decoder reads bodies. The zero value reads any message.
type Decoder struct {
	// Bound are fields that come from the path and so must not be in the body.
	Bound []string
	// OnNull is told of each field that is null, which otherwise counts as absent. Its path is as in errors.
	OnNull func(path string)
	// Special reads messages of a type, by its full name, in a way of its own.
	Special map[protoreflect.FullName]func(s *jsonscan.Scanner, m proto.Message) error
	// Unknown makes the error for an unknown field; nil: UNKNOWN_FIELD.
	Unknown func(at int, path string) error
}

// Decode reads body into m. An empty body is an empty object. Errors are *jsonscan.Error.
func (d Decoder) Decode(body []byte, m proto.Message) error {
	if len(body) == 0 {
		return nil
	}
	s, err := jsonscan.New(body)
	if err != nil {
		return err
	}
	if err := d.message(s, m.ProtoReflect(), ""); err != nil {
		return err
	}
	return s.End()
}

func (d Decoder) message(s *jsonscan.Scanner, m protoreflect.Message, path string) error {
	fields := m.Descriptor().Fields()
	set := map[protoreflect.FieldNumber]bool{}
	return s.Fields(func(name string) error {
		at := s.Offset()
		fd := fields.ByName(protoreflect.Name(name))
		if fd == nil {
			fd = fields.ByJSONName(name)
		}
		full := join(path, name)
		if fd == nil || path == "" && d.bound(string(fd.Name())) {
			return d.unknown(at, full)
		}
		if set[fd.Number()] {
			return jsonscan.Fail(jsonscan.CodeDuplicate, at, name, "the field comes twice")
		}
		set[fd.Number()] = true
		if null, err := s.Null(); null || err != nil {
			if d.OnNull != nil {
				d.OnNull(full)
			}
			return err
		}
		return d.field(s, m, fd, name, full)
	})
}

func (d Decoder) bound(name string) bool {
	for _, b := range d.Bound {
		if b == name {
			return true
		}
	}
	return false
}

func (d Decoder) unknown(at int, path string) error {
	if d.Unknown != nil {
		if err := d.Unknown(at, path); err != nil {
			return err
		}
	}
	return jsonscan.Fail(jsonscan.CodeUnknownField, at, last(path), "no such field")
}

func (d Decoder) field(s *jsonscan.Scanner, m protoreflect.Message, fd protoreflect.FieldDescriptor, name, full string) error {
	switch {
	case fd.IsMap():
		entries := m.Mutable(fd).Map()
		return jsonscan.Under(name, s.Fields(func(key string) error {
			v, err := d.value(s, fd.MapValue(), entries.NewValue, key, full)
			if err == nil {
				entries.Set(protoreflect.ValueOfString(key).MapKey(), v)
			}
			return err
		}))
	case fd.IsList():
		list := m.Mutable(fd).List()
		return s.Elements(name, func(i int) error {
			v, err := d.value(s, fd, list.NewElement, name+"["+strconv.Itoa(i)+"]", full)
			if err == nil {
				list.Append(v)
			}
			return err
		})
	}
	v, err := d.value(s, fd, func() protoreflect.Value { return m.NewField(fd) }, name, full)
	if err == nil {
		m.Set(fd, v)
	}
	return err
}

func (d Decoder) value(s *jsonscan.Scanner, fd protoreflect.FieldDescriptor, fresh func() protoreflect.Value, name, full string) (protoreflect.Value, error) {
	var none protoreflect.Value
	switch fd.Kind() {
	case protoreflect.StringKind:
		v, err := s.Text(name)
		return protoreflect.ValueOfString(v), err
	case protoreflect.BoolKind:
		v, err := s.Bool(name)
		return protoreflect.ValueOfBool(v), err
	case protoreflect.Int32Kind:
		v, err := s.Int(name, 32)
		return protoreflect.ValueOfInt32(int32(v)), err
	case protoreflect.Int64Kind:
		v, err := s.Int(name, 64)
		return protoreflect.ValueOfInt64(v), err
	case protoreflect.EnumKind:
		v, err := enum(s, fd.Enum(), name)
		return protoreflect.ValueOfEnum(v), err
	case protoreflect.BytesKind:
		v, err := bytes(s, name)
		return protoreflect.ValueOfBytes(v), err
	case protoreflect.MessageKind:
		v := fresh()
		switch target := v.Message().Interface().(type) {
		case *durationpb.Duration:
			return v, duration(s, target, name)
		case *timestamppb.Timestamp:
			return v, timestamp(s, target, name)
		}
		if read := d.Special[fd.Message().FullName()]; read != nil {
			return v, jsonscan.Under(name, read(s, v.Message().Interface()))
		}
		return v, jsonscan.Under(name, d.message(s, v.Message(), full))
	default:
		return none, jsonscan.Fail(jsonscan.CodeUnknownField, s.Offset(), name, "cannot be given over REST")
	}
}

// enum accepts the contract's name, GROUP_MODE_SHARED, and its own part of it in lower case, shared.
func enum(s *jsonscan.Scanner, ed protoreflect.EnumDescriptor, name string) (protoreflect.EnumNumber, error) {
	s.Peek()
	at := s.Offset()
	text, err := s.Text(name)
	if err != nil {
		return 0, err
	}
	if v := EnumValue(ed, text); v != nil {
		return v.Number(), nil
	}
	return 0, jsonscan.Fail(CodeEnum, at, name, "has a value that is not known")
}

// EnumValue returns the value with that name, long or short, nil if there is none.
func EnumValue(ed protoreflect.EnumDescriptor, text string) protoreflect.EnumValueDescriptor {
	if v := ed.Values().ByName(protoreflect.Name(text)); v != nil {
		return v
	}
	if text == "" || text != strings.ToLower(text) {
		return nil
	}
	zero := string(ed.Values().Get(0).Name()) // GROUP_MODE_UNSPECIFIED
	prefix := strings.TrimSuffix(zero, "UNSPECIFIED")
	return ed.Values().ByName(protoreflect.Name(prefix + strings.ToUpper(text)))
}

func bytes(s *jsonscan.Scanner, name string) ([]byte, error) {
	s.Peek()
	at := s.Offset()
	text, err := s.Text(name)
	if err != nil {
		return nil, err
	}
	v, err := base64.StdEncoding.Strict().DecodeString(text)
	if err != nil {
		return nil, jsonscan.Fail(jsonscan.CodeInvalidBase64, at, name, "not base64 in the standard alphabet with padding")
	}
	return v, nil
}

func duration(s *jsonscan.Scanner, into *durationpb.Duration, name string) error {
	s.Peek()
	at := s.Offset()
	text, err := s.Text(name)
	if err != nil {
		return err
	}
	v, err := time.ParseDuration(text)
	if err != nil {
		return jsonscan.Fail(jsonscan.CodeDuration, at, name, `not a duration such as "30s" or "1.5s"`)
	}
	proto.Merge(into, durationpb.New(v))
	return nil
}

func timestamp(s *jsonscan.Scanner, into *timestamppb.Timestamp, name string) error {
	s.Peek()
	at := s.Offset()
	text, err := s.Text(name)
	if err != nil {
		return err
	}
	v, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return jsonscan.Fail(jsonscan.CodeTime, at, name, `not an RFC 3339 time such as "2030-01-02T15:04:05Z"`)
	}
	proto.Merge(into, timestamppb.New(v))
	return nil
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

func last(path string) string { return path[strings.LastIndexByte(path, '.')+1:] }
