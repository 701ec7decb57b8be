package arch_test

import (
	"bytes"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"

	"postrider.dev/pkg/pgtest"
	postrider "postrider.dev/sdk"
	"postrider.dev/stack"
	"postrider.dev/tests/fleet"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

func TestTheMetricsPageListsEveryMetric(t *testing.T) {
	t.Parallel()
	h := fleet.Start(t, fleet.Options{Change: func(_ int, cfg *stack.Config) { cfg.Meshhint.MeshListen = "127.0.0.1:0" }}).Hosts[0]
	c := fleet.Dial(t, fleet.AdminKey, h.GRPC)
	_, err := c.Push(t.Context(), "q", postrider.Message{Payload: []byte("x")}) // a family whose labels nobody has used yet is not there
	require.NoError(t, err)
	_, err = c.Pop(t.Context(), "q", postrider.PopOptions{})
	require.NoError(t, err)
	for _, url := range []string{h.HTTP + "/livez", "http://" + h.Admin + "/metrics"} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
		require.NoError(t, err)
		resp, err := http.DefaultClient.Do(req)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+h.Admin+"/metrics", nil)
	require.NoError(t, err)
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close() //nolint:errcheck // read to its end
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(resp.Body)
	require.NoError(t, err)

	for name := range families { // calls are counted when they end, and some services have had none yet
		for _, kind := range []string{"_grpc", "_http"} {
			if prefix, ok := strings.CutSuffix(name, kind+"_in_flight"); ok && families[prefix+kind+"_seconds"] == nil {
				families[prefix+kind+"_seconds"] = families["postrider_ingress"+kind+"_seconds"]
			}
		}
	}
	var b bytes.Buffer
	b.WriteString("# Metrics\n\nEvery service serves these at `/metrics` of its admin listener, beside those of the Go runtime and the process; the all-in-one " +
		"process serves all of them at once. No label is ever a tenant's, a queue's or a partition's name.\n\n| metric | type | labels | meaning |\n|---|---|---|---|\n")
	var names []string
	for name := range families {
		if strings.HasPrefix(name, "postrider_") {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		f := families[name]
		labels := map[string]bool{}
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				labels["`"+l.GetName()+"`"] = true
			}
		}
		_, _ = fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", name, strings.ToLower(f.GetType().String()), sortedKeys(labels), f.GetHelp())
	}

	page(t, "metrics.md", b.String())
}

func sortedKeys(set map[string]bool) string {
	list := make([]string, 0, len(set))
	for k := range set {
		list = append(list, k)
	}
	slices.Sort(list)
	return strings.Join(list, " ")
}
