package localpg

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// isServer says whether the process lives, is no zombie, and serves the data folder. A zombie's command line is empty.
func isServer(_ context.Context, pid int, dataDir string) bool {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return err == nil && bytes.Contains(line, []byte("\x00"+dataDir+"\x00"))
}

// childrenOf lists the processes whose parent is pid.
func childrenOf(_ context.Context, pid int) ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var children []int
	for _, entry := range entries {
		child, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		stat, err := os.ReadFile("/proc/" + entry.Name() + "/stat")
		if err != nil {
			continue // ended meanwhile
		}
		// "PID (name) state parent ...", and the name may hold anything.
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		if len(fields) > 1 && fields[1] == strconv.Itoa(pid) {
			children = append(children, child)
		}
	}
	return children, nil
}
