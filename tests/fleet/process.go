package fleet

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"postrider.dev/pkg/clock"
	"postrider.dev/pkg/localpg"
	"postrider.dev/pkg/pgtest"
	"postrider.dev/pkg/redistest"
	postrider "postrider.dev/sdk"
	"postrider.dev/stack"
)

// Process is one service as a process of its own.
type Process struct {
	Name string

	program string
	environ []string
	log     *os.File
	ready   string // URL of /readyz

	mu   sync.Mutex // guards cmd and done
	cmd  *exec.Cmd
	done chan struct{}
}

// Processes is a fleet of real processes over a PostgreSQL and a Redis of its own: per host an ingress, a dispatcher and a sidecar.
type Processes struct {
	Postgres *localpg.Server
	Redis    *redistest.Server
	Hosts    []*ProcessHost
}

// ProcessHost is one host of a fleet of processes.
type ProcessHost struct {
	HTTP, GRPC                   string
	Ingress, Dispatcher, Sidecar *Process
}

// StartProcesses starts hosts of real processes with a durable PostgreSQL and waits until all are ready. They end with the test.
func StartProcesses(t testing.TB, bin *Binaries, hosts int, extra ...string) *Processes {
	t.Helper()
	p := &Processes{Postgres: pgtest.NewServer(t, localpg.Options{Durable: true, MaxConnections: 200}), Redis: redistest.Start(t)}
	database := p.Postgres.DSN("postgres")
	require.NoError(t, stack.Migrate(t.Context(), clock.Real{}, Secret(database), func(string) {}))
	ports := listeners{}
	for n := range hosts {
		httpAddr, grpcAddr, dispatcher, sidecar := ports.open(t), ports.open(t), ports.open(t), ports.open(t)
		shared := append([]string{
			"POSTRIDER_DATABASE_URL=" + database, "POSTRIDER_REDIS_URL=" + p.Redis.URL(), "POSTRIDER_MIGRATE=false",
			fmt.Sprintf("POSTRIDER_HOST_ID=host-%d", n+1), "POSTRIDER_CLUSTER_SECRET=" + ClusterSecret, "PATH=" + os.Getenv("PATH"),
			"POSTRIDER_HINT_CARRIERS=" + os.Getenv("POSTRIDER_HINT_CARRIERS"),
		}, extra...)
		h := &ProcessHost{HTTP: "http://" + httpAddr, GRPC: grpcAddr}
		h.Sidecar = newProcess(t, bin, "meshhint", n, ports.open(t), append(shared, "POSTRIDER_MESHHINT_INTERNAL_ADDR="+sidecar))
		h.Dispatcher = newProcess(t, bin, "dispatcher", n, ports.open(t), append(shared,
			"POSTRIDER_DISPATCHER_ADDR="+dispatcher, "POSTRIDER_DISPATCHER_MESHHINT_ADDR="+sidecar))
		h.Ingress = newProcess(t, bin, "ingress", n, ports.open(t), append(shared, "POSTRIDER_INGRESS_HTTP_ADDR="+httpAddr,
			"POSTRIDER_INGRESS_GRPC_ADDR="+grpcAddr, "POSTRIDER_INGRESS_MESHHINT_ADDR="+sidecar, "POSTRIDER_INGRESS_ADMIN_KEY="+AdminKey))
		p.Hosts = append(p.Hosts, h)
	}
	for _, lis := range ports {
		require.NoError(t, lis.Close()) // the processes open them now
	}
	for _, h := range p.Hosts {
		for _, proc := range []*Process{h.Sidecar, h.Dispatcher, h.Ingress} {
			proc.Start(t)
		}
	}
	for _, h := range p.Hosts {
		for _, proc := range []*Process{h.Sidecar, h.Dispatcher, h.Ingress} {
			proc.AwaitReady(t)
		}
	}
	return p
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
	log, err := os.CreateTemp(t.TempDir(), fmt.Sprintf("%s-%d-*.log", service, host+1))
	require.NoError(t, err)
	p := &Process{
		Name: fmt.Sprintf("%s %d", service, host+1), program: bin.Path(t, service), log: log, ready: "http://" + admin + "/readyz",
		environ: append(append([]string(nil), environ...), "POSTRIDER_ADMIN_ADDR="+admin, "POSTRIDER_LOG_LEVEL=info"),
	}
	t.Cleanup(func() {
		p.Kill()
		if t.Failed() {
			text, _ := os.ReadFile(log.Name())
			t.Logf("log of %s (its end):\n%s", p.Name, text[max(0, len(text)-8000):])
		}
		_ = log.Close()
	})
	return p
}

// Start runs the process; one that runs is left alone.
func (p *Process) Start(t testing.TB) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd != nil {
		return
	}
	cmd := exec.Command(p.program) //nolint:gosec,noctx // built by the test; Kill ends it
	cmd.Env = p.environ
	cmd.Stdout, cmd.Stderr = p.log, p.log
	endWithParent(cmd)
	require.NoError(t, cmd.Start())
	done := make(chan struct{})
	go func() { // ends with the process
		_ = cmd.Wait()
		close(done)
	}()
	p.cmd, p.done = cmd, done
}

// Kill ends the process with -9 and waits until it is gone.
func (p *Process) Kill() { p.end(syscall.SIGKILL) }

// Terminate asks the process to drain and waits until it has ended.
func (p *Process) Terminate() { p.end(syscall.SIGTERM) }

func (p *Process) end(sig syscall.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil {
		return
	}
	_ = p.cmd.Process.Signal(sig) // it may have ended by itself
	if sig == syscall.SIGKILL {
		_ = p.cmd.Process.Signal(syscall.SIGCONT)
	}
	<-p.done
	p.cmd = nil
}

// Signal sends a signal, such as SIGSTOP.
func (p *Process) Signal(sig syscall.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd != nil {
		_ = p.cmd.Process.Signal(sig)
	}
}

// AwaitReady returns once the process says that it is ready.
func (p *Process) AwaitReady(t testing.TB) {
	t.Helper()
	var last string
	ok := func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.ready, nil)
		if err != nil {
			last = err.Error()
			return false
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			last = err.Error()
			return false
		}
		defer resp.Body.Close() //nolint:errcheck // read to its end
		var body bytes.Buffer
		_, _ = body.ReadFrom(resp.Body)
		last = body.String()
		return resp.StatusCode == http.StatusOK
	}
	require.Eventually(t, ok, startPatience, 50*time.Millisecond, "%s is not ready: %s", p.Name, &last)
}
