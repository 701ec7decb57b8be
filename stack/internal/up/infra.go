// Package up prepares what `postrider up` needs on one machine (a private PostgreSQL, an embedded Redis, keys, free ports) and runs hosts on it.
package up

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/alicebob/miniredis/v2"

	"postrider.dev/pkg/child"
	"postrider.dev/pkg/clock"
	"postrider.dev/pkg/localpg"
)

// Infra is what hosts stand on: a database and a Redis, with whatever of them this process started.
type Infra struct {
	DatabaseURL string
	RedisURL    string
	// Notes say in words what is used, for people.
	DatabaseNote, RedisNote string

	closers []func(context.Context) error
}

// InfraOptions say what is given and where to keep the rest.
type InfraOptions struct {
	// Dir is the data folder, for example .postrider.
	Dir string
	// DatabaseURL and RedisURL name real servers; empty: start private ones.
	DatabaseURL, RedisURL string
	// Hosts is how many processes will use them; above 1 a real redis-server is preferred to the embedded one.
	Hosts int
	// DownloadURL is where PostgreSQL is downloaded from when the machine has none; empty: the library's default.
	DownloadURL string
	// Progress is told what takes long.
	Progress func(string)
}

// StartInfra starts what is not given. On error everything it started is stopped again.
func StartInfra(ctx context.Context, clk clock.Clock, o InfraOptions) (*Infra, error) {
	in := &Infra{DatabaseURL: o.DatabaseURL, RedisURL: o.RedisURL, DatabaseNote: "as given", RedisNote: "as given"}
	for _, start := range []func(context.Context, clock.Clock, InfraOptions) error{in.startPostgres, in.startRedis} {
		if err := start(ctx, clk, o); err != nil {
			return nil, errors.Join(err, in.Close(context.WithoutCancel(ctx)))
		}
	}
	return in, nil
}

// Close stops what was started, in reverse order.
func (in *Infra) Close(ctx context.Context) error {
	var errs []error
	for i := len(in.closers) - 1; i >= 0; i-- {
		errs = append(errs, in.closers[i](ctx))
	}
	in.closers = nil
	return errors.Join(errs...)
}

func (in *Infra) startPostgres(ctx context.Context, clk clock.Clock, o InfraOptions) error {
	if in.DatabaseURL != "" {
		return nil
	}
	binaries, err := localpg.Find(ctx)
	if missing, ok := errors.AsType[*localpg.MissingError](err); ok {
		o.Progress(missing.Error() + "; downloading a build of it, once")
		binaries, err = localpg.Download(ctx, cmp.Or(o.DownloadURL, localpg.DefaultRepository), filepath.Join(o.Dir, "pgbin"))
	}
	if err != nil {
		return err
	}
	server, err := localpg.Start(ctx, clk, localpg.Options{
		Dir: filepath.Join(o.Dir, "postgres"), Binaries: binaries, Durable: true,
		MaxConnections: 60 + 60*o.Hosts, SharedBuffers: "128MB",
	})
	if err != nil {
		return err
	}
	in.DatabaseURL = server.DSN("postgres")
	in.DatabaseNote = fmt.Sprintf("private PostgreSQL %d in %s", binaries.Major, server.DataDir())
	in.closers = append(in.closers, server.Stop)
	return nil
}

func (in *Infra) startRedis(ctx context.Context, clk clock.Clock, o InfraOptions) error {
	if in.RedisURL != "" {
		return nil
	}
	if o.Hosts > 1 {
		if path, err := exec.LookPath("redis-server"); err == nil {
			return in.startRedisServer(ctx, clk, path, o.Dir)
		}
	}
	return in.startMiniredis(clk)
}

// startMiniredis serves Redis from this process. Its times to live move only when told, so a ticker tells it.
func (in *Infra) startMiniredis(clk clock.Clock) error {
	server := miniredis.NewMiniRedis()
	if err := server.StartAddr("127.0.0.1:0"); err != nil {
		return fmt.Errorf("embedded redis: %w", err)
	}
	stop, done := make(chan struct{}), make(chan struct{})
	go func() { // ends when the closer closes stop, which waits for it
		defer close(done)
		tick := clk.NewTicker(time.Second)
		defer tick.Stop()
		for {
			select {
			case <-tick.C():
				server.FastForward(time.Second)
			case <-stop:
				return
			}
		}
	}()
	in.closers = append(in.closers, func(context.Context) error {
		close(stop)
		<-done
		server.Close()
		return nil
	})
	in.RedisURL = "redis://" + server.Addr()
	in.RedisNote = "embedded"
	return nil
}

// redisPatience bounds the start of redis-server.
const redisPatience = 5 * time.Second

func (in *Infra) startRedisServer(ctx context.Context, clk clock.Clock, path, dir string) error {
	addr, err := freeAddr(ctx)
	if err != nil {
		return err
	}
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return fmt.Errorf("redis port: %w", err)
	}
	server, err := child.Launch(ctx, child.Spec{Program: path, Dir: dir, Args: []string{
		"--bind", "127.0.0.1", "--port", port, "--save", "", "--appendonly", "no", "--loglevel", "warning",
	}})
	if err != nil {
		return err
	}
	in.closers = append(in.closers, func(ctx context.Context) error {
		return server.Stop(ctx, clk, child.Step{Signal: syscall.SIGTERM, Patience: redisPatience})
	})
	ctx, cancel := context.WithTimeout(ctx, redisPatience)
	defer cancel()
	for !answers(ctx, addr) {
		if server.Ended() {
			return fmt.Errorf("redis-server ended before it answered: %w", server.Err())
		}
		if err := clk.Sleep(ctx, 20*time.Millisecond); err != nil {
			return fmt.Errorf("redis-server does not answer on %s: %w", addr, err)
		}
	}
	in.RedisURL = "redis://" + addr
	in.RedisNote = "redis-server at " + addr
	return nil
}

func answers(ctx context.Context, addr string) bool {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return false
	}
	_ = conn.Close()
	return true
}

func freeAddr(ctx context.Context) (string, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("find a free port: %w", err)
	}
	addr := l.Addr().String()
	return addr, l.Close()
}
