package e2e

import (
	"context"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	adminv1 "postrider.dev/proto/gen/postrider/admin/v1"
	"postrider.dev/tests/conformance"
	"postrider.dev/tests/fleet"
)

// answer is what a route said.
type answer struct {
	Status int
	Header http.Header
	Body   string
}

// code is the stable code of a problem, or "".
func (a answer) code() string {
	var p struct {
		Code string `json:"code"`
	}
	_ = json.Unmarshal([]byte(a.Body), &p) // what is no problem has none
	return p.Code
}

// into decodes the body.
func (a answer) into(t *testing.T, v any) {
	t.Helper()
	require.NoError(t, json.Unmarshal([]byte(a.Body), v), a.Body)
}

// streamTime is how long send reads an answer that does not end.
const streamTime = 300 * time.Millisecond

// send makes one REST request with a key, a JSON body if any, and further headers in pairs. Of an event stream it returns what comes at once.
func send(t *testing.T, h *fleet.Host, key, method, path, body string, header ...string) answer {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, h.HTTP+path, strings.NewReader(body))
	require.NoError(t, err)
	req.Header.Set("Authorization", "Bearer "+key)
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close() //nolint:errcheck // read to its end
	isStream := resp.Header.Get("Content-Type") == "text/event-stream"
	if isStream {
		defer time.AfterFunc(streamTime, cancel).Stop()
	}
	text, err := io.ReadAll(resp.Body)
	if !isStream {
		require.NoError(t, err)
	}
	return answer{resp.StatusCode, resp.Header, string(text)}
}

// surface is the typed REST client of one host.
func surface(h *fleet.Host, key string) conformance.Client {
	return conformance.Target{BaseURL: h.HTTP}.REST(key)
}

// newKey makes a key in a tenant, over the host's admin routes.
func newKey(t *testing.T, h *fleet.Host, tenant string, role adminv1.Role) *adminv1.CreateAPIKeyResponse {
	t.Helper()
	made, err := surface(h, fleet.AdminKey).CreateAPIKey(t.Context(), &adminv1.CreateAPIKeyRequest{Tenant: tenant, Name: "test", Role: role})
	require.NoError(t, err)
	return made
}

// document is what the tests read of /openapi.json.
type document struct {
	Swagger     string                                     `json:"swagger"`
	Paths       map[string]map[string]operationDescription `json:"paths"`
	Definitions map[string]json.RawMessage                 `json:"definitions"`
}

type operationDescription struct {
	ID        string                     `json:"operationId"` //nolint:tagliatelle // OpenAPI's name
	Summary   string                     `json:"summary"`
	Role      string                     `json:"x-required-role"` //nolint:tagliatelle // an extension's name
	Responses map[string]json.RawMessage `json:"responses"`
}

func openapi(t *testing.T, h *fleet.Host) document {
	t.Helper()
	var doc document
	answer{Body: get(t, h.HTTP+"/openapi.json")}.into(t, &doc)
	return doc
}

// routes lists "METHOD /path" of the surface that a host documents, without the ones that need no key.
func (d document) routes() []string {
	var list []string
	for _, path := range slices.Sorted(maps.Keys(d.Paths)) {
		for method, op := range d.Paths[path] {
			if op.Role != "none" {
				list = append(list, strings.ToUpper(method)+" "+path)
			}
		}
	}
	slices.Sort(list)
	return list
}
