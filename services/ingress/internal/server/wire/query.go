package wire

import (
	"net/url"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	"postrider.dev/services/ingress/internal/domain/jsonscan"
)

// Query reads query parameters into m. Each may come once, one of a list of texts several times; of a map of texts each entry is a parameter, headers[name]=value.
// One that m has no field for is refused.
func (d Decoder) Query(values url.Values, m proto.Message) error {
	fields := m.ProtoReflect().Descriptor().Fields()
	for name, given := range values {
		field, entry, isEntry := mapEntry(name)
		fd := fields.ByName(protoreflect.Name(field))
		switch {
		case fd == nil || d.bound(name) || fd.IsMap() != isEntry || (fd.IsList() || fd.IsMap()) && !ofText(fd):
			return jsonscan.Fail(jsonscan.CodeUnknownField, 0, name, "no such parameter")
		case fd.IsList():
			for _, text := range given {
				m.ProtoReflect().Mutable(fd).List().Append(protoreflect.ValueOfString(text))
			}
			continue
		case len(given) != 1:
			return jsonscan.Fail(jsonscan.CodeDuplicate, 0, name, "the parameter comes twice")
		}
		if fd.IsMap() {
			m.ProtoReflect().Mutable(fd).Map().Set(protoreflect.ValueOfString(entry).MapKey(), protoreflect.ValueOfString(given[0]))
			continue
		}
		v, err := parameter(fd, name, given[0])
		if err != nil {
			return err
		}
		m.ProtoReflect().Set(fd, v)
	}
	return nil
}

// mapEntry takes headers[name] apart.
func mapEntry(name string) (field, entry string, ok bool) {
	field, entry, ok = strings.Cut(name, "[")
	if !ok {
		return name, "", false
	}
	entry, ok = strings.CutSuffix(entry, "]")
	return field, entry, ok
}

// ofText says that the elements of a list, or the entries of a map, are texts.
func ofText(fd protoreflect.FieldDescriptor) bool {
	if fd.IsMap() {
		return fd.MapKey().Kind() == protoreflect.StringKind && fd.MapValue().Kind() == protoreflect.StringKind
	}
	return fd.Kind() == protoreflect.StringKind
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
