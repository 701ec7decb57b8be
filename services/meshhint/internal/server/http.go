package server

import (
	"encoding/json"
	"net/http"

	"github.com/go-chi/chi/v5"

	"postrider.dev/services/meshhint/internal/engine"
)

// Internal mounts the sidecar's own routes on the admin listener.
func Internal(r chi.Router, hub *engine.Hub, view View) {
	r.Get("/nodes", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, map[string]any{"nodes": hub.Nodes()}) })
	r.Get("/api/shared-state/stats", view.handle)
	r.Get("/api/inter-instance/stats", view.handle)
}

func writeJSON(w http.ResponseWriter, body any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(body) // a client that went away is no failure
}
