package server

import (
	"errors"
	"net/http"
	"os"
	"time"

	"postrider.dev/pkg/clock"
)

// patient bounds how long clients may take to read what is written to them, whatever the route: each write has its own deadline, so that waiting for
// messages costs nothing. After a missed deadline the write fails, and net/http closes the connection.
func (s *Server) patient(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p := &patientWriter{ResponseWriter: w, server: s, deadline: http.NewResponseController(w)}
		_ = p.deadline.SetWriteDeadline(time.Time{}) // the last one of the request before this one on the connection; recorders of tests have none
		next.ServeHTTP(p, r)
	})
}

type patientWriter struct {
	http.ResponseWriter

	server   *Server
	deadline *http.ResponseController
	late     bool
}

// Write writes b, and fails if the client does not read it in time. The deadline stays for what net/http still holds back.
func (w *patientWriter) Write(b []byte) (int, error) {
	_ = w.deadline.SetWriteDeadline(clock.Real{}.Now().Add(w.server.patience(len(b)))) // sockets know real time alone
	n, err := w.ResponseWriter.Write(b)
	if errors.Is(err, os.ErrDeadlineExceeded) && !w.late {
		w.late = true
		w.server.verbs.answers.CutOff()
	}
	return n, err //nolint:wrapcheck // it is the writer's own
}

// Flush sends what is held back; http.Flusher is what the gateway asks for.
func (w *patientWriter) Flush() { _ = w.deadline.Flush() }

// FlushError is Flush for http.ResponseController.
func (w *patientWriter) FlushError() error { return w.deadline.Flush() }

// Unwrap lets http.ResponseController reach what is below.
func (w *patientWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
