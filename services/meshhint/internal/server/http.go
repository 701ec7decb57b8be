package server

import (
	"encoding/json"
	"net/http"

	"github.com/go-chi/chi/v5"

	"postrider.dev/services/meshhint/internal/engine"
)

// Internal mounts the sidecar's own routes on the admin listener.
func Internal(r chi.Router, hub *engine.Hub) {
	r.Get("/nodes", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]any{"nodes": hub.Nodes()}) // a client that went away is no failure
	})
}
