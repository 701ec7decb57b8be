package server

import (
	"fmt"
	"net/http"
	"time"

	"postrider.dev/pkg/apierr"
	adminv1 "postrider.dev/proto/gen/postrider/admin/v1"
)

const (
	sharedStatePath = "/api/v1/system/shared-state"
	// reasonModesUnknown is the code of an answer that would need the modes before they could be read for the first time.
	reasonModesUnknown = "MODES_UNKNOWN"
	modesRetry         = time.Second
)

// sharedState answers clients written for Queen, which ask each broker what it shares with others in memory: nothing, here as there. The mesh is shown by
// GET /v1/admin/mesh. The names are theirs.
func (s *Server) sharedState(w http.ResponseWriter, r *http.Request) {
	if err := s.vetRead(w, r, &adminv1.GetModesRequest{}, nil); err != nil { // this route takes as little as that
		apierr.WriteHTTP(w, r, err)
		return
	}
	m, known, _ := s.verbs.modes.Observe()
	if !known {
		apierr.WriteHTTP(w, r, apierr.Unavailable(reasonModesUnknown, "the modes of the fleet could not be read yet", modesRetry))
		return
	}
	writeBytes(w, http.StatusOK, fmt.Appendf(nil, `{"enabled":false,"reason":"single_node_segments_broker","maintenanceMode":%t,"popMaintenanceMode":%t}`,
		m.Maintenance.Enabled, m.PopMaintenance.Enabled))
}
