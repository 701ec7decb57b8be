package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"postrider.dev/pkg/clock"
	"postrider.dev/pkg/localpg"
)

const port = 18400

// Main starts a private PostgreSQL with fsync on and one host of Postrider on it, measures, and stops both.
func Main(ctx context.Context, program string, p Plan) (err error) {
	dir, err := os.MkdirTemp("", "postrider-bench-")
	if err != nil {
		return fmt.Errorf("data folder: %w", err)
	}
	defer os.RemoveAll(dir)                      //nolint:errcheck // a temporary folder
	if err := os.Chmod(dir, 0o755); err != nil { //nolint:gosec // an unprivileged PostgreSQL below must reach its data
		return fmt.Errorf("data folder: %w", err)
	}
	p.Dir = dir
	server, err := localpg.Start(ctx, clock.Real{}, localpg.Options{
		Dir: filepath.Join(dir, "pg"), Durable: true, MaxConnections: 200, SharedBuffers: "512MB",
		Settings: map[string]string{"max_wal_size": "8GB", "checkpoint_timeout": "15min"},
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Stop(context.WithoutCancel(ctx))) }()
	up, target, err := start(program, dir, server.DSN("postgres"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop(up)) }()
	sql, closeSQL, err := SQL(ctx, server.DSN("postgres"))
	if err != nil {
		return err
	}
	defer closeSQL()
	api, trials, closeAPI, err := Postrider(target)
	if err != nil {
		return err
	}
	defer closeAPI()
	postmaster, err := postmasterPID(server.DataDir())
	if err != nil {
		return err
	}
	procs := Processes{"postrider": up.Process.Pid, "postgres": postmaster, "client": os.Getpid()}
	if p.Profiles != "" {
		return Profile(ctx, p, fmt.Sprintf("http://127.0.0.1:%d", port+2), p.Profiles, procs, api)
	}
	version, err := os.ReadFile(filepath.Join(server.DataDir(), "PG_VERSION"))
	if err != nil {
		return fmt.Errorf("version of PostgreSQL: %w", err)
	}
	return Run(ctx, p, procs, append(sql, api...), trials, strings.TrimSpace(string(version)))
}

func postmasterPID(dataDir string) (int, error) {
	text, err := os.ReadFile(filepath.Join(dataDir, "postmaster.pid")) //nolint:gosec // our own server
	if err != nil {
		return 0, fmt.Errorf("postmaster: %w", err)
	}
	line, _, _ := strings.Cut(string(text), "\n")
	pid, err := strconv.Atoi(line)
	if err != nil {
		return 0, fmt.Errorf("postmaster: %w", err)
	}
	return pid, nil
}

// start runs `postrider up` and returns when it is ready.
func start(program, dir, dsn string) (*exec.Cmd, Target, error) {
	cmd := exec.Command(program, "up", "--data", filepath.Join(dir, "data"), "--port", strconv.Itoa(port)) //nolint:gosec,noctx // the caller's program; stop ends it
	cmd.Env = append(os.Environ(), "POSTRIDER_DATABASE_URL="+dsn)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, Target{}, fmt.Errorf("start: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, Target{}, fmt.Errorf("start %s: %w", program, err)
	}
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if !strings.HasPrefix(lines.Text(), "ready") {
			continue
		}
		go func() { _, _ = io.Copy(io.Discard, out) }() // ends with the process
		key, err := os.ReadFile(filepath.Join(dir, "data", "admin.key"))
		if err != nil {
			return nil, Target{}, errors.Join(fmt.Errorf("key: %w", err), stop(cmd))
		}
		return cmd, Target{
			HTTP: fmt.Sprintf("http://127.0.0.1:%d", port), GRPC: fmt.Sprintf("127.0.0.1:%d", port+1), Key: strings.TrimSpace(string(key)),
		}, nil
	}
	return nil, Target{}, errors.Join(errors.New("postrider ended before it was ready"), stop(cmd))
}

func stop(cmd *exec.Cmd) error {
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop: %w", err)
	}
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("stop: %w", err)
	}
	return nil
}
