package redistest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"postrider.dev/pkg/child"
	"postrider.dev/pkg/clock"
)

// AptLine is the command that brings redis-server on Debian and Ubuntu.
const AptLine = "apt-get install --no-install-recommends redis-server"

const (
	startTimeout = 20 * time.Second
	stopTimeout  = 5 * time.Second
	probeEvery   = 10 * time.Millisecond
)

// Options say where a server runs. Start runs it here, on loopback alone.
type Options struct {
	// Bind is the address to listen on, besides the Unix socket; whoever reaches it is let in.
	Bind string
	// Enter is child.Spec's: the network namespace that Bind is an address of, for example.
	Enter func() error
}

// Server is a real redis-server of one test's own. It keeps nothing on disk: a restart is an empty Redis.
type Server struct {
	t    testing.TB
	bin  string
	dir  string
	port int
	opts Options
	proc *child.Process
}

// Start runs a server until the test's end. When it returns, the server answers.
func Start(t testing.TB) *Server {
	t.Helper()
	return StartWith(t, Options{Bind: "127.0.0.1"})
}

// StartWith is Start with options.
func StartWith(t testing.TB, o Options) *Server {
	t.Helper()
	bin, err := exec.LookPath("redis-server")
	if err != nil {
		t.Fatalf("redis-server is needed: %s (%v)", AptLine, err)
	}
	dir, err := os.MkdirTemp("/tmp", "redistest-") // not t.TempDir: a socket's path is limited to 107 bytes
	if err != nil {
		t.Fatalf("redistest: %v", err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) }) // a leftover folder harms nobody
	s := &Server{t: t, bin: bin, dir: dir, opts: o}
	// The port is free when we ask and may be taken when the server does: then another is tried.
	for range 3 {
		if s.port, err = freePort(t.Context()); err == nil {
			err = s.start(t.Context())
		}
		if err == nil {
			break
		}
	}
	if err != nil {
		t.Fatalf("redistest: %v", err)
	}
	t.Cleanup(s.Stop)
	return s
}

// URL is the server's address over its Unix socket.
func (s *Server) URL() string { return "unix://" + s.socket() }

// TCPURL is the server's address over TCP; Addr is the same for a proxy.
func (s *Server) TCPURL() string { return "redis://" + s.Addr() }

// Addr is the server's TCP address.
func (s *Server) Addr() string { return net.JoinHostPort(s.opts.Bind, strconv.Itoa(s.port)) }

func (s *Server) socket() string { return filepath.Join(s.dir, "redis.sock") }

// Stop ends the server. Stopping a stopped server is fine.
func (s *Server) Stop() {
	s.t.Helper()
	ctx := context.WithoutCancel(s.t.Context())
	if err := s.proc.Stop(ctx, clock.Real{}, child.Step{Signal: syscall.SIGTERM, Patience: stopTimeout}); err != nil {
		s.t.Errorf("redistest: stop: %v", err)
	}
}

// Restart stops the server if it runs, and starts it again at the same addresses.
func (s *Server) Restart() {
	s.t.Helper()
	s.Stop()
	if err := s.start(s.t.Context()); err != nil {
		s.t.Fatalf("redistest: restart: %v", err)
	}
}

// Freeze stops the server's execution: connections stay open and nothing answers. Thaw ends it.
func (s *Server) Freeze() { s.signal(syscall.SIGSTOP) }

// Thaw ends Freeze.
func (s *Server) Thaw() { s.signal(syscall.SIGCONT) }

func (s *Server) signal(sig syscall.Signal) {
	s.t.Helper()
	if err := s.proc.Signal(sig); err != nil {
		s.t.Fatalf("redistest: %v", err)
	}
}

func (s *Server) start(ctx context.Context) error {
	log, err := os.Create(filepath.Join(s.dir, "redis.log")) // the path is ours
	if err != nil {
		return err
	}
	s.proc, err = child.Launch(ctx, child.Spec{
		Program: s.bin, Output: log, Dir: s.dir, Env: []string{"LC_ALL=C"}, Enter: s.opts.Enter,
		Args: []string{
			"--port", strconv.Itoa(s.port), "--bind", s.opts.Bind, "--protected-mode", "no", "--unixsocket", s.socket(), "--unixsocketperm", "700",
			"--save", "", "--appendonly", "no", "--daemonize", "no", "--dir", s.dir,
		},
	})
	if err != nil {
		return err
	}
	if err := s.awaitReady(ctx); err != nil {
		return errors.Join(err, s.proc.Kill())
	}
	return nil
}

func (s *Server) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	client := redis.NewClient(&redis.Options{Network: "unix", Addr: s.socket(), MaxRetries: -1, DialerRetries: 1, Protocol: 2, DisableIdentity: true})
	defer client.Close() //nolint:errcheck // a probe
	for {
		err := client.Ping(ctx).Err()
		if err == nil {
			return nil
		}
		if s.proc.Ended() {
			log, rerr := os.ReadFile(filepath.Join(s.dir, "redis.log"))
			return errors.Join(fmt.Errorf("redis-server did not start: %w: %s", s.proc.Err(), log), rerr)
		}
		if serr := (clock.Real{}).Sleep(ctx, probeEvery); serr != nil {
			return errors.Join(serr, err)
		}
	}
}

// freePort asks the kernel for a port nobody uses now.
func freePort(ctx context.Context) (int, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("find a free port: %w", err)
	}
	defer l.Close() //nolint:errcheck // nothing was sent
	addr, ok := l.Addr().(*net.TCPAddr)
	if !ok {
		return 0, fmt.Errorf("find a free port: address %v is not TCP", l.Addr())
	}
	return addr.Port, nil
}
