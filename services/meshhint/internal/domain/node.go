// Package domain holds the sidecar's types and decisions. It is pure: no I/O, no clock.
package domain

import (
	"errors"
	"fmt"
	"maps"
	"slices"
)

// State is what a node says of itself; only Online may be sent work.
type State string

// The states of a node.
const (
	Joining  State = "joining"
	Online   State = "online"
	Draining State = "draining"
	Dead     State = "dead"
)

// Node is one service process of this host, as announced.
type Node struct {
	ID        string            `json:"id"`
	Host      string            `json:"host_id"`
	Zone      string            `json:"zone"`
	Service   string            `json:"service"`
	State     State             `json:"state"`
	Addresses map[string]string `json:"addresses"`
	Version   string            `json:"version"`
	// DeadAfter is how many seconds without a heartbeat make the node dead.
	DeadAfter float64 `json:"dead_after"`
}

// Limits of an announcement.
const (
	maxName      = 255
	maxAddresses = 16
)

// ErrBadNode is matched by every refusal of an announcement.
var ErrBadNode = errors.New("bad announcement")

// Check returns an error that matches ErrBadNode unless n may be written to the directory. A service cannot announce itself dead.
func (n Node) Check() error {
	for _, f := range []struct{ name, value string }{{"node_id", n.ID}, {"service", n.Service}, {"state", string(n.State)}} {
		if f.value == "" || len(f.value) > maxName {
			return fmt.Errorf("%w: %s has %d bytes, 1 to %d are allowed", ErrBadNode, f.name, len(f.value), maxName)
		}
	}
	if !slices.Contains([]State{Joining, Online, Draining}, n.State) {
		return fmt.Errorf("%w: state %q", ErrBadNode, n.State)
	}
	if len(n.Addresses) > maxAddresses {
		return fmt.Errorf("%w: %d addresses, at most %d", ErrBadNode, len(n.Addresses), maxAddresses)
	}
	for k, v := range n.Addresses {
		if len(k) > maxName || len(v) > maxName {
			return fmt.Errorf("%w: address %.20q is longer than %d bytes", ErrBadNode, k, maxName)
		}
	}
	return nil
}

// Equal reports whether the directory would show both the same.
func (n Node) Equal(o Node) bool {
	return n.ID == o.ID && n.Host == o.Host && n.Zone == o.Zone && n.Service == o.Service && n.State == o.State && n.Version == o.Version &&
		maps.Equal(n.Addresses, o.Addresses)
}
