package server

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"postrider.dev/pkg/apierr"
	"postrider.dev/pkg/idempotency"
	adminv1 "postrider.dev/proto/gen/postrider/admin/v1"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/ingress/internal/domain"
	"postrider.dev/services/ingress/internal/server/wire"
)

// newGateway returns the gateway over a connection to our own gRPC server, so that every interceptor runs. Only routes that are mounted reach it.
func newGateway(ctx context.Context, conn *grpc.ClientConn) (*runtime.ServeMux, error) {
	mux := runtime.NewServeMux(
		runtime.WithMarshalerOption(runtime.MIMEWildcard, jsonMarshaler{}),
		// The names say less than they do: this mode does not split a path at %2F, and unescapes a segment wholly.
		runtime.WithUnescapingMode(runtime.UnescapingModeAllExceptReserved),
		runtime.WithDisableHTTPMethodOverride(), // a method that changes after the policy was applied would go around it
		runtime.WithDisablePathLengthFallback(),
		runtime.WithIncomingHeaderMatcher(incoming),
		runtime.WithOutgoingHeaderMatcher(func(name string) (string, bool) { return replayedHeader, name == idempotency.ReplayedMetadata }),
		runtime.WithMetadata(carried),
		runtime.WithErrorHandler(func(_ context.Context, _ *runtime.ServeMux, _ runtime.Marshaler, w http.ResponseWriter, r *http.Request, err error) {
			apierr.WriteHTTP(w, r, err)
		}),
	)
	if err := queuev1.RegisterQueueServiceHandler(ctx, mux, conn); err != nil {
		return nil, fmt.Errorf("gateway: %w", err)
	}
	if err := adminv1.RegisterAdminServiceHandler(ctx, mux, conn); err != nil {
		return nil, fmt.Errorf("gateway: %w", err)
	}
	return mux, nil
}

// incoming lets nothing through by itself: Authorization travels anyway, and what carried says.
func incoming(string) (string, bool) { return "", false }

// carried is the API key and, of what changes something, the idempotency key, which vet has checked.
func carried(_ context.Context, r *http.Request) metadata.MD {
	md := metadata.MD{}
	md.Append("x-api-key", r.Header.Values("X-Api-Key")...)
	if r.Method != http.MethodGet {
		md.Append(idempotency.Metadata, r.Header.Values(idempotency.Header)...)
	}
	return md
}

// viaGateway checks a request as the gateway would not, field by field, and hands it on.
func (s *Server) viaGateway(p domain.Policy) http.HandlerFunc {
	request := requestType(p.RPC)
	bound := pathParams(p.Pattern)
	return func(w http.ResponseWriter, r *http.Request) {
		body, free, err := s.body(w, r)
		if err == nil {
			defer free()
			err = s.vet(r, request.New().Interface(), body, bound)
		}
		if err != nil {
			apierr.WriteHTTP(w, r, err)
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		s.gateway.ServeHTTP(w, r)
	}
}

func (s *Server) vet(r *http.Request, m proto.Message, body []byte, bound []string) error {
	d := wire.Decoder{Bound: bound}
	if r.Method != http.MethodGet {
		if _, err := idempotency.Check(r.Header.Values(idempotency.Header)); err != nil {
			return err
		}
	}
	takesBody := r.Method == http.MethodPost || r.Method == http.MethodPut
	if !takesBody && len(body) > 0 {
		return apierr.InvalidArgument("UNEXPECTED_BODY", "", "this request has no body")
	}
	if err := d.Decode(body, m); err != nil {
		return wireError(err)
	}
	if err := d.Query(r.URL.Query(), m); err != nil {
		return wireError(err)
	}
	for _, name := range bound {
		fd := m.ProtoReflect().Descriptor().Fields().ByName(protoreflect.Name(name))
		m.ProtoReflect().Set(fd, protoreflect.ValueOfString(param(r, name)))
	}
	return violation(s.verbs.rules.check(m))
}

// requestType returns the request message of an RPC of the policy table; a test walks them all.
func requestType(rpc string) protoreflect.MessageType {
	service, method, _ := strings.Cut(strings.TrimPrefix(rpc, "/"), "/")
	d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(service + "." + method))
	if err != nil {
		return nil
	}
	md, ok := d.(protoreflect.MethodDescriptor)
	if !ok {
		return nil
	}
	t, err := protoregistry.GlobalTypes.FindMessageByName(md.Input().FullName())
	if err != nil {
		return nil
	}
	return t
}

func pathParams(pattern string) []string {
	var out []string
	for segment := range strings.SplitSeq(pattern, "/") {
		if name, ok := strings.CutPrefix(segment, "{"); ok {
			out = append(out, strings.TrimSuffix(name, "}"))
		}
	}
	return out
}

// jsonMarshaler makes the gateway speak our JSON.
type jsonMarshaler struct{}

func (jsonMarshaler) ContentType(any) string { return domain.MediaJSON }

func (jsonMarshaler) Marshal(v any) ([]byte, error) {
	m, ok := v.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("marshal %T: not a message", v)
	}
	return wire.Append(nil, m), nil
}

func (jsonMarshaler) Unmarshal(data []byte, v any) error {
	m, ok := v.(proto.Message)
	if !ok {
		return fmt.Errorf("unmarshal %T: not a message", v)
	}
	return wire.Decoder{}.Decode(data, m)
}

func (j jsonMarshaler) NewDecoder(r io.Reader) runtime.Decoder {
	return runtime.DecoderFunc(func(v any) error {
		data, err := io.ReadAll(r)
		if err != nil {
			return err
		}
		return j.Unmarshal(data, v)
	})
}

func (j jsonMarshaler) NewEncoder(w io.Writer) runtime.Encoder {
	return runtime.EncoderFunc(func(v any) error {
		data, err := j.Marshal(v)
		if err != nil {
			return err
		}
		_, err = w.Write(data)
		return err
	})
}
