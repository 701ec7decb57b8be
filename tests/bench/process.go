package bench

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Processes are the processes whose CPU time is charged, by name.
type Processes map[string]int

// clockTick is the unit of /proc/PID/stat: 100 a second on Linux.
const clockTick = 10 * time.Millisecond

// CPU returns the CPU time each process and its children have used so far; nothing where there is no /proc.
func (p Processes) CPU() map[string]time.Duration {
	out := make(map[string]time.Duration, len(p))
	children := childrenOf()
	for name, pid := range p {
		if pid == os.Getpid() { // its children are the ones measured
			out[name] = used(pid, 2)
			continue
		}
		out[name] = tree(pid, children)
	}
	return out
}

// RSS returns the resident memory of a process in bytes, 0 where it cannot be told.
func (p Processes) RSS(name string) int64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", p[name]))
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(text))
	if len(fields) < 2 {
		return 0
	}
	pages, err := strconv.ParseInt(fields[1], 10, 64)
	if err != nil {
		return 0
	}
	return pages * int64(os.Getpagesize())
}

func tree(pid int, children map[int][]int) time.Duration {
	total := used(pid, 4)
	for _, c := range children[pid] {
		total += tree(c, children)
	}
	return total
}

// stat returns the fields of /proc/PID/stat after the program's name, which may hold anything.
func stat(pid int) []string {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	return strings.Fields(rest)
}

// used is the CPU time of a process: utime and stime (2 fields), and that of its children that have ended (4).
func used(pid, fields int) time.Duration {
	f := stat(pid)
	if len(f) < 15 {
		return 0
	}
	var ticks int64
	for _, v := range f[11 : 11+fields] {
		n, err := strconv.ParseInt(v, 10, 64)
		if err == nil {
			ticks += n
		}
	}
	return time.Duration(ticks) * clockTick
}

func childrenOf() map[int][]int {
	out := map[int][]int{}
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return out
	}
	for _, dir := range dirs {
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil {
			continue
		}
		if f := stat(pid); len(f) > 1 {
			if parent, err := strconv.Atoi(f[1]); err == nil {
				out[parent] = append(out[parent], pid)
			}
		}
	}
	return out
}
