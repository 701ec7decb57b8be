// Package store is the sidecar's only SQL.
package store

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"

	"postrider.dev/pkg/modes"
	"postrider.dev/pkg/pg"
	"postrider.dev/services/meshhint/internal/domain"
)

//go:embed announce.sql
var announceSQL string

//go:embed forget.sql
var forgetSQL string

//go:embed mesh_peers.sql
var meshPeersSQL string

// Store writes the node directory.
type Store struct{ db *pg.DB }

// New returns a store on db.
func New(db *pg.DB) *Store { return &Store{db: db} }

// Announce writes the nodes with a heartbeat of now, by the database's clock, in one statement. It returns how many were new or changed state or
// addresses.
func (s *Store) Announce(ctx context.Context, nodes []domain.Node) (changed int, err error) {
	rows, err := json.Marshal(nodes)
	if err != nil {
		return 0, fmt.Errorf("encode nodes: %w", err)
	}
	if err := s.db.QueryRow(ctx, announceSQL, string(rows)).Scan(&changed); err != nil {
		return 0, fmt.Errorf("announce nodes: %w", err)
	}
	return changed, nil
}

// Forget removes nodes that were silent for an hour.
func (s *Store) Forget(ctx context.Context) error {
	if _, err := s.db.Exec(ctx, forgetSQL); err != nil {
		return fmt.Errorf("forget nodes: %w", err)
	}
	return nil
}

// MeshPeers lists where the other sidecars that live can be dialled by self.
func (s *Store) MeshPeers(ctx context.Context, self string) ([]string, error) {
	rows, err := s.db.Query(ctx, meshPeersSQL, self)
	if err != nil {
		return nil, fmt.Errorf("list mesh peers: %w", err)
	}
	defer rows.Close()
	var peers []string
	for rows.Next() {
		var addr string
		if err := rows.Scan(&addr); err != nil {
			return nil, fmt.Errorf("list mesh peers: %w", err)
		}
		peers = append(peers, addr)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("list mesh peers: %w", err)
	}
	return peers, nil
}

// Modes returns the modes of the fleet.
func (s *Store) Modes(ctx context.Context) (modes.Modes, error) { return modes.Read(ctx, s.db) }

// Ready returns nil when the database answers.
func (s *Store) Ready(ctx context.Context) error { return s.db.Ready(ctx) }
