package server

import (
	"bytes"
	"context"
	"net/http"
	"strings"

	"github.com/coder/websocket"

	"postrider.dev/pkg/apierr"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/ingress/internal/engine/tail"
	"postrider.dev/services/ingress/internal/server/wire"
)

// lastEventID is what a client of server-sent events sends when it connects again.
const lastEventID = "Last-Event-ID"

// restSubscribe answers with server-sent events, or with a WebSocket if that is asked for.
func (s *Server) restSubscribe(w http.ResponseWriter, r *http.Request) {
	req, err := readSubscribe(r)
	if err != nil {
		apierr.WriteHTTP(w, r, err)
		return
	}
	sub, err := s.verbs.subscribe(r.Context(), req)
	if err != nil {
		apierr.WriteHTTP(w, r, err)
		return
	}
	if strings.EqualFold(r.Header.Get("Upgrade"), "websocket") {
		s.overWebSocket(w, r, sub)
		return
	}
	s.overEvents(w, r, sub)
}

// readSubscribe reads the request from the query. Last-Event-ID, which a browser adds to an unchanged URL, goes before what the URL says.
func readSubscribe(r *http.Request) (*queuev1.SubscribeRequest, error) {
	if r.ContentLength != 0 {
		return nil, apierr.InvalidArgument("UNEXPECTED_BODY", "", "this request has no body")
	}
	req := &queuev1.SubscribeRequest{}
	if err := (wire.Decoder{Bound: []string{"queue"}}).Query(r.URL.Query(), req); err != nil {
		return nil, wireError(err)
	}
	req.Queue = param(r, "queue")
	if id := r.Header.Get(lastEventID); id != "" {
		req.From, req.Resume = "", id
	}
	return req, nil
}

// overEvents sends server-sent events.
func (s *Server) overEvents(w http.ResponseWriter, r *http.Request, sub *tail.Subscription) {
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-cache")
	h.Set("X-Accel-Buffering", "no") // a proxy that gathers would make it late
	w.WriteHeader(http.StatusOK)
	out := http.NewResponseController(w)
	write := func(text []byte) error {
		if _, err := w.Write(text); err != nil {
			return err
		}
		return out.Flush()
	}
	if write([]byte("retry: 1000\n")) != nil {
		sub.Close()
		return
	}
	err := s.verbs.pump(r.Context(), sub, func(b *tail.Batch) error { return write(b.Encoded(tail.ServerSent, appendEvents)) })
	if err != nil && r.Context().Err() == nil {
		panic(http.ErrAbortHandler) // the client sees no clean end
	}
}

// appendEvents writes events as an event stream has them. A heartbeat is a comment, whose id a client remembers all the same.
func appendEvents(events []*queuev1.SubscribeEvent) []byte {
	var b []byte
	for _, e := range events {
		b = append(append(append(b, "id: "...), e.GetResume()...), '\n')
		switch k := e.GetKind().(type) {
		case *queuev1.SubscribeEvent_Message:
			b = appendData(append(b, "event: message\n"...), wire.AppendLines(nil, k.Message))
		case *queuev1.SubscribeEvent_Gap:
			b = appendData(append(b, "event: gap\n"...), wire.Append(nil, k.Gap))
		case *queuev1.SubscribeEvent_Closed:
			b = appendData(append(b, "event: closed\n"...), wire.Append(nil, k.Closed))
		default:
			b = append(b, ": heartbeat\n"...)
		}
		b = append(b, '\n')
	}
	return b
}

// appendData writes a text that may have several lines.
func appendData(b, text []byte) []byte {
	for line := range bytes.SplitSeq(text, []byte{'\n'}) {
		b = append(append(append(b, "data: "...), line...), '\n')
	}
	return b
}

// overWebSocket sends each event as a text message of its own. What the client sends is not wanted and ends it.
func (s *Server) overWebSocket(w http.ResponseWriter, r *http.Request, sub *tail.Subscription) {
	conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{OriginPatterns: s.origins(), CompressionMode: websocket.CompressionDisabled})
	if err != nil { // it has answered
		sub.Close()
		return
	}
	ctx := conn.CloseRead(r.Context())
	var why queuev1.ClosedReason
	err = s.verbs.pump(ctx, sub, func(b *tail.Batch) error {
		for _, e := range b.Events {
			if err := s.writeEvent(ctx, conn, e); err != nil {
				return err
			}
			why = e.GetClosed().GetReason()
		}
		return nil
	})
	if err != nil {
		_ = conn.CloseNow() // the client is gone, or its connection is stuck
		return
	}
	_ = conn.Close(closeCode(why), "") // a client that does not answer is cut off
}

// writeEvent sends one event. A heartbeat is followed by a ping, so that a client that vanished is noticed.
func (s *Server) writeEvent(ctx context.Context, conn *websocket.Conn, e *queuev1.SubscribeEvent) error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.AnswerTimeout)
	defer cancel()
	if err := conn.Write(ctx, websocket.MessageText, wire.Append(nil, e)); err != nil || e.GetHeartbeat() == nil {
		return err
	}
	return conn.Ping(ctx)
}

// origins are the hosts whose pages may open a WebSocket, beside this one's own.
func (s *Server) origins() []string {
	var hosts []string
	for _, o := range s.cfg.CORSOrigins {
		_, host, _ := strings.Cut(o, "://")
		hosts = append(hosts, host)
	}
	return hosts
}

func closeCode(why queuev1.ClosedReason) websocket.StatusCode {
	switch why {
	case queuev1.ClosedReason_CLOSED_REASON_DRAINING:
		return websocket.StatusGoingAway
	case queuev1.ClosedReason_CLOSED_REASON_SLOW:
		return websocket.StatusTryAgainLater
	case queuev1.ClosedReason_CLOSED_REASON_ACCESS_LOST:
		return websocket.StatusPolicyViolation
	default:
		return websocket.StatusNormalClosure
	}
}
