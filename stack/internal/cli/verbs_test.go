package cli_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	adminv1 "postrider.dev/proto/gen/postrider/admin/v1"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/stack/internal/cli"
)

// verb is where people and programs find a method: the command, and the exported methods of the SDK that lead to it, the first of them by name.
type verb struct{ command, sdk string }

// verbs has every method of the public services. A command that is missing says why.
func verbs() map[string]verb {
	return map[string]verb{
		"Push":       {"push", "Push"},
		"PushStream": {"push", "Push"}, // how the SDK sends pushes; there is nothing more to it for people
		"Pop":        {"pop", "Pop"},
		"Ack":        {"ack", "Settle"},
		"Renew":      {"renew", "Renew"},
		"Release":    {"release", "Release"},
		"Transact":   {"transact", "Transact"},
		"Subscribe":  {"subscribe", "Subscribe"},

		"LookupMessage":  {"lookup", "Lookup"},
		"DeleteMessage":  {"delete", "DeleteMessage"},
		"PeekMessages":   {"peek", "Peek"},
		"ConfigureQueue": {"queue configure", "Configure"},
		"RotateQueueKey": {"queue rotate-key", "RotateKey"},
		"ListQueues":     {"queue ls", "QueueList"},
		"GetQueue":       {"queue show", "Queue"},
		"DeleteQueue":    {"queue rm", "DeleteQueue"},
		"ListPartitions": {"queue partitions", "Partitions"},
		"CreateGroup":    {"queue group add", "CreateGroup"},
		"DeleteGroup":    {"queue group rm", "DeleteGroup"},
		"SeekGroup":      {"queue seek", "Seek"},

		"ListDeadLetters":    {"dlq ls", "DeadLetters"},
		"GetDeadLetter":      {"dlq show", "DeadLetter"},
		"RedriveDeadLetters": {"dlq redrive", "RedriveAs"},
		"PurgeDeadLetters":   {"dlq purge", "PurgeAs"},

		"CreateTenant": {"admin tenant add", "CreateTenant"},
		"ListTenants":  {"admin tenant ls", "Tenants"},
		"CreateAPIKey": {"admin key add", "CreateAPIKey"},
		"ListAPIKeys":  {"admin key ls", "APIKeys"},
		"RevokeAPIKey": {"admin key revoke", "RevokeAPIKey"},
		"ListNodes":    {"admin nodes", "Nodes"},
		"GetModes":     {"admin modes", "Modes"},
		"SetMode":      {"admin mode set", "SetMode"},
		"GetSpool":     {"admin spool", "Spools"},
		"GetMesh":      {"admin mesh", "Mesh"},
	}
}

// inBatches are those that the SDK calls for many callers at once, from a goroutine of its own.
func inBatches(method string) bool { return method == "Push" || method == "PushStream" }

func TestEveryMethodOfThePublicServicesHasACommandAndAMethodOfTheSDK(t *testing.T) {
	t.Parallel()
	table, root := verbs(), cli.New(cli.Streams{Getenv: func(string) string { return "" }}, "v0-test")
	calls, everything := sdkCalls(t)

	seen := map[string]bool{}
	for _, desc := range []grpc.ServiceDesc{queuev1.QueueService_ServiceDesc, adminv1.AdminService_ServiceDesc} {
		for _, method := range methods(desc) {
			seen[method] = true
			v, ok := table[method]
			if !ok {
				t.Errorf("%s of %s has neither a command nor a method of the SDK", method, desc.ServiceName)
				continue
			}
			cmd, rest, err := root.Find(strings.Fields(v.command))
			require.NoError(t, err, v.command)
			require.Empty(t, rest, "there is no command %q for %s", v.command, method)
			require.Equal(t, "postrider "+v.command, cmd.CommandPath())
			if inBatches(method) {
				require.Contains(t, calls, v.sdk)
				require.True(t, everything["PushStream"], "the SDK does not call %s", method)
				continue
			}
			require.True(t, calls[v.sdk][method], "%s of the SDK does not call %s", v.sdk, method)
		}
	}
	for method := range table {
		require.True(t, seen[method], "no service has %s", method)
	}
}

func methods(desc grpc.ServiceDesc) (names []string) {
	for _, m := range desc.Methods {
		names = append(names, m.MethodName)
	}
	for _, s := range desc.Streams {
		names = append(names, s.StreamName)
	}
	return names
}

// sdkCalls tells what each exported method of the SDK calls, itself and through unexported ones, and what is called anywhere.
func sdkCalls(t *testing.T) (calls map[string]map[string]bool, everything map[string]bool) {
	t.Helper()
	files, err := filepath.Glob("../../../sdk/*.go")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	calls, everything = map[string]map[string]bool{}, map[string]bool{}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		require.NoError(t, err)
		for _, decl := range parsed.Decls {
			f, ok := decl.(*ast.FuncDecl)
			if !ok {
				continue
			}
			own := calls[f.Name.Name]
			if own == nil {
				own = map[string]bool{}
				calls[f.Name.Name] = own
			}
			ast.Inspect(f, func(n ast.Node) bool {
				if call, ok := n.(*ast.CallExpr); ok {
					if to, ok := call.Fun.(*ast.SelectorExpr); ok {
						own[to.Sel.Name], everything[to.Sel.Name] = true, true
					}
				}
				return true
			})
		}
	}
	for range 3 { // Pop, popWith, popOnce
		for _, own := range calls {
			for name := range own {
				if ast.IsExported(name) {
					continue
				}
				for called := range calls[name] {
					own[called] = true
				}
			}
		}
	}
	return calls, everything
}

func TestALeaseIsRenewedAndReleasedByItsToken(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	s.must("push", "orders", "x")
	lease := leaseOf(t, s.must("pop", "orders", "--wait", "10s"))

	require.Regexp(t, `^held for (10m0s|9m5\ds)\n$`, s.must("renew", "orders", lease, "--lease", "10m"))
	require.Equal(t, "nothing ready\n", s.must("pop", "orders"))
	require.Equal(t, "released "+lease+"\n", s.must("release", "orders", lease))
	again := fields(t, s.must("pop", "orders", "-o", "json", "--wait", "10s"))
	require.EqualValues(t, 1, again["deliveries"].([]any)[0].(map[string]any)["attempt"], "uncharged")
	_, _, err := s.run("renew", "orders", lease)
	require.ErrorContains(t, err, "STALE_EPOCH")
}

func TestGroupsAreMadeAndRemovedAndPartitionsListed(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	s.must("push", "orders", "x", "--partition", "customer-1")

	require.Equal(t, "made late\n", s.must("queue", "group", "add", "orders", "late", "--start", "latest", "--mode", "shared", "--on-failure", "skip"))
	require.Equal(t, "nothing ready\n", s.must("pop", "orders", "--group", "late"))
	require.Contains(t, s.must("queue", "show", "orders"), "late")
	require.Equal(t, "deleted late\n", s.must("queue", "group", "rm", "orders", "late"))
	require.NotContains(t, s.must("queue", "show", "orders"), "late")
	for _, bad := range [][]string{{"--mode", "both"}, {"--on-failure", "panic"}} {
		_, _, err := s.run(append([]string{"queue", "group", "add", "orders", "g"}, bad...)...)
		require.ErrorIs(t, err, cli.ErrUsage)
	}
	require.Eventually(t, func() bool { return strings.Contains(s.must("queue", "partitions", "orders"), "customer-1") }, 20*time.Second, 100*time.Millisecond)
}

func TestTenantsKeysAndNodesAreListedAndMade(t *testing.T) {
	t.Parallel()
	s := newShell(t)

	require.Equal(t, "made acme\n", s.must("admin", "tenant", "add", "acme"))
	require.Equal(t, "acme", columns(t, s.must("admin", "tenant", "ls"), "acme")[0])
	made := fields(t, s.must("admin", "key", "add", "billing", "--tenant", "acme", "--role", "read", "-o", "json"))
	id := made["key"].(map[string]any)["id"].(string)
	require.NotEmpty(t, made["secret"])
	require.Equal(t, []string{id, "acme", "billing", "read"}, columns(t, s.must("admin", "key", "ls", "--tenant", "acme"), id)[:4])
	_, _, err := s.run("push", "orders", "x", "--key", made["secret"].(string))
	require.Error(t, err, "it may only read")
	require.Equal(t, "revoked "+id+"\n", s.must("admin", "key", "revoke", id))
	require.NotEqual(t, "-", columns(t, s.must("admin", "key", "ls", "--tenant", "acme"), id)[7], "when it was revoked")
	_, _, err = s.run("admin", "key", "add", "x", "--role", "king")
	require.ErrorIs(t, err, cli.ErrUsage)
	require.Contains(t, s.must("admin", "nodes"), "online")
}
