package chaos

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"postrider.dev/tests/fleet"
)

// World is the fleet and the network between its hosts, as what faults strike.
type World struct {
	fleet *fleet.Processes
	net   *network

	mu   sync.Mutex             // guards busy
	busy map[string]*sync.Mutex // by target: two faults never strike one thing at once

	refused atomic.Int64 // writes of spools that a full disk refused
}

func newWorld(f *fleet.Processes, n *network) *World {
	return &World{fleet: f, net: n, busy: map[string]*sync.Mutex{}}
}

// Strike does the fault and undoes it: when it returns nil, what was struck runs again (it may still be starting). It waits for an earlier fault of the
// same target.
func (w *World) Strike(ctx context.Context, f Fault) error {
	target, do := w.remedy(f)
	if do == nil {
		return fmt.Errorf("nobody knows how to do %q", f.Kind)
	}
	w.mu.Lock()
	lock := w.busy[target]
	if lock == nil {
		lock = &sync.Mutex{}
		w.busy[target] = lock
	}
	w.mu.Unlock()
	lock.Lock()
	defer lock.Unlock()
	if err := do(ctx, f.For); err != nil {
		return fmt.Errorf("%s: %w", f.Kind, err)
	}
	return nil
}

// action breaks something, keeps it broken for a while and mends it.
type action func(ctx context.Context, span time.Duration) error

// remedy returns what a fault strikes, by name, and how.
func (w *World) remedy(f Fault) (target string, do action) {
	h := w.fleet.Hosts[f.Host]
	switch f.Kind {
	case KillIngress:
		return h.Ingress.Name, kill(h.Ingress)
	case KillDispatcher:
		return h.Dispatcher.Name, kill(h.Dispatcher)
	case KillSidecar:
		return h.Sidecar.Name, kill(h.Sidecar)
	case KillScheduler:
		return "scheduler", kill(w.fleet.Singles[0])
	case KillAudit:
		return "audit", kill(w.fleet.Singles[1])
	case FreezeIngress:
		return h.Ingress.Name, freeze(h.Ingress)
	case FreezeDispatcher:
		return h.Dispatcher.Name, freeze(h.Dispatcher)
	case FreezeSidecar:
		return h.Sidecar.Name, freeze(h.Sidecar)
	case DrainDispatcher:
		return h.Dispatcher.Name, drain(h.Dispatcher)
	case DrainIngress:
		return h.Ingress.Name, drain(h.Ingress)
	case CrashPostgres, PostgresAway:
		return "postgres", w.postgresAway
	case FreezePostgres:
		return "postgres", w.freezePostgres
	case RedisAway:
		return "redis", w.redisAway
	case SlowNetwork:
		return "network", w.net.slow(f.Host)
	case CutNetwork:
		return "network", w.net.cut(f.Host)
	case CutMesh:
		return "network", w.net.cutMesh(f.Host)
	case FillDisk:
		return "postgres", w.fillDisk(h)
	}
	return "", nil
}

func kill(p *fleet.Process) action {
	return func(ctx context.Context, span time.Duration) error {
		p.Kill()
		hold(ctx, span)
		return p.Launch(ctx)
	}
}

func freeze(p *fleet.Process) action {
	return func(ctx context.Context, span time.Duration) error {
		p.Signal(syscall.SIGSTOP)
		hold(ctx, span)
		p.Signal(syscall.SIGCONT)
		return nil
	}
}

func drain(p *fleet.Process) action {
	return func(ctx context.Context, span time.Duration) error {
		if err := p.Terminate(ctx); err != nil {
			return err
		}
		hold(ctx, span)
		return p.Launch(ctx)
	}
}

func (w *World) postgresAway(ctx context.Context, span time.Duration) error {
	if err := w.fleet.Postgres.Kill(ctx); err != nil {
		return err
	}
	hold(ctx, span)
	return w.fleet.Postgres.Restart(ctx)
}

func (w *World) freezePostgres(ctx context.Context, span time.Duration) error {
	if err := w.fleet.Postgres.Freeze(ctx); err != nil {
		return err
	}
	hold(ctx, span)
	return w.fleet.Postgres.Thaw(ctx)
}

func (w *World) redisAway(ctx context.Context, span time.Duration) error {
	w.fleet.Redis.Stop()
	hold(ctx, span)
	w.fleet.Redis.Restart()
	return nil
}

// hold lets a fault last. It returns early when ctx ends.
func hold(ctx context.Context, span time.Duration) {
	timer := time.NewTimer(span)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
