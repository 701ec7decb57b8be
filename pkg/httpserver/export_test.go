package httpserver

import (
	"net/http"
	"time"
)

// ReadBodyWithin is ReadBody with another patience than its 30 s.
func ReadBodyWithin(w http.ResponseWriter, r *http.Request, limit int64, patience time.Duration) ([]byte, error) {
	return readBody(w, r, limit, patience)
}
