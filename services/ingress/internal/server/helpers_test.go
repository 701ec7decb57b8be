package server_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// newResponse returns an empty response of an RPC, "package.Service/Method".
func newResponse(t *testing.T, rpc string) proto.Message {
	t.Helper()
	d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(strings.Replace(rpc, "/", ".", 1)))
	require.NoError(t, err)
	md, ok := d.(protoreflect.MethodDescriptor)
	require.True(t, ok)
	mt, err := protoregistry.GlobalTypes.FindMessageByName(md.Output().FullName())
	require.NoError(t, err)
	return mt.New().Interface()
}

// escape percent-encodes every byte that is not a letter or digit.
func escape(s string) string {
	var b strings.Builder
	for i := range len(s) {
		c := s[i]
		if c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c >= 'A' && c <= 'Z' {
			b.WriteByte(c)
			continue
		}
		fmt.Fprintf(&b, "%%%02X", c)
	}
	return b.String()
}
