package server

import "net/http"

func (s *Server) openapi(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Cache-Control", "public, max-age=300")
	writeBytes(w, http.StatusOK, s.spec)
}

// docs is a page of its own: no script, no font and no style from elsewhere.
func (s *Server) docs(w http.ResponseWriter, _ *http.Request) {
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'")
	h.Set("Cache-Control", "public, max-age=300")
	_, _ = w.Write(s.page) // a client that left cannot be told
}
