package peer

import (
	"slices"
	"sync"
	"time"

	"postrider.dev/pkg/clock"
	"postrider.dev/services/meshhint/internal/mesh/handshake"
)

const (
	// forgetAfter is when a silent peer is no longer spoken of.
	forgetAfter = time.Hour
	// maxKnown bounds the peers that are remembered; beyond it the one that was silent for longest is forgotten.
	maxKnown = 1024
)

// Liveness knows when each peer was heard last, by the id that it said in its handshake.
type Liveness struct {
	clk       clock.Clock
	deadAfter time.Duration

	mu    sync.Mutex // guards heard
	heard map[string]heard
}

type heard struct {
	host string
	at   time.Time
}

// NewLiveness returns a Liveness that knows nobody.
func NewLiveness(clk clock.Clock, deadAfter time.Duration) *Liveness {
	return &Liveness{clk: clk, deadAfter: deadAfter, heard: make(map[string]heard)}
}

// Joined notes a peer that was just accepted. A dead one of the same host was its former life, and is forgotten.
func (l *Liveness) Joined(id handshake.Identity) {
	now := l.clk.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	for other, h := range l.heard {
		if h.host == id.Host && now.Sub(h.at) > l.deadAfter || now.Sub(h.at) > forgetAfter {
			delete(l.heard, other)
		}
	}
	if _, ok := l.heard[id.ServerID]; !ok && len(l.heard) >= maxKnown {
		l.forgetOldest()
	}
	l.heard[id.ServerID] = heard{host: id.Host, at: now}
}

// forgetOldest needs l.mu.
func (l *Liveness) forgetOldest() {
	oldest := ""
	for id, h := range l.heard {
		if oldest == "" || h.at.Before(l.heard[oldest].at) {
			oldest = id
		}
	}
	delete(l.heard, oldest)
}

// Touch notes a frame of a peer that joined.
func (l *Liveness) Touch(serverID string) {
	now := l.clk.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	if h, ok := l.heard[serverID]; ok {
		h.at = now
		l.heard[serverID] = h
	}
}

// Count returns how many peers are alive and how many are dead.
func (l *Liveness) Count() (alive, dead int) {
	now := l.clk.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	for id, h := range l.heard {
		switch silent := now.Sub(h.at); {
		case silent <= l.deadAfter:
			alive++
		case silent > forgetAfter:
			delete(l.heard, id)
		default:
			dead++
		}
	}
	return alive, dead
}

// Hosts lists the hosts of the peers that are alive.
func (l *Liveness) Hosts() []string {
	now := l.clk.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	var hosts []string
	for _, h := range l.heard {
		if now.Sub(h.at) <= l.deadAfter {
			hosts = append(hosts, h.host)
		}
	}
	slices.Sort(hosts)
	return slices.Compact(hosts)
}
