package run_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"postrider.dev/pkg/config"
	"postrider.dev/pkg/run"
)

type childConfig struct{ config.Common }

// childVariable makes this test binary behave like a service; its value says how the service ends.
const childVariable = "RUN_TEST_CHILD"

// childMain is a service that drains at once ("obedient") or never ("stubborn").
func childMain(how string) int {
	os.Args = []string{"child"}
	return run.Main("child", childConfig{config.Defaults()}, func(ctx context.Context, _ childConfig, _ run.Env) error {
		fmt.Println("ready")
		<-ctx.Done()
		fmt.Println("draining")
		if how == "stubborn" {
			select {}
		}
		return nil
	})
}

func TestARealProcessObeysSignals(t *testing.T) {
	t.Parallel()
	for how, want := range map[string]int{"obedient": run.ExitOK, "stubborn": run.ExitInterrupted} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			exe, err := os.Executable()
			require.NoError(t, err)
			cmd := exec.CommandContext(t.Context(), exe)
			cmd.Env = append(os.Environ(), childVariable+"="+how)
			out, err := cmd.StdoutPipe()
			require.NoError(t, err)
			require.NoError(t, cmd.Start())
			lines := bufio.NewScanner(out)
			for lines.Scan() {
				if strings.Contains(lines.Text(), "ready") {
					require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
				}
				if strings.Contains(lines.Text(), "draining") && how == "stubborn" {
					require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
				}
			}
			err = cmd.Wait()
			if exit, ok := errors.AsType[*exec.ExitError](err); ok {
				require.Equal(t, want, exit.ExitCode())
				return
			}
			require.NoError(t, err)
			require.Equal(t, want, 0)
		})
	}
}
