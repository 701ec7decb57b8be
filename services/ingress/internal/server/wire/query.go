package wire

import (
	"net/url"
	"strconv"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	"postrider.dev/services/ingress/internal/domain/jsonscan"
)

// Query reads query parameters into m. Each may come once; one that m has no scalar field for is refused.
func (d Decoder) Query(values url.Values, m proto.Message) error {
	fields := m.ProtoReflect().Descriptor().Fields()
	for name, given := range values {
		fd := fields.ByName(protoreflect.Name(name))
		switch {
		case fd == nil || d.bound(name) || fd.IsList() || fd.IsMap():
			return jsonscan.Fail(jsonscan.CodeUnknownField, 0, name, "no such parameter")
		case len(given) != 1:
			return jsonscan.Fail(jsonscan.CodeDuplicate, 0, name, "the parameter comes twice")
		}
		v, err := parameter(fd, name, given[0])
		if err != nil {
			return err
		}
		m.ProtoReflect().Set(fd, v)
	}
	return nil
}

func parameter(fd protoreflect.FieldDescriptor, name, text string) (protoreflect.Value, error) {
	wrong := func(want string) (protoreflect.Value, error) {
		return protoreflect.Value{}, jsonscan.Fail(jsonscan.CodeWrongType, 0, name, "must be "+want)
	}
	switch fd.Kind() {
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(text), nil
	case protoreflect.BoolKind:
		v, err := strconv.ParseBool(text)
		if err != nil {
			return wrong("true or false")
		}
		return protoreflect.ValueOfBool(v), nil
	case protoreflect.Int32Kind:
		v, err := strconv.ParseInt(text, 10, 32)
		if err != nil {
			return wrong("a whole number of 32 bits")
		}
		return protoreflect.ValueOfInt32(int32(v)), nil
	case protoreflect.MessageKind:
		v, err := time.ParseDuration(text)
		if _, ok := dynamic(fd).(*durationpb.Duration); !ok || err != nil {
			return wrong("a duration")
		}
		return protoreflect.ValueOfMessage(durationpb.New(v).ProtoReflect()), nil
	default:
		return wrong("a value that can be a parameter")
	}
}

// dynamic returns a value to tell the type of a message field by.
func dynamic(fd protoreflect.FieldDescriptor) any {
	if fd.Message().FullName() == "google.protobuf.Duration" {
		return &durationpb.Duration{}
	}
	return nil
}
