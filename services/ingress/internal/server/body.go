package server

import (
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"

	"golang.org/x/sync/semaphore"
	"google.golang.org/protobuf/proto"

	"postrider.dev/pkg/apierr"
	"postrider.dev/pkg/httpserver"
	"postrider.dev/services/ingress/internal/domain"
	"postrider.dev/services/ingress/internal/engine"
	"postrider.dev/services/ingress/internal/server/wire"
)

// NoBodyLimit is what the HTTP server in front must be given as its own limit: the surface has one, and says more about what is too large.
const NoBodyLimit = 1 << 40

const (
	// bodiesAtOnce bounds the bytes of all bodies that are in memory, in units of the largest body.
	bodiesAtOnce = 8
	// freeBytes of each body count for nothing, as little as a connection costs anyway: however many large bodies come, or however slowly, pops, acks
	// and small pushes have room.
	freeBytes = 16 << 10
)

// body reads the JSON body of a request, within the limit. Its room is held until free is called, once nothing of the body is needed any more or
// somebody else counts it; without a body or with an error free need not be called. A body that finds no room is refused at once: bodies that waited
// with half of theirs in memory could wait for one another.
func (s *Server) body(w http.ResponseWriter, r *http.Request) (body []byte, free func(), err error) {
	if err := wantJSON(r); err != nil {
		return nil, nil, err
	}
	if r.Body == nil || r.Body == http.NoBody {
		return nil, func() {}, nil
	}
	if size := r.ContentLength; size > s.cfg.MaxBodyBytes {
		return nil, nil, apierr.PayloadTooLarge("", fmt.Sprintf("the body has %d bytes, at most %d are allowed", size, s.cfg.MaxBodyBytes)).
			With("size", size).With("limit", s.cfg.MaxBodyBytes)
	}
	held := &heldBody{ReadCloser: r.Body, room: s.bodies}
	r.Body = held
	body, err = httpserver.ReadBody(w, r, s.cfg.MaxBodyBytes)
	if err != nil {
		held.free()
		if held.refused {
			w.Header().Set("Connection", "close") // net/http would read some of the rest before it answers
			err = wireError(fmt.Errorf("%w: bodies", engine.ErrOverloaded))
		}
		return nil, nil, err
	}
	return body, held.free, nil
}

// heldBody is a body that takes room for the memory it is read into: what has come, and the rest of the buffer.
type heldBody struct {
	io.ReadCloser

	room    *semaphore.Weighted
	come    int64
	held    int64
	refused bool
}

func (b *heldBody) Read(p []byte) (int, error) {
	if more := b.come + int64(len(p)) - freeBytes - b.held; more > 0 {
		if !b.room.TryAcquire(more) {
			b.refused = true
			return 0, engine.ErrOverloaded
		}
		b.held += more
	}
	n, err := b.ReadCloser.Read(p)
	b.come += int64(n)
	return n, err
}

func (b *heldBody) free() {
	b.room.Release(b.held)
	b.held = 0
}

// wantJSON refuses a body of another content type. A request without a body needs none.
func wantJSON(r *http.Request) error {
	ct := r.Header.Get("Content-Type")
	if ct == "" && r.ContentLength == 0 {
		return nil
	}
	if enc := r.Header.Get("Content-Encoding"); enc != "" && !strings.EqualFold(enc, "identity") {
		return apierr.UnsupportedMediaType("the body must not be compressed")
	}
	if ct == "" {
		return apierr.UnsupportedMediaType("the body needs a content type: application/json")
	}
	media, params, err := mime.ParseMediaType(ct)
	charset := strings.ToLower(params["charset"])
	if err != nil || media != domain.MediaJSON || charset != "" && charset != "utf-8" {
		return apierr.UnsupportedMediaType("the body must be application/json in UTF-8")
	}
	return nil
}

// read decodes the body into m and sets its queue from the path.
func (s *Server) read(w http.ResponseWriter, r *http.Request, m proto.Message, d wire.Decoder) error {
	body, free, err := s.body(w, r)
	if err != nil {
		return err
	}
	defer free()
	d.Bound = append(d.Bound, "queue")
	return wireError(d.Decode(body, m))
}

// writeJSON answers with a message. A client that left cannot be told.
func writeJSON(w http.ResponseWriter, status int, m proto.Message) {
	writeBytes(w, status, wire.Append(make([]byte, 0, 512), m))
}

// writeBytes reports whether the answer was written: what a client leased that left can be given back.
func writeBytes(w http.ResponseWriter, status int, body []byte) bool {
	h := w.Header()
	h.Set("Content-Type", domain.MediaJSON)
	w.WriteHeader(status)
	_, err := w.Write(body)
	return err == nil
}
