// Package store is the only SQL of the ingress: tenants and API keys, and a look into the node directory through the function that meshhint exports.
//
// Every change writes its audit entry in the same transaction, through audit.enqueue.
package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"postrider.dev/pkg/pg"
	"postrider.dev/pkg/tenant"
	"postrider.dev/services/ingress/internal/domain"
)

// Store reads and writes the schema ingress. It is safe for concurrent use.
type Store struct {
	db *pg.DB
	tx pg.Tx // nil but inside Once: then every change is part of it
}

// New returns a store on db.
func New(db *pg.DB) *Store { return &Store{db: db} }

// Ready returns nil when the database answers.
func (s *Store) Ready(ctx context.Context) error { return s.db.Ready(ctx) }

// inTx runs fn in a transaction; see pg.DB.InTx.
func (s *Store) inTx(ctx context.Context, fn func(pg.Tx) error) error {
	if s.tx != nil {
		return fn(s.tx)
	}
	return s.db.InTx(ctx, pg.ReadCommitted, fn)
}

// CreateTenant makes a tenant; domain.ErrExists if there is one.
func (s *Store) CreateTenant(ctx context.Context, by tenant.Caller, id tenant.ID) (domain.Tenant, error) {
	out := domain.Tenant{ID: id}
	err := s.inTx(ctx, func(tx pg.Tx) error {
		if err := tx.QueryRow(ctx, createTenantSQL, pgx.NamedArgs{"id": string(id)}).Scan(&out.CreatedAt); err != nil {
			return err
		}
		return s.audit(ctx, tx, entry{by: by, tenant: id, action: "tenant.create", resource: "tenant/" + string(id)})
	})
	if pg.IsUnique(err, "tenants_id_pk") {
		return out, domain.ErrExists
	}
	return out, wrap("create tenant", err)
}

// ListTenants returns all tenants by id.
func (s *Store) ListTenants(ctx context.Context) ([]domain.Tenant, error) {
	rows, err := s.db.Query(ctx, listTenantsSQL)
	if err != nil {
		return nil, wrap("list tenants", err)
	}
	out, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (t domain.Tenant, err error) {
		err = row.Scan(&t.ID, &t.CreatedAt)
		return t, err
	})
	return out, wrap("list tenants", err)
}

// ListNodes returns the node directory. Before the directory's owner has made it there are no nodes.
func (s *Store) ListNodes(ctx context.Context) ([]domain.Node, error) {
	rows, err := s.db.Query(ctx, listNodesSQL)
	if err != nil {
		return nil, wrap("list nodes", unlessMissing(err))
	}
	out, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (n domain.Node, err error) {
		err = row.Scan(&n.ID, &n.Host, &n.Zone, &n.Service, &n.State, &n.Addresses, &n.StartedAt, &n.HeartbeatAt, &n.Version)
		return n, err
	})
	return out, wrap("list nodes", unlessMissing(err))
}

// unlessMissing returns err, unless it says that the directory is not there yet.
func unlessMissing(err error) error {
	if code := pg.Code(err); code == undefinedFunction || code == invalidSchema {
		return nil
	}
	return err
}

// SQLSTATEs of a directory that is not there yet.
const (
	undefinedFunction = "42883"
	invalidSchema     = "3F000"
)

// entry is one audit record.
type entry struct {
	by       tenant.Caller
	tenant   tenant.ID // whose chain it belongs to
	action   string
	resource string
	detail   map[string]any
}

func (s *Store) audit(ctx context.Context, tx pg.Tx, e entry) error {
	if e.detail == nil {
		e.detail = map[string]any{}
	}
	_, err := tx.Exec(ctx, auditSQL, pgx.NamedArgs{
		"tenant": string(e.tenant), "actor": e.by.Actor, "action": e.action, "resource": e.resource, "detail": e.detail,
	})
	if err != nil {
		return fmt.Errorf("audit %s: %w", e.action, err)
	}
	return nil
}

// wrap says what was being done and marks errors of a database that cannot be reached. A domain error passes as it is.
func wrap(doing string, err error) error {
	switch {
	case err == nil, errors.Is(err, domain.ErrNotFound), errors.Is(err, domain.ErrExists):
		return err
	case pg.IsConnectionLost(err), pg.IsShutdown(err), pg.IsTooManyConnections(err):
		return fmt.Errorf("%s: %w: %w", doing, domain.ErrAway, err)
	}
	return fmt.Errorf("%s: %w", doing, err)
}

func instant(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return *t
}

func orNull(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}
