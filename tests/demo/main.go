package demo

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// settings are the command's flags.
type settings struct {
	program, corpus string
	port            int
	messages, again int
	timeout         time.Duration
}

// Main runs the demonstration and returns 0 when every promise held, 1 when not, 2 when it was called wrongly.
func Main() int {
	var s settings
	flag.StringVar(&s.program, "postrider", "bin/postrider", "the postrider program")
	flag.StringVar(&s.corpus, "corpus", "tests/testdata/webhooks.ndjson", "messages, one JSON object a line")
	flag.IntVar(&s.port, "port", 17400, "first port of the two hosts")
	flag.IntVar(&s.messages, "messages", 50_000, "messages of the first run")
	flag.IntVar(&s.again, "killed-messages", 20_000, "messages of the second run, in which host A is killed")
	flag.DurationVar(&s.timeout, "timeout", 10*time.Minute, "most time for all of it")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	broken, err := s.run(ctx)
	switch {
	case err != nil:
		_, _ = fmt.Fprintln(os.Stderr, "demo:", err)
		return 1
	case broken > 0:
		_, _ = fmt.Printf("\n%d promises were broken\n", broken)
		return 1
	default:
		_, _ = fmt.Println("\nevery promise held")
		return 0
	}
}

func (s settings) run(ctx context.Context) (broken int, err error) {
	corpus, err := ReadCorpus(s.corpus)
	if err != nil {
		return 0, err
	}
	dir, err := os.MkdirTemp("", "postrider-demo-")
	if err != nil {
		return 0, fmt.Errorf("data folder: %w", err)
	}
	defer os.RemoveAll(dir) //nolint:errcheck // a temporary folder
	if err := os.Chmod(dir, 0o755); err != nil {
		return 0, fmt.Errorf("data folder: %w", err)
	}
	up, err := startUp(ctx, s, dir)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, up.stop()) }()

	groups := []string{"billing", "search"}
	first := Run{
		Key: up.key, Queue: "webhooks", Producers: []string{up.hosts[0]}, Consumers: []string{up.hosts[1]}, Corpus: corpus, Messages: s.messages,
		Groups: groups, PerGroup: 4, Batch: 100, Lease: 30 * time.Second, Progress: progress(s.messages),
	}
	_, _ = fmt.Printf("run 1: %d webhooks pushed over REST on host A, consumed on host B by 2 groups of 4\n", s.messages)
	outcome, err := first.Go(ctx)
	if err != nil {
		return 0, err
	}
	broken = outcome.Report(os.Stdout, "run 1, calm", s.messages, groups)

	second := first
	second.Queue, second.Messages, second.Progress = "webhooks-killed", s.again, progress(s.again)
	second.Producers, second.Consumers = up.hosts, []string{up.hosts[1], up.hosts[0]}
	second.Lease, second.At = 5*time.Second, s.again*4/10
	var killed error
	second.Fault = func(at Flight) {
		killed = up.kill(0)
		_, _ = fmt.Printf("\nhost A killed with -9: %d of %d pushes acknowledged, %d acked by %s, %d messages leased and unacked at that moment\n",
			at.Pushed, s.again, at.Acked, groups[0], at.Leased)
	}
	_, _ = fmt.Printf("\nrun 2: %d webhooks, host A is killed at 40 %%\n", s.again)
	outcome, err = second.Go(ctx)
	if err = errors.Join(err, killed); err != nil {
		return broken, err
	}
	return broken + outcome.Report(os.Stdout, "run 2, host A killed", s.again, groups), nil
}

// progress returns a function that rewrites one line on a terminal, and says nothing elsewhere.
func progress(total int) func(pushed, acked int) {
	info, err := os.Stdout.Stat()
	if err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return func(int, int) {}
	}
	return func(pushed, acked int) { _, _ = fmt.Printf("\r  pushed %d, acked %d of %d ", pushed, acked, total) }
}

// fleet is `postrider up --hosts 2` as a process.
type fleet struct {
	cmd   *exec.Cmd
	dir   string
	key   string
	hosts []string
}

// startUp starts the hosts and returns when they are ready.
func startUp(ctx context.Context, s settings, dir string) (*fleet, error) {
	cmd := exec.Command(s.program, "up", "--hosts", "2", "--data", dir, "--port", strconv.Itoa(s.port)) //nolint:noctx // the caller's program; stop ends it
	cmd.Env = withoutServers(os.Environ())
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("start: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", s.program, err)
	}
	f := &fleet{cmd: cmd, dir: dir, hosts: []string{fmt.Sprintf("http://127.0.0.1:%d", s.port), fmt.Sprintf("http://127.0.0.1:%d", s.port+10)}}
	ready := make(chan error, 1)
	go func() { ready <- awaitReady(out) }() // ends at the ready line or with the process
	select {
	case err = <-ready:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	if err == nil {
		var key []byte
		key, err = os.ReadFile(filepath.Join(dir, "admin.key"))
		f.key = strings.TrimSpace(string(key))
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start two hosts: %w", err), f.stop())
	}
	return f, nil
}

// withoutServers is the environment without servers that a caller may have set: the demonstration kills things and has its own.
func withoutServers(environ []string) []string {
	var out []string
	for _, v := range environ {
		if !strings.HasPrefix(v, "POSTRIDER_") {
			out = append(out, v)
		}
	}
	return out
}

func awaitReady(out io.Reader) error {
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if strings.HasPrefix(lines.Text(), "ready") {
			go func() { _, _ = io.Copy(io.Discard, out) }() // ends with the process
			return nil
		}
	}
	return errors.New("it ended before it was ready")
}

// kill ends a host with -9.
func (f *fleet) kill(n int) error {
	text, err := os.ReadFile(filepath.Join(f.dir, fmt.Sprintf("host-%d.pid", n+1)))
	if err != nil {
		return fmt.Errorf("kill host: %w", err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return fmt.Errorf("kill host: %w", err)
	}
	return syscall.Kill(pid, syscall.SIGKILL)
}

// stop drains what is left.
func (f *fleet) stop() error {
	if err := f.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("stop: %w", err)
	}
	if err := f.cmd.Wait(); err != nil {
		return fmt.Errorf("stop: %w", err)
	}
	return nil
}
