// Package child runs a program as a child that does not outlive us.
//
// It differs from os/exec in what surprises people about children:
//   - A Ctrl-C in the terminal reaches us, not the child, which has a process group of its own: we stop it, in our order.
//   - When we die, even by kill -9, the kernel sends the child a signal (Linux). The kernel sends it when the thread that forked ends, so that
//     thread is kept until the child ends.
//   - Its output goes to a file, not through a pipe: a grandchild that outlives the child cannot keep Wait waiting.
//   - It is waited for, so it is never a zombie, and Done says that it has really ended.
package child

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"

	"postrider.dev/pkg/clock"
)

// Spec says what to run.
type Spec struct {
	Program string
	Args    []string
	// Env is the whole environment; nothing is inherited.
	Env []string
	// Dir is the working folder; "/" when empty.
	Dir string
	// Output receives stdout and stderr; nil discards them. Launch closes it in this process.
	Output *os.File
	// DeathSignal is what the child gets when we die, where the system can do that; SIGKILL when 0.
	DeathSignal syscall.Signal
	// User to run as; nil is the current one.
	User *User
	// Enter, when set, is run on the thread that starts the program, right before: what it makes of the thread (a network namespace entered, for
	// example) the child inherits. The thread ends with the child. An error of it is Launch's.
	Enter func() error
}

// User is the account a child drops to.
type User struct{ UID, GID uint32 }

// Process is a started child. Its methods are safe for concurrent use.
type Process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when the process has ended
	err  error         // how it ended; read after done
}

// Launch starts the program. ctx bounds the start only.
func Launch(ctx context.Context, spec Spec) (*Process, error) {
	cmd := exec.CommandContext(context.WithoutCancel(ctx), spec.Program, spec.Args...) // to run a program is the purpose
	cmd.Env, cmd.Dir = spec.Env, spec.Dir
	if cmd.Env == nil {
		cmd.Env = []string{}
	}
	if cmd.Dir == "" {
		cmd.Dir = "/"
	}
	if spec.Output != nil {
		cmd.Stdout, cmd.Stderr = spec.Output, spec.Output
	}
	if spec.DeathSignal == 0 {
		spec.DeathSignal = syscall.SIGKILL
	}
	cmd.SysProcAttr = attributes(spec)
	p := &Process{cmd: cmd, done: make(chan struct{})}
	started := make(chan error)
	go p.run(spec, started)
	if err := <-started; err != nil {
		return nil, fmt.Errorf("run %s: %w", spec.Program, err)
	}
	return p, nil
}

func (p *Process) run(spec Spec, started chan<- error) {
	runtime.LockOSThread() // see the package comment
	defer close(p.done)
	var err error
	if spec.Enter != nil {
		err = spec.Enter() // and the thread is left locked: it ends with this goroutine, for nobody else may run on it
	} else {
		defer runtime.UnlockOSThread()
	}
	if err == nil {
		err = p.cmd.Start()
	}
	if spec.Output != nil {
		err = errors.Join(err, spec.Output.Close())
	}
	started <- err
	if err == nil {
		p.err = p.cmd.Wait()
	}
}

// PID is the child's process id. It may belong to someone else once Done is closed.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Done is closed when the child has ended and been waited for.
func (p *Process) Done() <-chan struct{} { return p.done }

// Err says how the child ended: nil for exit code 0. It waits for the end.
func (p *Process) Err() error {
	<-p.done
	return p.err
}

// Ended says whether the child has ended.
func (p *Process) Ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// Signal sends a signal. A child that has ended is no error.
func (p *Process) Signal(sig syscall.Signal) error {
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("send %v: %w", sig, err)
	}
	return nil
}

// Kill ends the child at once and waits for the end.
func (p *Process) Kill() error {
	if err := p.Signal(syscall.SIGKILL); err != nil {
		return err
	}
	<-p.done
	return nil
}

// Step is one way to ask a child to end, and how long to wait for it.
type Step struct {
	Signal   syscall.Signal
	Patience time.Duration
}

// Stop asks with each step's signal in turn, until the child has ended; then it kills it. The first step also ends with ctx.
// How the child ended is Err's business, not Stop's.
func (p *Process) Stop(ctx context.Context, clk clock.Clock, steps ...Step) error {
	hurry := ctx.Done()
	for _, step := range steps {
		if p.Ended() {
			return nil
		}
		if err := p.Signal(step.Signal); err != nil {
			return err
		}
		if p.await(hurry, clk, step.Patience) {
			return nil
		}
		hurry = nil
	}
	return p.Kill()
}

func (p *Process) await(hurry <-chan struct{}, clk clock.Clock, patience time.Duration) bool {
	timer := clk.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-p.done:
		return true
	case <-timer.C():
	case <-hurry:
	}
	return p.Ended()
}
