package httpserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"postrider.dev/pkg/apierr"
	"postrider.dev/pkg/clock"
)

// Reasons this package gives.
const (
	ReasonBodyTruncated = "BODY_TRUNCATED" // the body ended before its announced length
	ReasonBodyTimeout   = "BODY_TIMEOUT"   // the body came too slowly
)

// maxPrealloc bounds what is allocated on the word of a Content-Length header.
const maxPrealloc = 1 << 20

// ReadBody returns the whole body of r. It refuses more than limit bytes with 413, a body that ends early with 400, and one that takes longer
// than 30 s; its errors are ready for apierr.WriteHTTP.
func ReadBody(w http.ResponseWriter, r *http.Request, limit int64) ([]byte, error) {
	return readBody(w, r, limit, bodyTimeout)
}

// readBody ends the connection of a body that failed: its read deadline stays passed, so that the server, which would read the rest before it uses the
// connection again, does not wait for a client that sends a byte a second.
func readBody(w http.ResponseWriter, r *http.Request, limit int64, patience time.Duration) (got []byte, err error) {
	if r.Body == nil || r.Body == http.NoBody {
		return nil, nil
	}
	if r.ContentLength > limit {
		return nil, tooLarge(limit)
	}
	rc := http.NewResponseController(w)
	if rc.SetReadDeadline(clock.Real{}.Now().Add(patience)) == nil { // sockets know real time alone; test recorders have no deadline
		defer func() {
			if err == nil {
				_ = rc.SetReadDeadline(time.Time{})
			}
		}()
	}
	buf := make([]byte, 0, min(max(r.ContentLength, 511)+1, maxPrealloc))
	body := http.MaxBytesReader(w, r.Body, limit)
	for {
		n, err := body.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		switch {
		case errors.Is(err, io.EOF):
			return buf, nil
		case err != nil:
			w.Header().Set("Connection", "close")
			return nil, bodyError(err)
		}
		if len(buf) == cap(buf) {
			buf = append(buf, 0)[:len(buf)]
		}
	}
}

func bodyError(err error) error {
	if e, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return tooLarge(e.Limit)
	}
	if e, ok := errors.AsType[net.Error](err); ok && e.Timeout() {
		return apierr.InvalidArgument(ReasonBodyTimeout, "", "the body came too slowly").WithCause(err)
	}
	if errors.Is(err, context.Canceled) {
		return apierr.Canceled("the request was cancelled").WithCause(err)
	}
	return apierr.InvalidArgument(ReasonBodyTruncated, "", "the body ended before its length").WithCause(err)
}

func tooLarge(limit int64) *apierr.Error {
	return apierr.PayloadTooLarge("", fmt.Sprintf("the body is larger than %d bytes", limit)).With("max_bytes", limit)
}
