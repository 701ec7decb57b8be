package localpg

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"postrider.dev/pkg/child"
	"postrider.dev/pkg/clock"
)

// ownerLock, in the server's folder, is locked by the process that owns it.
const ownerLock = "owner.lock"

// superuser is the role initdb creates.
const superuser = "postgres"

// probeEvery is how often a starting server is asked whether it is ready.
const probeEvery = 20 * time.Millisecond

// predecessorPatience bounds the wait for a crashed predecessor's processes to leave the data folder.
const predecessorPatience = 10 * time.Second

// How long a fast and then an immediate shutdown may take.
const (
	stopPatience = time.Minute
	quitPatience = 5 * time.Second
)

// Server is a running (or stopped, or killed) private server. Its methods are safe for concurrent use; Start, Stop, Restart and Kill exclude
// one another.
type Server struct {
	opts    Options
	acct    *account
	clk     clock.Clock
	dir     string // with data/ and server.log
	sockets string
	port    int
	lock    *os.File // flock: this process owns dir

	mu       sync.Mutex // held during a change of state; guards what follows
	proc     *child.Process
	password string
}

// Start initialises the data folder when there is none and runs a server on it. When it returns nil the server accepts connections, crash
// recovery included. ctx bounds the start only.
//
// It returns *MissingError without programs, *VersionError for another version's data, ErrInUse when another process owns the folder, and
// *StartError with the log when the server gives up.
func Start(ctx context.Context, clk clock.Clock, opts Options) (*Server, error) {
	if opts.Dir == "" {
		return nil, errors.New("localpg: no folder given")
	}
	if opts.Binaries.Dir == "" {
		found, err := Find(ctx)
		if err != nil {
			return nil, err
		}
		opts.Binaries = found
	}
	acct, err := unprivileged()
	if err != nil {
		return nil, err
	}
	dir, err := acct.place(opts.Dir)
	if err != nil {
		return nil, err
	}
	s := &Server{opts: opts, acct: acct, clk: clk, dir: dir, port: 5432}
	if err := s.open(ctx); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// open makes the folders, takes the lock and starts the server for the first time.
func (s *Server) open(ctx context.Context) error {
	if err := s.acct.mkdir(s.dir); err != nil {
		return err
	}
	lock, err := lockFile(filepath.Join(s.dir, ownerLock))
	if err != nil {
		return fmt.Errorf("own %s: %w", s.dir, err)
	}
	s.lock = lock
	if err := s.initialise(ctx); err != nil {
		return err
	}
	if s.sockets, err = s.acct.socketDir(s.dir); err != nil {
		return err
	}
	if s.opts.TCP {
		if s.port, err = freePort(ctx); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.start(ctx)
}

// close gives back what open took, the server's process excepted.
func (s *Server) close() {
	if s.sockets != "" {
		_ = os.RemoveAll(s.sockets) // a leftover empty folder harms nobody
	}
	if s.lock != nil {
		_ = s.lock.Close() // closing releases the lock whatever it returns
	}
}

// DataDir is where the cluster lies: Options.Dir/data, or elsewhere when the server's user could not reach it.
func (s *Server) DataDir() string { return filepath.Join(s.dir, "data") }

// LogFile is the server's log.
func (s *Server) LogFile() string { return filepath.Join(s.dir, "server.log") }

// Binaries are the programs in use.
func (s *Server) Binaries() Binaries { return s.opts.Binaries }

// DSN is a superuser's connection string over the Unix socket.
func (s *Server) DSN(database string) string {
	u := url.URL{Scheme: "postgres", User: url.User(superuser), Path: "/" + database, RawQuery: url.Values{
		"host": {s.sockets}, "port": {strconv.Itoa(s.port)}, "sslmode": {"disable"},
	}.Encode()}
	return u.String()
}

// TCPDSN is a superuser's connection string over 127.0.0.1; empty without Options.TCP. The password changes at each Start.
func (s *Server) TCPDSN(database string) string {
	if !s.opts.TCP {
		return ""
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	u := url.URL{
		Scheme: "postgres", User: url.UserPassword(superuser, s.password), Host: net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)),
		Path: "/" + database, RawQuery: "sslmode=disable",
	}
	return u.String()
}

// Exited is closed when the server's present process has ended, whatever ended it.
func (s *Server) Exited() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.proc.Done()
}

// Stop ends the server cleanly: open sessions are closed, the data is consistent and needs no recovery. When ctx ends first the server is
// stopped at once, and recovers at its next start. Afterwards the folder is free; Stop of a stopped server is nil.
func (s *Server) Stop(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.stop(ctx)
	s.close()
	return err
}

// Kill ends the server with SIGKILL, as a crash would, its sessions' processes included: alone, those would serve on for a moment. When it returns
// nobody serves the data. The folder stays owned: Restart brings the server back, through crash recovery.
func (s *Server) Kill(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc.Ended() {
		return nil
	}
	if err := s.proc.Signal(syscall.SIGSTOP); err != nil { // it must not fork while we look
		return err
	}
	sessions, err := childrenOf(ctx, s.proc.PID())
	return errors.Join(err, s.proc.Kill(), signalEach(sessions, syscall.SIGKILL))
}

// Restart stops the server cleanly if it runs, and starts it again at the same address. When it returns nil it accepts connections.
func (s *Server) Restart(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.stop(ctx); err != nil {
		return err
	}
	return s.start(ctx)
}

// Freeze stops the execution of the server and its sessions: connections stay open and nothing answers. Thaw ends it.
func (s *Server) Freeze(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.signalAll(ctx, syscall.SIGSTOP)
}

// Thaw ends Freeze.
func (s *Server) Thaw(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.signalAll(ctx, syscall.SIGCONT)
}

// signalAll reaches the main process first, so that a stopped one starts no session afterwards.
func (s *Server) signalAll(ctx context.Context, sig syscall.Signal) error {
	if err := s.proc.Signal(sig); err != nil {
		return err
	}
	sessions, err := childrenOf(ctx, s.proc.PID())
	return errors.Join(err, signalEach(sessions, sig))
}

func signalEach(pids []int, sig syscall.Signal) error {
	var errs []error
	for _, pid := range pids {
		if err := syscall.Kill(pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
			errs = append(errs, fmt.Errorf("signal session %d: %w", pid, err))
		}
	}
	return errors.Join(errs...)
}

// stop asks for a fast shutdown; when ctx ends first, for an immediate one.
func (s *Server) stop(ctx context.Context) error {
	if s.proc == nil {
		return nil
	}
	return s.proc.Stop(ctx, s.clk, child.Step{Signal: syscall.SIGINT, Patience: stopPatience}, child.Step{Signal: syscall.SIGQUIT, Patience: quitPatience})
}

// environment holds nothing of ours: PGDATA, PGOPTIONS, PGPORT or a locale of the caller would change the server.
func environment() []string {
	return []string{"PATH=/usr/bin:/bin", "LC_ALL=C", "TZ=UTC", "HOME=/"}
}

// start runs the server until it is ready. A predecessor that crashed may hold its shared memory a little longer: then it is tried again.
func (s *Server) start(ctx context.Context) error {
	crashed, err := s.clearPredecessor(ctx)
	if err != nil {
		return err
	}
	deadline := s.clk.Now().Add(predecessorPatience)
	for {
		err := s.startOnce(ctx)
		early, ended := errors.AsType[*StartError](err)
		if !ended || !crashed || s.clk.Now().After(deadline) {
			return err
		}
		if serr := s.clk.Sleep(ctx, 10*probeEvery); serr != nil {
			return errors.Join(serr, early)
		}
	}
}

func (s *Server) startOnce(ctx context.Context) error {
	log, offset, err := openLog(s.LogFile())
	if err != nil {
		return err
	}
	args := append([]string{"-D", s.DataDir()}, s.opts.arguments(s.sockets, s.port)...)
	proc, err := child.Launch(ctx, child.Spec{
		Program: s.opts.Binaries.Path("postgres"), Args: args, Env: environment(), Output: log, User: s.acct.user(), DeathSignal: syscall.SIGINT, Enter: s.opts.Enter,
	})
	if err != nil {
		return err
	}
	s.proc = proc
	if err := s.awaitReady(ctx, proc, offset); err != nil {
		return errors.Join(err, proc.Kill())
	}
	return nil
}

// awaitReady returns when the server lets a session in and, with TCP, the session has set a new password.
func (s *Server) awaitReady(ctx context.Context, proc *child.Process, offset int64) error {
	tick := s.clk.NewTicker(probeEvery)
	defer tick.Stop()
	for {
		err := s.prepare(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-proc.Done():
			return &StartError{Log: readLog(s.LogFile(), offset), Err: proc.Err()}
		case <-ctx.Done():
			return &StartError{Log: readLog(s.LogFile(), offset), Err: errors.Join(context.Cause(ctx), err)}
		case <-tick.C():
		}
	}
}

func (s *Server) prepare(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, s.DSN("postgres"))
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }() // the probe's answer is known
	if !s.opts.TCP {
		return nil
	}
	password := rand.Text()
	if _, err := conn.Exec(ctx, "ALTER ROLE "+superuser+" PASSWORD '"+password+"'"); err != nil {
		return fmt.Errorf("set password: %w", err)
	}
	s.password = password
	return nil
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
