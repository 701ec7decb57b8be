package store

import (
	"context"
	"encoding/json"
	"fmt"
)

// Node is this process as the node directory shows it.
type Node struct {
	ID        string            `json:"id"`
	Host      string            `json:"host_id"`
	Zone      string            `json:"zone"`
	Service   string            `json:"service"`
	State     string            `json:"state"`
	Addresses map[string]string `json:"addresses"`
	Version   string            `json:"version"`
}

// Announce writes the node into the directory with a heartbeat of now: what its sidecar does while there is one.
func (s *Store) Announce(ctx context.Context, n Node) error {
	row, err := json.Marshal([]Node{n})
	if err != nil {
		return fmt.Errorf("encode node: %w", err)
	}
	if _, err := s.db.Exec(ctx, s.sql.text("announce"), string(row)); err != nil {
		return fmt.Errorf("announce node: %w", err)
	}
	return nil
}
