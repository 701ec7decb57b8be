package engine

import (
	"context"
	"time"

	healthpb "google.golang.org/grpc/health/grpc_health_v1"
)

// A dispatcher that hangs, because it is stopped or its host is cut off without a word, breaks no stream: everything given to it would wait. The node
// directory drops one whose heartbeat stops, but a static list does not, and the keepalive of a connection takes half a minute. So each dispatcher is
// asked again and again whether it lives. Any answer will do, that it is not serving or knows no such question among them: what counts is that a process
// answers. The operations themselves tell nothing: one may rightly take as long as its database does.

// probeTicks is how many probe intervals an answer may take.
const probeTicks = 5

func (p *peer) probeEvery() time.Duration { return p.x.cfg.HungAfter / probeTicks }

// untilHung returns when a question was left open, or ctx has ended. While no stream is up there is nothing to give up.
func (p *peer) untilHung(ctx context.Context) {
	for p.x.clk.Sleep(ctx, p.probeEvery()) == nil {
		if p.up.Load() > 0 && !p.answers(ctx) {
			return
		}
	}
}

// untilAnswered returns when the dispatcher answers or its connection is lost, or ctx has ended.
func (p *peer) untilAnswered(ctx context.Context) {
	for !p.answers(ctx) && ctx.Err() == nil {
	}
}

// answers asks once and reports whether an answer, or an error, came in time. Time is counted in ticks that this process sees: one that was itself
// stopped for a while must not blame the other side.
func (p *peer) answers(ctx context.Context) bool {
	ctx, cancel := context.WithCancel(ctx)
	answered := make(chan struct{})
	go func() { // awaited below
		defer close(answered)
		_, _ = p.health.Check(ctx, &healthpb.HealthCheckRequest{}) // any answer is one
	}()
	defer func() {
		cancel()
		<-answered
	}()
	tick := p.x.clk.NewTicker(p.probeEvery())
	defer tick.Stop()
	for range probeTicks {
		select {
		case <-answered:
			return true
		case <-tick.C():
		case <-ctx.Done():
			return false
		}
	}
	return false
}
