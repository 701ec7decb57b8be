package pg

import (
	"context"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"postrider.dev/pkg/clock"
)

const (
	// pingAfter is how long a connection must have been idle to be asked, before it is handed out, whether it is still there.
	pingAfter = time.Second
	// pingPatience bounds the answer. A server that takes longer serves nobody.
	pingPatience = 2 * time.Second
)

// alive decides which idle connections are handed out. One that does not answer says something of all that were idle with it: what silenced it, a network
// that was cut or a server that hangs, silenced them too. They are closed unasked. Else a caller would wait for each in turn, a whole pool of silences,
// before it is told that the server is away.
type alive struct {
	clk clock.Clock

	mu     sync.Mutex // guards silent
	silent time.Time  // when a connection last did not answer in time
}

// shouldPing is pgxpool.Config.ShouldPing. It asks by itself; what it lets the pool ask has been closed, which the pool notices at once.
func (a *alive) shouldPing(ctx context.Context, p pgxpool.ShouldPingParams) bool {
	now := a.clk.Now()
	used := now.Add(-p.IdleDuration)
	if p.IdleDuration < pingAfter && !a.silentSince(used) {
		return false
	}
	if !a.silentSince(used) {
		ping, cancel := context.WithTimeout(context.WithoutCancel(ctx), pingPatience) // a caller that leaves is no reason to lose the connection
		defer cancel()
		err := p.Conn.Ping(ping)
		if err == nil {
			return false
		}
		if ping.Err() != nil {
			a.note(now)
		}
	}
	at, cancel := context.WithCancel(context.WithoutCancel(ctx))
	cancel()
	_ = p.Conn.Close(at) // without the goodbye, and the request to stop, that would hold its place in the pool for a quarter of a minute
	return true
}

// silentSince says that a connection was found silent after one was used last.
func (a *alive) silentSince(used time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return used.Before(a.silent)
}

func (a *alive) note(at time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if at.After(a.silent) {
		a.silent = at
	}
}
