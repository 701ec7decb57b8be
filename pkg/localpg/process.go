package localpg

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"

	"postrider.dev/pkg/clock"
)

// quitPatience is how long an immediate stop may take before the process is killed.
const quitPatience = 5 * time.Second

// process is the server's main process and the goroutine that waits for it.
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when the process has ended
	err  error         // how it ended; read after done
}

// launch starts the program. The goroutine that forks keeps its thread until the process ends, because the kernel sends the parent death signal
// when the forking thread ends, not the process.
func launch(ctx context.Context, acct *account, program string, args []string, log *os.File) (*process, error) {
	cmd := exec.CommandContext(context.WithoutCancel(ctx), program, args...) //nolint:gosec // the programs are the operator's choice
	cmd.Env = environment()
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = attributes(acct)
	p := &process{cmd: cmd, done: make(chan struct{})}
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		err = errors.Join(err, log.Close())
		started <- err
		if err == nil {
			p.err = cmd.Wait()
		}
		close(p.done)
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("run %s: %w", program, err)
	}
	return p, nil
}

// environment holds nothing of ours: PGDATA, PGOPTIONS, PGPORT or a locale of the caller would change the server.
func environment() []string {
	return []string{"PATH=/usr/bin:/bin", "LC_ALL=C", "TZ=UTC", "HOME=/"}
}

// stop asks for a fast shutdown; when ctx ends first, for an immediate one, and kills what is left.
func (p *process) stop(ctx context.Context, clk clock.Clock) error {
	if p == nil || p.ended() {
		return nil
	}
	if err := p.signal(syscall.SIGINT); err != nil {
		return err
	}
	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
	}
	if err := p.signal(syscall.SIGQUIT); err != nil {
		return err
	}
	select {
	case <-p.done:
		return nil
	case <-clk.After(quitPatience):
		return p.kill()
	}
}

// kill ends the process and waits for it.
func (p *process) kill() error {
	if p == nil || p.ended() {
		return nil
	}
	if err := p.signal(syscall.SIGKILL); err != nil {
		return err
	}
	<-p.done
	return nil
}

func (p *process) signal(sig syscall.Signal) error {
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("send %v: %w", sig, err)
	}
	return nil
}

func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// maxLog is the size above which the log starts anew at a start of the server.
const maxLog = 16 << 20

// openLog opens the log for appending and returns its present end.
func openLog(path string) (*os.File, int64, error) {
	flags := os.O_CREATE | os.O_WRONLY | os.O_APPEND
	if info, err := os.Stat(path); err == nil && info.Size() > maxLog {
		flags |= os.O_TRUNC
	}
	f, err := os.OpenFile(path, flags, 0o600) //nolint:gosec // the path is ours
	if err != nil {
		return nil, 0, fmt.Errorf("open log: %w", err)
	}
	end, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, 0, errors.Join(fmt.Errorf("open log: %w", err), f.Close())
	}
	return f, end, nil
}

// readLog returns at most the last 4 kB written after offset.
func readLog(path string, offset int64) string {
	f, err := os.Open(path) //nolint:gosec // the path is ours
	if err != nil {
		return ""
	}
	defer f.Close() //nolint:errcheck // opened for reading
	if info, err := f.Stat(); err == nil {
		offset = max(offset, info.Size()-4096)
	}
	text, err := io.ReadAll(io.NewSectionReader(f, offset, 4096))
	if err != nil {
		return ""
	}
	return string(text)
}
