package cli_test

import (
	"bytes"
	"context"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"postrider.dev/pkg/pgtest"
	"postrider.dev/pkg/redisconn"
	"postrider.dev/stack/internal/cli"
	"postrider.dev/stack/internal/hosttest"
)

// asProgram makes the test binary the postrider program: what the tests of `up` run.
const asProgram = "POSTRIDER_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		os.Exit(cli.Main())
	}
	redisconn.SilenceDriver()
	pgtest.Main(m)
}

// shell calls the command as a person would.
type shell struct {
	t    testing.TB
	addr string
	in   string
}

func newShell(t testing.TB) *shell {
	t.Helper()
	return &shell{t: t, addr: hosttest.Start(t, zap.NewNop()).GRPC}
}

// run returns what the command printed and its error.
func (s *shell) run(args ...string) (out, errs string, err error) {
	s.t.Helper()
	environ := map[string]string{"POSTRIDER_ADDR": s.addr, "POSTRIDER_API_KEY": hosttest.AdminKey}
	var stdout, stderr bytes.Buffer
	cmd := cli.New(cli.Streams{
		In: strings.NewReader(s.in), Out: &stdout, Err: &stderr, Getenv: func(name string) string { return environ[name] },
	}, "v0-test")
	cmd.SetArgs(args)
	ctx, cancel := context.WithCancel(s.t.Context())
	defer cancel()
	err = cmd.ExecuteContext(ctx)
	return stdout.String(), stderr.String(), err
}

// must returns what a command printed that has to succeed.
func (s *shell) must(args ...string) string {
	s.t.Helper()
	out, _, err := s.run(args...)
	require.NoError(s.t, err, "postrider %s", strings.Join(args, " "))
	return out
}
