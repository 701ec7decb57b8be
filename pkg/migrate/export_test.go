package migrate

import (
	"context"
	"fmt"
)

// Version returns the schema's version, 0 when it is fresh.
func Version(ctx context.Context, dsn string, set Set) (int64, error) {
	db, err := open(dsn)
	if err != nil {
		return 0, err
	}
	defer db.Close() //nolint:errcheck // opened for reading
	conn, err := db.Conn(ctx)
	if err != nil {
		return 0, fmt.Errorf("connect: %w", err)
	}
	defer conn.Close() //nolint:errcheck // opened for reading
	return set.version(ctx, conn)
}
