package store

import (
	"context"
	"fmt"
)

// Identity names the database that answers now. It changes when another server takes over on another timeline, which may lack what was committed last, so
// nothing read before is to be believed then. A restart changes nothing.
func (s *Store) Identity(ctx context.Context) (string, error) {
	var id string
	if err := s.db.QueryRow(ctx, s.sql.text("identity")).Scan(&id); err != nil {
		return "", fmt.Errorf("read identity of the database: %w", err)
	}
	return id, nil
}
