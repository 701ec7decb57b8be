package server_test

import (
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"postrider.dev/services/ingress/internal/domain"
)

// fewestBad is how many bad requests are tried of each route at least.
const fewestBad = 30

// refusal is how a bad request is answered.
type refusal struct {
	status int
	code   string
}

// spoilt is a request of a route that something is wrong with.
type spoilt struct {
	badRequest

	name string
}

// Whatever the route, what is wrong with a request is told before anything is forwarded. What is wrong with single fields is in the tables of the others;
// it counts here.
func TestEveryRouteRefusesThirtyBadRequestsBeforeAnythingIsForwarded(t *testing.T) {
	t.Parallel()
	s := start(t)
	listed := listedBad(t)
	for _, p := range domain.Policies() { //nolint:paralleltest // each counts what the one exchange got
		if p.Pattern == "" || p.Area == domain.AreaMeta {
			continue
		}
		t.Run(p.Method+" "+p.Pattern, func(t *testing.T) {
			bad := spoil(p)
			for _, c := range bad {
				before := s.exchange.forwarded()

				got := s.request(c.method, c.path, c.body, c.header...)

				require.Equal(t, before, s.exchange.forwarded(), "%s was forwarded", c.name)
				require.Equal(t, c.status, got.status, "%s: %.300s", c.name, got.body)
				var problem struct{ Code string }
				require.NoError(t, json.Unmarshal([]byte(got.body), &problem), "%s: %.300s", c.name, got.body)
				require.Equal(t, c.code, problem.Code, "%s: %.300s", c.name, got.body)
			}
			require.GreaterOrEqual(t, len(bad)+listed[p.Method+" "+p.Pattern], fewestBad)
		})
	}
}

// listedBad counts by route the bad requests of the other tests.
func listedBad(t *testing.T) map[string]int {
	t.Helper()
	counts := map[string]int{}
	for _, c := range badCases() {
		r := roots()[c.rule.Message]
		p := policyOf("/" + r.rpc)
		if _, _, ok := asREST(t, p, c.bad(r), c); ok {
			counts[p.Method+" "+p.Pattern]++
		}
	}
	cases := badHTTP()
	for _, more := range []map[string]badRequest{badInspection(), badSubscriptions(), badDeletes(), badLanes(), badTraces(), badRotations(), badQueueDelays()} {
		maps.Copy(cases, more)
	}
	for _, c := range cases {
		for _, p := range domain.Policies() {
			if p.Method == c.method && isOf(p.Pattern, c.path) {
				counts[p.Method+" "+p.Pattern]++
			}
		}
	}
	return counts
}

func isOf(pattern, path string) bool {
	path, _, _ = strings.Cut(path, "?")
	want, have := strings.Split(pattern, "/"), strings.Split(path, "/")
	return slices.EqualFunc(want, have, func(w, h string) bool { return w == h || strings.HasPrefix(w, "{") })
}

// spoil makes every request of a route that is wrong whatever the route does.
func spoil(p domain.Policy) []spoilt {
	fill := func(pattern string) string {
		return strings.NewReplacer("{queue}", "q", "{group}", "g", "{id}", "d", "{mode}", "pop_maintenance").Replace(pattern)
	}
	path, takesBody, good := fill(p.Pattern), p.Method != http.MethodGet && p.Method != http.MethodDelete, ""
	if takesBody {
		good = "{}"
	}
	var out []spoilt
	add := func(name, method, path, body string, want refusal, header ...string) {
		out = append(out, spoilt{badRequest{method, path, body, header, want.status, want.code}, name})
	}
	for name, header := range badKeys() {
		code := "INVALID_KEY"
		if name == "none" {
			code = "MISSING_KEY"
		}
		if name == "two" {
			code = "AMBIGUOUS_KEY"
		}
		add("key: "+name, p.Method, path, good, refusal{401, code}, header...)
	}
	for _, method := range []string{"GET", "PUT", "PATCH", "POST", "DELETE", "OPTIONS", "TRACE", "BREW"} {
		if !slices.ContainsFunc(domain.Policies(), func(o domain.Policy) bool { return o.Method == method && isOf(o.Pattern, path) }) {
			add("method: "+method, method, path, "", refusal{405, "METHOD_NOT_ALLOWED"})
		}
	}
	for name, path := range map[string]string{
		"a slash behind": path + "/", "more behind": path + "/a/b/c/d", "a slash twice": strings.Replace(path, "/v1/", "/v1//", 1),
		"another version": strings.Replace(path, "/v1/", "/v0/", 1), "capitals": strings.Replace(path, "/v1/", "/V1/", 1),
	} {
		add("path: "+name, p.Method, path, good, refusal{404, "ROUTE_NOT_FOUND"})
	}
	if strings.Contains(p.Pattern, "{queue}") && !strings.HasSuffix(p.RPC, "/Push") { // of a push what is wrong with its messages is told first
		for value, code := range map[string]string{"a%00b": "NAME_HAS_NUL", "a%ffb": "NAME_NOT_UTF8", "%ed%a0%80": "NAME_NOT_UTF8", strings.Repeat("x", 256): "NAME_TOO_LONG"} {
			add("queue: "+code, p.Method, fill(strings.Replace(p.Pattern, "{queue}", value, 1)), good, refusal{400, code})
		}
	}
	unknown := "UNKNOWN_FIELD"
	if takesBody {
		unknown = "UNEXPECTED_QUERY"
	}
	for query, code := range map[string]string{
		"colour=red": unknown, "=red": unknown, "a=%ff": unknown, "a%00=1": unknown, "a=%zz": "INVALID_QUERY", "a=%": "INVALID_QUERY", "a=1;b=2": "INVALID_QUERY",
	} {
		add("query: "+query, p.Method, path+"?"+query, good, refusal{400, code})
	}
	return append(out, spoilBody(p, path, takesBody)...)
}

// badKeys are headers of callers that nobody knows.
func badKeys() map[string][]string {
	return map[string][]string{
		"none": {"Authorization", ""}, "no key": {"Authorization", "Bearer hunter2"}, "empty": {"Authorization", "Bearer "}, "another scheme": {"Authorization", "Basic YTpi"},
		"two": {"X-API-Key", readKey}, "no key in the other header": {"Authorization", "", "X-API-Key", "hunter2"},
		"long": {"Authorization", "Bearer " + strings.Repeat("x", 4096)},
	}
}

// spoilBody makes bodies that no route takes.
func spoilBody(p domain.Policy, path string, takesBody bool) []spoilt {
	var out []spoilt
	add := func(name, body string, want refusal, header ...string) {
		out = append(out, spoilt{badRequest{p.Method, path, body, header, want.status, want.code}, name})
	}
	if !takesBody {
		for _, body := range []string{`{}`, `a=1`, ` `, `null`, `[]`, `{"page_size":1}`} {
			add("body: "+body, body, refusal{400, "UNEXPECTED_BODY"})
		}
		return out
	}
	for body, code := range map[string]string{
		`a=1`: "INVALID_JSON", `{}{}`: "INVALID_JSON", "\ufeff{}": "INVALID_JSON", `{'a':1}`: "INVALID_JSON", `{a:1}`: "INVALID_JSON", `{/**/}`: "INVALID_JSON",
		`{"\x":1}`: "INVALID_JSON", `[{}]`: "WRONG_TYPE", `null`: "WRONG_TYPE", `"a"`: "WRONG_TYPE", `1`: "WRONG_TYPE", "{\"a\":\"\xff\"}": "INVALID_UTF8",
		`{"\ud800":1}`: "INVALID_UTF8", `{"colour":1}`: "UNKNOWN_FIELD", `{"":1}`: "UNKNOWN_FIELD", `{"colour":1,"colour":2}`: "UNKNOWN_FIELD",
	} {
		add("body: "+body, body, refusal{400, code})
	}
	for _, media := range []string{"application/x-www-form-urlencoded", "", "application/json; charset=latin1", "application/json; charset", "text/xml"} {
		add("media type: "+media, `{}`, refusal{415, "UNSUPPORTED_MEDIA_TYPE"}, "Content-Type", media)
	}
	add("encoding", `{}`, refusal{415, "UNSUPPORTED_MEDIA_TYPE"}, "Content-Encoding", "gzip")
	return out
}
