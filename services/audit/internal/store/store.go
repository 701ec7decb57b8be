// Package store holds the audit service's SQL.
package store

import (
	"context"
	_ "embed"
	"fmt"
	"time"

	"postrider.dev/pkg/pg"
)

//go:embed outbox.sql
var outboxSQL string

// Outbox is what waits to be chained.
type Outbox struct {
	Entries int64
	// Oldest is the age of the oldest entry, by the database's time; 0 when there is none.
	Oldest time.Duration
}

// Store reads and writes the audit schema.
type Store struct{ db *pg.DB }

// New returns a store on a pool.
func New(db *pg.DB) *Store { return &Store{db: db} }

// Ready is nil when the database answers.
func (s *Store) Ready(ctx context.Context) error { return s.db.Ready(ctx) }

// Outbox measures the outbox.
func (s *Store) Outbox(ctx context.Context) (Outbox, error) {
	var o Outbox
	var seconds float64
	if err := s.db.QueryRow(ctx, outboxSQL).Scan(&o.Entries, &seconds); err != nil {
		return Outbox{}, fmt.Errorf("measure outbox: %w", err)
	}
	o.Oldest = time.Duration(seconds * float64(time.Second))
	return o, nil
}
