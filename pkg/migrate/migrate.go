// Package migrate brings one schema of a database to its owner's newest version.
//
// Each schema has its own numbered SQL files and its own version table, <schema>.goose_db_version, so several owners share a database without
// knowing one another. It holds:
//   - One run at a time per schema, by a session advisory lock on the very connection that migrates; others wait and then find nothing to do.
//   - Forward only. A file with a way down is refused; numbers start at 1 and have no gaps.
//   - A version that cannot be read is an error. Only a schema without any table counts as fresh.
//   - A database that is ahead of the files (newer code has run) is fine: old code must run on the next schema.
//
// The connection string must lead to the server itself, not to a transaction pooler.
package migrate

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"

	"postrider.dev/pkg/clock"
	"postrider.dev/pkg/pg"
)

// Set is the migrations of one schema: 0001_name.sql, 0002_name.sql and so on in the root of FS.
type Set struct {
	Schema string
	FS     fs.FS
}

// Latest means the newest version of a set.
const Latest int64 = 1<<63 - 1

// lockPatience is how often a run that met a busy table is repeated: DDL waits for readers, and everyone behind it waits too, so it gives up early.
const lockPatience = 5

// Up applies what is missing and returns the versions it applied, in order. It waits up to 30 s for a server that is starting or not reachable yet.
func Up(ctx context.Context, clk clock.Clock, dsn string, set Set) ([]int64, error) {
	return UpTo(ctx, clk, dsn, set, Latest)
}

// UpTo is Up, but not beyond a version: for tests that run code on the previous schema.
func UpTo(ctx context.Context, clk clock.Clock, dsn string, set Set, version int64) ([]int64, error) {
	if err := set.Validate(); err != nil {
		return nil, err
	}
	if err := reach(ctx, clk, dsn); err != nil {
		return nil, err
	}
	db, err := open(dsn)
	if err != nil {
		return nil, err
	}
	defer db.Close() //nolint:errcheck // what was applied is committed
	var all []int64
	for attempt := 1; ; attempt++ {
		applied, err := up(ctx, clk, db, set, version)
		all = append(all, applied...)
		if err == nil || !pg.IsLockTimeout(err) || attempt == lockPatience {
			return all, err
		}
	}
}

func up(ctx context.Context, clk clock.Clock, db *sql.DB, set Set, version int64) ([]int64, error) {
	lock := &locker{set: set, clk: clk}
	if err := lock.prepare(ctx, db); err != nil {
		return nil, err
	}
	provider, err := goose.NewProvider(goose.DialectPostgres, db, set.FS,
		goose.WithTableName(set.table()),
		goose.WithDisableGlobalRegistry(true),
		goose.WithExcludeNames([]string{GoldenFile}),
		goose.WithSessionLocker(lock),
	)
	if err != nil {
		return nil, fmt.Errorf("migrate %s: %w", set.Schema, err)
	}
	results, err := provider.UpTo(ctx, version)
	if partial, ok := errors.AsType[*goose.PartialError](err); ok {
		results = partial.Applied
	}
	var applied []int64
	for _, r := range results {
		applied = append(applied, r.Source.Version)
	}
	if err != nil {
		return applied, fmt.Errorf("migrate %s: %w", set.Schema, err)
	}
	return applied, nil
}

// reach waits, as long as pg.Connect does, for a server that is starting: services and their database are often started together.
func reach(ctx context.Context, clk clock.Clock, dsn string) error {
	conn, err := pg.Connect(ctx, dsn, pg.Options{AppName: "migrate", Clock: clk})
	if err != nil {
		return err
	}
	return conn.Close(ctx)
}

// open returns a handle whose sessions wait for a lock at most a few seconds and inherit no other limits from their role.
func open(dsn string) (*sql.DB, error) {
	cfg, err := pgx.ParseConfig(dsn)
	if err != nil {
		return nil, fmt.Errorf("parse database url: %w", err)
	}
	for name, value := range map[string]string{
		"application_name": "migrate", "lock_timeout": "5s", "statement_timeout": "0", "idle_in_transaction_session_timeout": "60s",
	} {
		cfg.RuntimeParams[name] = value
	}
	return stdlib.OpenDB(*cfg), nil
}
