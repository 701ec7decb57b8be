package cli_test

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"postrider.dev/stack/internal/cli"
)

// program runs the test binary as the postrider program.
func program(ctx context.Context, environ []string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, os.Args[0], args...)
	cmd.Env = append(append([]string{}, environ...), asProgram+"=1", "PATH="+os.Getenv("PATH"), "HOME="+os.Getenv("HOME"))
	return cmd
}

func TestAWrongCallEndsWithCodeTwoAndSaysHowItIsRight(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ line, says string }{
		{"pop", "postrider pop QUEUE"},
		{"pop a b", "postrider pop QUEUE"},
		{"push", "postrider push QUEUE [PAYLOAD]"},
		{"pop orders --nonsense", "--nonsense"},
		{"pop orders --batch many", `invalid argument "many" for "-n, --batch"`},
		{"pop orders --mode odd", "ordered or shared"},
		{"pop orders --output xml", "table or json"},
		{"nonsense", `no command "nonsense"`},
		{"pusch orders", "did you mean push"},
		{"queue lst", "did you mean ls"},
		{"dlq what", `no command "what"`},
		{"dlq redrive orders", "--group"},
		{"queue rotate-key", "postrider queue rotate-key QUEUE"},
		{"dlq purge orders", "--all"},
		{"dlq purge orders id --all", "--all"},
		{"dlq purge orders --all --group g", "--all"},
		{"dlq purge orders id --limit 3", "go with --group or --all"},
		{"dlq purge orders --all --failed-before yesterday", "2026-01-31T09:00:00Z"},
		{"lookup orders", "name a message"},
		{"lookup orders m --client-id c", "name a message"},
		{"lookup orders m --group g", "--group goes with --trace"},
		{"delete", "postrider delete QUEUE"},
		{"delete orders", "name a message"},
		{"delete orders m --client-id c", "name a message"},
		{"delete orders --partition p", "name a message"},
		{"peek", "postrider peek QUEUE"},
		{"peek orders --shard 0 --partition p", "--partition says the shard"},
		{"peek orders --priority 1", "--priority goes with --partition"},
		{"push orders x --priority high", `invalid argument "high" for "--priority"`},
		{"transact orders", "postrider transact"},
		{"transact -f -", "cannot be read"},
		{"ack orders lease --nack", "name the messages"},
		{"ack orders lease m --nack --reject", "not both"},
		{"ack orders lease --delay 5s", "--delay goes with --nack"},
		{"ack orders lease m --reason x", "--reason goes with"},
		{"--timeout 0s queue ls", "--timeout must be positive"},
		{"push orders x -H broken", "name=value"},
		{"up --hosts 0", "--hosts is 1 to"},
		{"up --port 70000", "--port 70000"},
		{"up now", "postrider up"},
		{"--key k push q x --lines", "--lines takes payloads from standard input"},
		{"--data /nowhere pop orders", "no API key"},
	} {
		t.Run(c.line, func(t *testing.T) {
			t.Parallel()
			cmd := program(t.Context(), nil, strings.Fields(c.line)...)
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			err := cmd.Run()

			var exit *exec.ExitError
			require.ErrorAs(t, err, &exit)
			require.Equal(t, 2, exit.ExitCode(), stderr.String())
			require.Contains(t, stderr.String(), c.says)
			require.True(t, strings.HasPrefix(stderr.String(), "postrider: usage: "), stderr.String())
		})
	}
}

func TestCommandsOfCommandsAreListedByThemselves(t *testing.T) {
	t.Parallel()
	s := &shell{t: t}
	require.Contains(t, s.must(), "Available Commands:")
	require.Contains(t, s.must("queue"), "configure")
	require.NotContains(t, s.must("--help"), "\n  host ", "what only `up` calls is hidden")
}

func TestWhenNoNodeAnswersTheCommandSaysWhatToDo(t *testing.T) {
	t.Parallel()
	s := &shell{t: t, addr: "127.0.0.1:1"}

	_, _, err := s.run("queue", "ls")

	require.Error(t, err)
	require.Contains(t, cli.Explain(err), "no node answers at 127.0.0.1:1")
	require.Contains(t, cli.Explain(err), "`postrider up` starts one")
}

func TestAWrongKeyIsToldApart(t *testing.T) {
	t.Parallel()
	s := newShell(t)

	_, _, err := s.run("queue", "ls", "--key", "prk_none_0123456789012345678901234567")

	require.ErrorContains(t, err, "INVALID_KEY")
}
