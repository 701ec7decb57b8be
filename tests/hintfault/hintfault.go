// Package hintfault loses hints between hosts on purpose: all of them, or half of them while the other half comes twice and in another order. Connections
// stay as they are, heartbeats among them, since hints are lost before they become frames. Whatever a fleet promises must hold with it; only latency may
// change.
package hintfault

import (
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"time"

	meshv1 "postrider.dev/proto/gen/postrider/private/mesh/v1"
	"postrider.dev/services/meshhint"
)

// Variable names the environment variable of the tests that says what becomes of hints. No service reads it.
const Variable = "HINT_FAULTS"

// What may become of hints.
const (
	None   = ""
	Drop   = "drop"   // none arrives
	Mangle = "mangle" // half of them do not arrive, the others arrive twice and in another order
)

// heldFor bounds how long a hint waits for another to overtake it.
const heldFor = 20 * time.Millisecond

// FromEnv is what the environment says.
func FromEnv() string {
	return os.Getenv(Variable)
}

// Seam returns what does it to the hints of a host; nil for None.
func Seam(fault string) (meshhint.Seam, error) {
	switch fault {
	case None:
		return nil, nil //nolint:nilnil // no seam is an answer
	case Drop:
		return func(func([]*meshv1.Hint)) func([]*meshv1.Hint) { return func([]*meshv1.Hint) {} }, nil
	case Mangle:
		return func(publish func([]*meshv1.Hint)) func([]*meshv1.Hint) {
			return (&mangler{publish: publish, lost: func() bool { return rand.N(2) == 0 }}).take
		}, nil
	}
	return nil, fmt.Errorf("%s=%q: %q and %q are known", Variable, fault, Drop, Mangle)
}

// mangler holds each hint that it does not lose until another comes or its time is over, and then publishes what it holds last come first, twice.
type mangler struct {
	publish func([]*meshv1.Hint)
	lost    func() bool

	mu   sync.Mutex // guards held, and keeps one publication at a time
	held []*meshv1.Hint
}

func (m *mangler) take(hints []*meshv1.Hint) {
	m.mu.Lock()
	defer m.mu.Unlock()
	before := len(m.held)
	for _, h := range hints {
		if !m.lost() {
			m.held = append(m.held, h)
		}
	}
	switch {
	case len(m.held) > 1:
		m.release()
	case before == 0 && len(m.held) == 1:
		time.AfterFunc(heldFor, func() {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.release()
		})
	}
}

// release needs m.mu. Each hint goes alone, so that no carrier says once what is alike.
func (m *mangler) release() {
	for n := len(m.held) - 1; n >= 0; n-- {
		for range 2 {
			m.publish([]*meshv1.Hint{m.held[n]})
		}
	}
	m.held = nil
}
