package server_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"

	"postrider.dev/services/ingress/internal/domain"
)

func TestTheOpenAPIDocumentIsWhatTheGoldenSaysAndListsEveryRoute(t *testing.T) {
	t.Parallel()
	s := start(t)
	got := s.request(http.MethodGet, "/openapi.json", "", "Authorization", "")
	require.Equal(t, http.StatusOK, got.status)
	var pretty bytes.Buffer
	require.NoError(t, json.Indent(&pretty, []byte(got.body), "", "  "))
	if *update {
		require.NoError(t, os.WriteFile("testdata/openapi.json", pretty.Bytes(), 0o600))
	}
	want, err := os.ReadFile("testdata/openapi.json")
	require.NoError(t, err)
	require.Empty(t, cmp.Diff(string(want), pretty.String()), "run with -update to rewrite it")

	var doc struct {
		Paths       map[string]map[string]json.RawMessage
		Definitions map[string]json.RawMessage
	}
	require.NoError(t, json.Unmarshal([]byte(got.body), &doc))
	routes := 0
	for _, p := range domain.Policies() {
		if p.Method != "" {
			require.Contains(t, doc.Paths[p.Pattern], strings.ToLower(p.Method), p.Pattern)
			routes++
		}
	}
	listed := 0
	for _, ops := range doc.Paths {
		listed += len(ops)
	}
	require.Equal(t, routes, listed)
	for _, ref := range regexp.MustCompile(`#/definitions/(\w+)`).FindAllStringSubmatch(got.body, -1) {
		require.Contains(t, doc.Definitions, ref[1])
	}
	require.NotRegexp(t, `"(messageId|createdAt|leaseExpiresAt|ackRest|pageSize)"`, got.body, "names are as they are sent")
}

func TestTheDocsPageIsSelfContained(t *testing.T) {
	t.Parallel()
	s := start(t)
	got := s.request(http.MethodGet, "/docs", "", "Authorization", "")
	require.Equal(t, http.StatusOK, got.status)
	require.Contains(t, got.header.Get("Content-Security-Policy"), "default-src 'none'")
	require.NotRegexp(t, `(?i)<script|<link|src=|https?://|@import|url\(`, got.body)
	for _, p := range domain.Policies() {
		if p.Method != "" {
			require.Contains(t, got.body, p.Pattern)
		}
	}
	for _, link := range regexp.MustCompile(`href="#([^"]+)"`).FindAllStringSubmatch(got.body, -1) {
		require.Contains(t, got.body, `id="`+link[1]+`"`)
	}
}
