package server_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNoAnswerLetsABrowserGuessItsType(t *testing.T) {
	t.Parallel()
	s := start(t)
	_, events := s.events("")
	for what, got := range map[string]answer{
		"push":         s.request(http.MethodPost, "/v1/queues/q/messages", `{"items":[{"payload":"<script>"}]}`),
		"bad push":     s.request(http.MethodPost, "/v1/queues/q/messages", `{"<script>":1}`),
		"queue":        s.request(http.MethodGet, "/v1/queues/q", ""),
		"no route":     s.request(http.MethodGet, "/<script>", ""),
		"openapi":      s.request(http.MethodGet, "/openapi.json", ""),
		"docs":         s.request(http.MethodGet, "/docs", ""),
		"event stream": events,
	} {
		require.Equal(t, []string{"nosniff"}, got.header.Values("X-Content-Type-Options"), what)
	}
}
