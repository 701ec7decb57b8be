package up

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"postrider.dev/pkg/clock"
	"postrider.dev/pkg/run"
)

// ReadyLine is what a host process prints on its standard output once it is ready.
const ReadyLine = "ready"

const (
	// hostPatience is how long a host gets to drain before it is killed.
	hostPatience = 40 * time.Second
	readyWait    = 60 * time.Second
)

// runFleet runs each host as a process of its own. A host that dies is reported and the others go on, as on real machines; the fleet ends with ctx, or
// when no host is left.
func runFleet(ctx context.Context, clk clock.Clock, o Options, environ []string, ready func()) error {
	hosts := make([]*host, o.Hosts)
	for i := range hosts {
		h, err := startHost(o, i, environ)
		if err != nil {
			return errors.Join(err, stopAll(ctx, hosts[:i]))
		}
		hosts[i] = h
		// One after another: the first migrates, and a fleet that cannot start says so once.
		if err := h.awaitReady(ctx, clk); err != nil {
			return errors.Join(err, stopAll(ctx, hosts[:i+1]))
		}
	}
	ready()
	parts := make([]run.Part, 0, len(hosts)+1)
	left := make(chan struct{}, len(hosts))
	for _, h := range hosts {
		parts = append(parts, run.Part{Name: h.name, Run: func(ctx context.Context) error {
			select {
			case <-h.exited:
				o.say("%s ended: %v; the others go on (log: %s)", h.name, h.err, h.logFile)
				left <- struct{}{}
				<-ctx.Done()
			case <-ctx.Done():
			}
			return nil
		}})
	}
	parts = append(parts, run.Part{Name: "fleet", Run: func(ctx context.Context) error {
		for range hosts {
			select {
			case <-left:
			case <-ctx.Done():
				return nil
			}
		}
		return errors.New("no host is left")
	}})
	err := run.All(ctx, parts...)
	return errors.Join(err, stopAll(ctx, hosts))
}

// host is one host process.
type host struct {
	name, logFile, pidFile string
	cmd                    *exec.Cmd
	ready                  chan struct{} // closed at the ready line
	exited                 chan struct{} // closed at the end of the process; err is set before
	err                    error
}

func startHost(o Options, n int, environ []string) (*host, error) {
	log, err := hostLog(o.Dir, n)
	if err != nil {
		return nil, err
	}
	h := &host{
		name: fmt.Sprintf("host %d", n+1), logFile: log.Name(), pidFile: filepath.Join(o.Dir, fmt.Sprintf("host-%d.pid", n+1)),
		ready: make(chan struct{}), exited: make(chan struct{}),
	}
	h.cmd = exec.Command(o.Program, "host") //nolint:noctx // this program itself; stopAll ends it
	h.cmd.Env = append(append(append([]string{}, environ...), PortsOf(o.Port, n).environ(true)...), fmt.Sprintf("POSTRIDER_HOST_ID=host-%d", n+1), o.spoolOf(n))
	h.cmd.Stderr = log
	bindToParent(h.cmd)
	out, err := h.cmd.StdoutPipe()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", h.name, err), log.Close())
	}
	started := make(chan error)
	go h.run(out, log, started) // ends with the process; stopAll waits for it
	if err := <-started; err != nil {
		return nil, fmt.Errorf("%s: %w", h.name, err)
	}
	if err := os.WriteFile(h.pidFile, []byte(strconv.Itoa(h.cmd.Process.Pid)+"\n"), 0o600); err != nil {
		o.say("%s: %v", h.name, err)
	}
	return h, nil
}

// run starts the process, reads its output and waits for its end. The thread is kept so long: the system takes the end of the thread that started a
// process for the end of its parent.
func (h *host) run(out io.Reader, log *os.File, started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := h.cmd.Start()
	if err != nil {
		err = errors.Join(err, log.Close())
	}
	started <- err
	if err != nil {
		return
	}
	lines := bufio.NewScanner(out)
	announced := false
	for lines.Scan() {
		if lines.Text() == ReadyLine && !announced {
			announced = true
			close(h.ready)
		}
	}
	h.err = h.cmd.Wait()
	_ = log.Close()
	_ = os.Remove(h.pidFile)
	close(h.exited)
}

func (h *host) awaitReady(ctx context.Context, clk clock.Clock) error {
	select {
	case <-h.ready:
		return nil
	case <-h.exited:
		return fmt.Errorf("%s ended before it was ready: %w; see %s", h.name, h.err, h.logFile)
	case <-clk.After(readyWait):
		return fmt.Errorf("%s is not ready after %s; see %s", h.name, readyWait, h.logFile)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// stopAll tells every host to drain, waits, and kills what is left after a while.
func stopAll(ctx context.Context, hosts []*host) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), hostPatience)
	defer cancel()
	for _, h := range hosts {
		_ = h.cmd.Process.Signal(syscall.SIGTERM) // one that has ended need not be told
	}
	var errs []error
	for _, h := range hosts {
		select {
		case <-h.exited:
		case <-ctx.Done():
			errs = append(errs, fmt.Errorf("%s did not drain in %s and was killed", h.name, hostPatience), h.cmd.Process.Kill())
			<-h.exited
		}
	}
	return errors.Join(errs...)
}
