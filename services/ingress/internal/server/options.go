package server

import (
	"google.golang.org/protobuf/reflect/protoreflect"

	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
)

// optionField returns the field of a queue option, nil if there is no such option.
func optionField(name string) protoreflect.FieldDescriptor {
	return (*queuev1.QueueOptions)(nil).ProtoReflect().Descriptor().Fields().ByName(protoreflect.Name(name))
}
