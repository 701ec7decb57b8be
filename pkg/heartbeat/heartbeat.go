// Package heartbeat writes a process's own row into the node directory while nobody else does it for it: its sidecar, if it has one.
//
// The directory is not owned here. What is called is the exported function mesh.announce, which stamps each beat with the database's time.
package heartbeat

import (
	"context"
	"encoding/json"
	"fmt"
	"sync/atomic"
	"time"

	"postrider.dev/pkg/pg"
	"postrider.dev/pkg/run"
	"postrider.dev/pkg/standin"
)

const (
	every    = time.Second     // as often as a sidecar beats
	patience = 2 * time.Second // how long a sidecar may be silent first
)

// SQLSTATEs of a directory that is not there yet.
const (
	undefinedFunction = "42883"
	invalidSchema     = "3F000"
)

// Node is a process as the node directory shows it.
type Node struct {
	ID        string            `json:"id"` // unique per process start
	Host      string            `json:"host_id"`
	Zone      string            `json:"zone"`
	Service   string            `json:"service"`
	State     string            `json:"state"` // joining, online or draining
	Addresses map[string]string `json:"addresses"`
	Version   string            `json:"version"`
}

// Write writes the node with a heartbeat of now. Before the directory's owner has made it, nothing is written and that is no error.
func Write(ctx context.Context, db *pg.DB, n Node) error {
	row, err := json.Marshal([]Node{n})
	if err != nil {
		return fmt.Errorf("encode node: %w", err)
	}
	_, err = db.Exec(ctx, "SELECT mesh.announce($1::jsonb)", string(row))
	if code := pg.Code(err); err != nil && code != undefinedFunction && code != invalidSchema {
		return fmt.Errorf("announce node: %w", err)
	}
	return nil
}

// Beside returns the beat of the node that node describes at each moment, for a process with a sidecar: it rests while attached reports that the sidecar
// answers, and for two seconds more.
func Beside(env run.Env, db *pg.DB, attached func() bool, node func() Node) run.Part {
	return part(env, db, patience, attached, node)
}

// Alone returns the beat of a process without a sidecar: one a second.
func Alone(env run.Env, db *pg.DB, node func() Node) run.Part {
	return part(env, db, 0, func() bool { return false }, node)
}

func part(env run.Env, db *pg.DB, patience time.Duration, attached func() bool, node func() Node) run.Part {
	beat := standin.New(env.Clock, env.Log, every, patience, attached, func(ctx context.Context) error { return Write(ctx, db, node()) })
	return run.Part{Name: "heartbeat", Run: beat.Run}
}

// State is what a node is to be called: online, and draining once Drain was called. The zero value is ready.
type State struct{ draining atomic.Bool }

// Drain makes it "draining", for good.
func (s *State) Drain() { s.draining.Store(true) }

func (s *State) String() string {
	if s.draining.Load() {
		return "draining"
	}
	return "online"
}
