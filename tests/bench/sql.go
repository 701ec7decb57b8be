package bench

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"
)

// PayloadBytes is the size of every message: random, so that nothing gains by compressing it.
const PayloadBytes = 256

// Payload returns random bytes.
func Payload(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails
	return b
}

const durable = "fsync"

// SQL are the bare limits: what PostgreSQL itself does with the same bytes. Connections are as many as help.
func SQL(ctx context.Context, dsn string) ([]Workload, func(), error) {
	cfg, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, nil, fmt.Errorf("bare sql: %w", err)
	}
	cfg.MaxConns = 64
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, nil, fmt.Errorf("bare sql: %w", err)
	}
	_, err = pool.Exec(ctx, `CREATE SCHEMA IF NOT EXISTS bench;
		CREATE TABLE IF NOT EXISTS bench.rows (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, payload bytea);
		CREATE TABLE IF NOT EXISTS bench.segments (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, body bytea);
		ALTER TABLE bench.segments ALTER COLUMN body SET STORAGE EXTERNAL`)
	if err != nil {
		pool.Close()
		return nil, nil, fmt.Errorf("bare sql: %w", err)
	}
	one, segment := Payload(PayloadBytes), Payload(1000*PayloadBytes)
	hundred := make([]any, 100)
	for i := range hundred {
		hundred[i] = Payload(PayloadBytes)
	}
	exec := func(sql string, messages int, args ...any) func(context.Context, int) (int, error) {
		return func(ctx context.Context, _ int) (int, error) {
			_, err := pool.Exec(ctx, sql, args...)
			return messages, err
		}
	}
	var values strings.Builder
	for i := range hundred {
		_, _ = fmt.Fprintf(&values, ", ($%d)", i+1)
	}
	empty := func(ctx context.Context) error {
		_, err := pool.Exec(ctx, `TRUNCATE bench.rows, bench.segments`)
		return err
	}
	return []Workload{
		{Name: oneRow, Class: durable, Callers: 64, Prepare: empty, Op: exec(`INSERT INTO bench.rows (payload) VALUES ($1)`, 1, one)},
		{
			Name: hundredRows, Class: durable, Callers: 8, Prepare: empty,
			Op: exec(`INSERT INTO bench.rows (payload) VALUES `+values.String()[2:], 100, hundred...),
		},
		{
			Name: "SQL INSERT of a 1,000-message segment, 2 connections", Class: durable, Callers: 2, Prepare: empty,
			Op: exec(`INSERT INTO bench.segments (body) VALUES ($1)`, 1000, segment),
		},
	}, pool.Close, nil
}
