package server_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

const sharedState = "/api/v1/system/shared-state"

func TestTheSharedStateOfQueenIsAlwaysOffAndShowsTheModes(t *testing.T) {
	t.Parallel()
	s := start(t)

	before := s.request(http.MethodGet, sharedState, "")
	s.modes.closePops("moving")
	after := s.request(http.MethodGet, sharedState, "")

	require.Equal(t, http.StatusOK, before.status)
	require.JSONEq(t, `{"enabled":false,"reason":"single_node_segments_broker","maintenanceMode":false,"popMaintenanceMode":false}`, before.body)
	require.JSONEq(t, `{"enabled":false,"reason":"single_node_segments_broker","maintenanceMode":false,"popMaintenanceMode":true}`, after.body)
}

func TestTheSharedStateIsNotGuessedBeforeTheModesWereRead(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.modes.forget()

	got := s.request(http.MethodGet, sharedState, "")

	require.Equal(t, http.StatusServiceUnavailable, got.status, got.body)
	require.Contains(t, got.body, "MODES_UNKNOWN")
	require.Equal(t, "1", got.header.Get("Retry-After"))
}
