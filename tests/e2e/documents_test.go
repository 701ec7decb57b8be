package e2e

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/api/annotations"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	adminv1 "postrider.dev/proto/gen/postrider/admin/v1"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/tests/fleet"
)

// contractRoutes lists "METHOD /path" of every RPC with a REST mapping in the contracts, and of the one route of operators that is none.
func contractRoutes() []string {
	var list []string
	for _, file := range []protoreflect.FileDescriptor{queuev1.File_postrider_queue_v1_queue_service_proto, adminv1.File_postrider_admin_v1_admin_service_proto} {
		for i := range file.Services().Len() {
			methods := file.Services().Get(i).Methods()
			for j := range methods.Len() {
				rule, ok := proto.GetExtension(methods.Get(j).Options(), annotations.E_Http).(*annotations.HttpRule)
				if !ok || rule == nil {
					continue
				}
				for method, path := range map[string]string{
					"GET": rule.GetGet(), "POST": rule.GetPost(), "PATCH": rule.GetPatch(), "DELETE": rule.GetDelete(), "PUT": rule.GetPut(),
				} {
					if path != "" {
						list = append(list, method+" "+path)
					}
				}
			}
		}
	}
	list = append(list, "GET /api/v1/system/shared-state") // Queen's own answer, which is no message of ours
	slices.Sort(list)
	return list
}

func TestTheServedContractIsValidAndListsEveryRoute(t *testing.T) {
	t.Parallel()
	h := fleet.Start(t, fleet.Options{}).Hosts[0]
	doc := openapi(t, h)

	require.Equal(t, "2.0", doc.Swagger)
	require.Equal(t, contractRoutes(), doc.routes())
	for _, open := range []string{"/livez", "/readyz", "/openapi.json", "/docs"} {
		require.Contains(t, doc.Paths, open)
		require.NotEmpty(t, get(t, h.HTTP+open), "and answers without a key")
	}
	ids := map[string]bool{}
	for path, methods := range doc.Paths {
		for method, op := range methods {
			require.NotEmpty(t, op.ID, "%s %s", method, path)
			require.False(t, ids[op.ID], "%s twice", op.ID)
			ids[op.ID] = true
			require.NotEmpty(t, op.Summary, "%s %s", method, path)
			require.NotEmpty(t, op.Responses, "%s %s", method, path)
		}
	}
	for _, ref := range regexp.MustCompile(`"\$ref": ?"#/definitions/([^"]+)"`).FindAllStringSubmatch(get(t, h.HTTP+"/openapi.json"), -1) {
		require.Contains(t, doc.Definitions, ref[1])
	}
}

func TestThePageForPeopleLoadsNothingFromElsewhere(t *testing.T) {
	t.Parallel()
	h := fleet.Start(t, fleet.Options{}).Hosts[0]

	page := get(t, h.HTTP+"/docs")

	for _, elsewhere := range []string{`src="http`, `src="//`, `href="//`, "@import", "url(http", "<script src", "<link"} {
		require.NotContains(t, page, elsewhere)
	}
	for path := range openapi(t, h).Paths {
		require.Contains(t, page, path)
	}
}

func TestEveryMetricIsWellNamedAndExplained(t *testing.T) {
	t.Parallel()
	h := fleet.Start(t, fleet.Options{}).Hosts[0]
	mustPush(t, fleet.Dial(t, fleet.AdminKey, h.GRPC), "q", "p", "x")

	text := get(t, "http://"+h.Admin+"/metrics")

	problems, err := promlint.New(strings.NewReader(text)).Lint()
	require.NoError(t, err, "it parses")
	for _, p := range problems {
		if strings.HasPrefix(p.Metric, "postrider_") {
			t.Error(p.Metric, p.Text)
		}
	}
	for line := range strings.SplitSeq(text, "\n") {
		if !strings.HasPrefix(line, "#") {
			require.NotContains(t, line, "tenant", "a label a customer makes is no label")
		}
	}
	for _, service := range []string{"ingress", "dispatcher", "scheduler", "audit", "meshhint"} {
		require.Contains(t, text, fmt.Sprintf("\npostrider_%s_", service))
	}
}
