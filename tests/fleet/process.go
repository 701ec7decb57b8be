package fleet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"postrider.dev/pkg/child"
	"postrider.dev/pkg/clock"
	"postrider.dev/pkg/localpg"
	"postrider.dev/pkg/pgtest"
	"postrider.dev/pkg/redistest"
	postrider "postrider.dev/sdk"
	"postrider.dev/stack"
	"postrider.dev/tests/hintfault"
)

// Process is one service as a process of its own.
type Process struct {
	Name string
	// Admin is the admin listener, host:port.
	Admin string

	program string
	args    []string
	environ []string
	log     string
	enter   func() error

	mu    sync.Mutex // guards child
	child *child.Process
}

// Processes is a fleet of real processes over a PostgreSQL and a Redis of its own: per host an ingress, a dispatcher and a sidecar.
type Processes struct {
	Postgres *localpg.Server
	Redis    *redistest.Server
	Hosts    []*ProcessHost
	// Singles are a scheduler and an audit service, if asked for.
	Singles []*Process
}

// ProcessHost is one host of a fleet of processes.
type ProcessHost struct {
	HTTP, GRPC                   string
	Ingress, Dispatcher, Sidecar *Process
	// Disk is what the dispatcher's spool lies on; nil unless SmallSpools.
	Disk *Disk
}

// ProcessOptions describe a fleet of processes.
type ProcessOptions struct {
	Hosts int
	// Env is added to the environment of every process.
	Env []string
	// Singles adds a scheduler and an audit service.
	Singles bool
	// Through, when set, puts something between the hosts: it returns the address under which others reach what listens at addr.
	Through func(name, addr string) string
	// Mesh joins the hosts by TCP, each by name, and not by Redis unless Redis is set.
	Mesh, Redis bool
	// SmallSpools gives each dispatcher a spool on a small disk of its own, see Disk.
	SmallSpools bool
}

// StartProcesses starts hosts of real processes with a durable PostgreSQL and waits until all are ready. They end with the test.
func StartProcesses(t testing.TB, bin *Binaries, hosts int, extra ...string) *Processes {
	t.Helper()
	return StartProcessesWith(t, bin, ProcessOptions{Hosts: hosts, Env: extra})
}

// StartProcessesWith is StartProcesses with options.
func StartProcessesWith(t testing.TB, bin *Binaries, o ProcessOptions) *Processes {
	t.Helper()
	p := &Processes{Postgres: pgtest.NewServer(t, localpg.Options{Durable: true, MaxConnections: 200}), Redis: redistest.Start(t)}
	database := p.Postgres.DSN("postgres")
	require.NoError(t, stack.Migrate(t.Context(), clock.Real{}, Secret(database), func(string) {}))
	redis := p.Redis.URL()
	if o.Through != nil {
		redis = "redis://" + o.Through("redis", p.Redis.Addr())
	}
	env := func(host int) []string {
		return append([]string{
			"POSTRIDER_DATABASE_URL=" + database, "POSTRIDER_REDIS_URL=" + redis, "POSTRIDER_MIGRATE=false",
			fmt.Sprintf("POSTRIDER_HOST_ID=host-%d", host+1), "POSTRIDER_CLUSTER_SECRET=" + ClusterSecret, "PATH=" + os.Getenv("PATH"),
			"POSTRIDER_HINT_CARRIERS=" + os.Getenv("POSTRIDER_HINT_CARRIERS"), hintfault.Variable + "=" + hintfault.FromEnv(),
		}, o.Env...)
	}
	meshes := o.meshes(t)
	for n := range o.Hosts {
		own := append(env(n), meshes[n]...)
		var disk *Disk
		if o.SmallSpools {
			disk = newDisk(t)
			own = append(own, Spool(disk.dir))
		}
		host := newHost(t, bin, n, own, o.Through)
		if disk != nil {
			host.Disk, disk.process = disk, host.Dispatcher
		}
		p.Hosts = append(p.Hosts, host)
	}
	if o.Singles {
		p.Singles = append(p.Singles,
			newProcess(t, bin, "scheduler", 0, freeAddr(t), append(env(0), "POSTRIDER_SCHEDULER_ADDR="+freeAddr(t))),
			newProcess(t, bin, "audit", 0, freeAddr(t), append(env(0), "POSTRIDER_AUDIT_ADDR="+freeAddr(t))))
	}
	for _, proc := range p.All() {
		proc.Start(t)
	}
	for _, proc := range p.All() {
		proc.AwaitReady(t)
	}
	return p
}

// All are the fleet's processes, without its servers.
func (p *Processes) All() []*Process {
	list := append([]*Process(nil), p.Singles...)
	for _, h := range p.Hosts {
		list = append(list, h.Sidecar, h.Dispatcher, h.Ingress)
	}
	return list
}

func newHost(t testing.TB, bin *Binaries, n int, env []string, through func(name, addr string) string) *ProcessHost {
	t.Helper()
	httpAddr, grpcAddr, dispatcher, sidecar := freeAddr(t), freeAddr(t), freeAddr(t), freeAddr(t)
	h := &ProcessHost{HTTP: "http://" + httpAddr, GRPC: grpcAddr}
	with := func(own ...string) []string { return append(append([]string(nil), env...), own...) }
	h.Sidecar = newProcess(t, bin, "meshhint", n, freeAddr(t), with("POSTRIDER_MESHHINT_INTERNAL_ADDR="+sidecar))
	reached := dispatcher
	if through != nil {
		reached = through(fmt.Sprintf("dispatcher %d", n+1), dispatcher)
	}
	h.Dispatcher = newProcess(t, bin, "dispatcher", n, freeAddr(t), with("POSTRIDER_DISPATCHER_ADDR="+dispatcher,
		"POSTRIDER_DISPATCHER_ADVERTISE_ADDR="+reached, "POSTRIDER_DISPATCHER_MESHHINT_ADDR="+sidecar, spoolOf(env, n)))
	h.Ingress = newProcess(t, bin, "ingress", n, freeAddr(t), with("POSTRIDER_INGRESS_HTTP_ADDR="+httpAddr,
		"POSTRIDER_INGRESS_GRPC_ADDR="+grpcAddr, "POSTRIDER_INGRESS_MESHHINT_ADDR="+sidecar, "POSTRIDER_INGRESS_ADMIN_KEY="+AdminKey))
	return h
}

const spoolDir = "POSTRIDER_DISPATCHER_SPOOL_DIR="

// Spool gives each dispatcher of a fleet of processes a spool, each in a folder of its own under dir.
func Spool(dir string) string { return spoolDir + dir }

func spoolOf(extra []string, host int) string {
	for _, setting := range extra {
		if dir, ok := strings.CutPrefix(setting, spoolDir); ok {
			return spoolDir + filepath.Join(dir, fmt.Sprintf("host-%d", host+1))
		}
	}
	return spoolDir
}

// Client talks to the hosts given by index, or to all.
func (p *Processes) Client(t testing.TB, hosts ...int) *postrider.Client {
	t.Helper()
	var addrs []string
	for i, h := range p.Hosts {
		if len(hosts) == 0 || contains(hosts, i) {
			addrs = append(addrs, h.GRPC)
		}
	}
	return Dial(t, AdminKey, addrs...)
}

func contains(list []int, n int) bool {
	for _, v := range list {
		if v == n {
			return true
		}
	}
	return false
}

func newProcess(t testing.TB, bin *Binaries, service string, host int, admin string, environ []string) *Process {
	t.Helper()
	return NewProcess(t, ProcessSpec{
		Name: fmt.Sprintf("%s %d", service, host+1), Admin: admin, Program: bin.Path(t, service),
		Env: append(append([]string(nil), environ...), "POSTRIDER_ADMIN_ADDR="+admin, "POSTRIDER_LOG_LEVEL=info"),
	})
}

// ProcessSpec describes a process of ours.
type ProcessSpec struct {
	Name string
	// Admin is where its admin listener is reached, host:port.
	Admin   string
	Program string
	Args    []string
	Env     []string
	// Enter is child.Spec's.
	Enter func() error
}

// NewProcess returns a process that Start runs and that is killed with the test, which tells the end of its log when it failed.
func NewProcess(t testing.TB, s ProcessSpec) *Process {
	t.Helper()
	p := &Process{
		Name: s.Name, Admin: s.Admin, program: s.Program, args: s.Args, environ: s.Env, enter: s.Enter,
		log: filepath.Join(t.TempDir(), strings.ReplaceAll(s.Name, " ", "-")+".log"),
	}
	t.Cleanup(func() {
		p.Kill()
		if t.Failed() {
			text, _ := os.ReadFile(p.log)
			t.Logf("log of %s (its end):\n%s", p.Name, text[max(0, len(text)-8000):])
		}
	})
	return p
}

// Start runs the process; one that runs is left alone.
func (p *Process) Start(t testing.TB) {
	t.Helper()
	require.NoError(t, p.Launch(t.Context()))
}

// Launch is Start outside the goroutine of a test.
func (p *Process) Launch(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.child != nil {
		return nil
	}
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("log of %s: %w", p.Name, err)
	}
	p.child, err = child.Launch(ctx, child.Spec{Program: p.program, Args: p.args, Env: p.environ, Output: log, Enter: p.enter})
	return err
}

// Revive does what a supervisor does: a process that ended by itself is started again. That is allowed to one that waited in vain for its database when it
// started (exit code 1); anything else, such as a panic, is returned as an error.
func (p *Process) Revive(ctx context.Context) error {
	p.mu.Lock()
	if p.child == nil || !p.child.Ended() {
		p.mu.Unlock()
		return nil
	}
	ended, refused := p.child.Err(), false
	if exit, ok := errors.AsType[*exec.ExitError](ended); ok {
		refused = exit.ExitCode() == 1
	}
	p.child = nil
	p.mu.Unlock()
	if !refused {
		return fmt.Errorf("%s ended by itself: %w", p.Name, ended)
	}
	return p.Launch(ctx)
}

// Kill ends the process with -9 and waits until it is gone.
func (p *Process) Kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.child != nil {
		_ = p.child.Kill() // it may have ended by itself
		p.child = nil
	}
}

// Terminate asks the process to drain and waits until it has ended, or kills it after a minute.
func (p *Process) Terminate(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.child == nil {
		return nil
	}
	defer func() { p.child = nil }()
	return p.child.Stop(ctx, clock.Real{}, child.Step{Signal: syscall.SIGTERM, Patience: time.Minute})
}

// Signal sends a signal, such as SIGSTOP.
func (p *Process) Signal(sig syscall.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.child != nil {
		_ = p.child.Signal(sig) // it may have ended by itself
	}
}

// AwaitReady returns once the process says that it is ready.
func (p *Process) AwaitReady(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startPatience)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := p.askReady(ctx)
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("%s is not ready after %s: %v", p.Name, startPatience, err)
		}
	}
}

func (p *Process) askReady(ctx context.Context) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.Admin+"/readyz", nil)
	if err != nil {
		return fmt.Errorf("ask: %w", err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("ask: %w", err)
	}
	defer resp.Body.Close() //nolint:errcheck // read to its end
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", resp.Status, body)
	}
	return err
}
