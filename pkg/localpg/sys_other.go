//go:build !linux

package localpg

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
)

// isServer says whether the process lives and serves the data folder.
func isServer(ctx context.Context, pid int, dataDir string) bool {
	out, err := exec.CommandContext(ctx, "ps", "-ww", "-o", "command=", "-p", strconv.Itoa(pid)).Output()
	return err == nil && strings.Contains(string(out), "-D "+dataDir+" ")
}

// childrenOf lists the processes whose parent is pid.
func childrenOf(ctx context.Context, pid int) ([]int, error) {
	out, err := exec.CommandContext(ctx, "pgrep", "-P", strconv.Itoa(pid)).Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() == 1 {
		return nil, nil // none
	}
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var children []int
	for _, word := range strings.Fields(string(out)) {
		child, err := strconv.Atoi(word)
		if err != nil {
			return nil, fmt.Errorf("list processes: %w", err)
		}
		children = append(children, child)
	}
	return children, nil
}
