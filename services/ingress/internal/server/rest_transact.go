package server

import (
	"fmt"
	"net/http"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"postrider.dev/pkg/apierr"
	"postrider.dev/pkg/idempotency"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/ingress/internal/domain"
	"postrider.dev/services/ingress/internal/domain/jsonscan"
	"postrider.dev/services/ingress/internal/server/wire"
)

// restTransact does a transaction. A refusal says in its results what each operation has to do with it.
func (s *Server) restTransact(w http.ResponseWriter, r *http.Request) {
	body, free, err := s.body(w, r)
	if err != nil {
		apierr.WriteHTTP(w, r, err)
		return
	}
	defer free()
	req := &queuev1.TransactRequest{}
	if err := transactDecoder().Decode(body, req); err != nil {
		apierr.WriteHTTP(w, r, wireError(err))
		return
	}
	ctx, header, err := keyedCall(withTraceparent(r.Context(), r.Header.Get(traceHeader)), r.Header)
	if err != nil {
		apierr.WriteHTTP(w, r, err)
		return
	}
	resp, err := s.verbs.transact(ctx, req, true)
	if err != nil {
		writeTransactError(w, r, err)
		return
	}
	if idempotency.Replayed(header.Header()) {
		w.Header().Set(replayedHeader, "true")
	}
	writeJSON(w, http.StatusOK, resp)
}

func writeTransactError(w http.ResponseWriter, r *http.Request, err error) {
	e := apierr.From(err)
	for _, d := range e.Details() {
		if results, ok := d.(*queuev1.TransactResponse); ok {
			writeRefusal(w, e, results)
			return
		}
	}
	apierr.WriteHTTP(w, r, e)
}

// transactDecoder reads items as a push does: a payload is any JSON value, whose bytes are kept.
func transactDecoder() wire.Decoder {
	items := 0
	return wire.Decoder{Special: map[protoreflect.FullName]func(*jsonscan.Scanner, proto.Message) error{
		(*queuev1.PushItem)(nil).ProtoReflect().Descriptor().FullName(): func(s *jsonscan.Scanner, m proto.Message) error {
			at := s.Offset()
			if items++; items > domain.MaxItems {
				return jsonscan.Fail(jsonscan.CodeTooMany, at, "", fmt.Sprintf("more than %d items in one request", domain.MaxItems))
			}
			item, err := jsonscan.ReadItem(s)
			if err != nil {
				return err
			}
			to, _ := m.(*queuev1.PushItem)
			if fault := fillItem(to, &item, 0); fault != nil {
				return jsonscan.Fail(fault.GetCode(), at, withoutItem(fault.GetField()), fault.GetMessage())
			}
			return nil
		},
	}}
}
