// Package server answers what the scheduler is asked.
package server

import (
	"encoding/json"
	"net/http"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"postrider.dev/pkg/leader"
)

// elections is the elector as this package sees it.
type elections interface{ State() leader.State }

// Leader is the answer of /internal/leader: what this scheduler knows of itself.
type Leader struct {
	Holder  string     `json:"holder"`
	Leading bool       `json:"leading"`
	Epoch   int64      `json:"epoch,string"` // of its present term, or of its last one; 0 when it never led
	Since   *time.Time `json:"since,omitempty"`
	Changes int        `json:"changes"`
	// Error is what ended the last term or attempt.
	Error string `json:"error,omitempty"`
}

// Internal adds the scheduler's routes to those under /internal.
func Internal(r chi.Router, holder string, e elections) {
	r.Get("/leader", func(w http.ResponseWriter, _ *http.Request) {
		s := e.State()
		answer := Leader{Holder: holder, Leading: s.Leading, Epoch: int64(s.Epoch), Changes: s.Changes}
		if !s.Since.IsZero() {
			since := s.Since.UTC()
			answer.Since = &since
		}
		if s.Err != nil {
			answer.Error = s.Err.Error()
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "no-store")
		_ = json.NewEncoder(w).Encode(answer) // the reader has gone
	})
}

// Metrics registers what is to be watched of an election.
func Metrics(reg prometheus.Registerer, e elections) {
	with := promauto.With(reg)
	with.NewGaugeFunc(prometheus.GaugeOpts{Name: "postrider_scheduler_is_leader", Help: "1 while this scheduler leads and believes it, else 0."}, func() float64 {
		if e.State().Leading {
			return 1
		}
		return 0
	})
	with.NewGaugeFunc(prometheus.GaugeOpts{Name: "postrider_scheduler_epoch", Help: "Epoch of this scheduler's present or last term."}, func() float64 {
		return float64(e.State().Epoch)
	})
	with.NewCounterFunc(prometheus.CounterOpts{Name: "postrider_scheduler_leader_changes_total", Help: "Take-overs and step-downs of this scheduler."}, func() float64 {
		return float64(e.State().Changes)
	})
}
