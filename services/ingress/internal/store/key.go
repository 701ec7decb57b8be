package store

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"postrider.dev/pkg/pg"
	"postrider.dev/pkg/tenant"
	"postrider.dev/services/ingress/internal/domain"
)

// Key returns the record of a key, live or not; domain.ErrNotFound if there is none. Left is measured on the database's clock.
func (s *Store) Key(ctx context.Context, id domain.KeyID) (domain.APIKey, error) {
	key, err := scanKey(s.db.QueryRow(ctx, getKeySQL, pgx.NamedArgs{"id": string(id)}))
	if pg.IsNoRows(err) {
		return key, domain.ErrNotFound
	}
	return key, wrap("get key", err)
}

// CreateKey keeps a key for a tenant; domain.ErrNotFound if there is no such tenant.
func (s *Store) CreateKey(ctx context.Context, by tenant.Caller, key domain.APIKey) (domain.APIKey, error) {
	var out domain.APIKey
	err := s.inTx(ctx, func(tx pg.Tx) (err error) {
		if out, err = scanKey(tx.QueryRow(ctx, createKeySQL, keyArgs(key))); err != nil {
			return err
		}
		return s.audit(ctx, tx, keyEntry(by, out, "key.create"))
	})
	if pg.Code(err) == foreignKeyViolation {
		return out, domain.ErrNotFound
	}
	return out, wrap("create key", err)
}

const foreignKeyViolation = "23503"

// EnsureKey makes the key exist as given: the administrator's key from the configuration. Repeating it changes and audits nothing.
func (s *Store) EnsureKey(ctx context.Context, by tenant.Caller, key domain.APIKey) error {
	err := s.inTx(ctx, func(tx pg.Tx) error {
		tag, err := tx.Exec(ctx, ensureKeySQL, keyArgs(key))
		if err != nil || tag.RowsAffected() == 0 {
			return err
		}
		return s.audit(ctx, tx, keyEntry(by, key, "key.bootstrap"))
	})
	return wrap("ensure key", err)
}

// ListKeys returns a tenant's keys, newest first.
func (s *Store) ListKeys(ctx context.Context, id tenant.ID) ([]domain.APIKey, error) {
	rows, err := s.db.Query(ctx, listKeysSQL, pgx.NamedArgs{"tenant": string(id)})
	if err != nil {
		return nil, wrap("list keys", err)
	}
	out, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (domain.APIKey, error) { return scanKey(row) })
	return out, wrap("list keys", err)
}

// RevokeKey ends a key of the tenant, or of any tenant when within is empty. Revoking again changes nothing; domain.ErrNotFound if there is no
// such key there.
func (s *Store) RevokeKey(ctx context.Context, by tenant.Caller, id domain.KeyID, within tenant.ID) error {
	err := s.inTx(ctx, func(tx pg.Tx) error {
		var owner tenant.ID
		var changed bool
		err := tx.QueryRow(ctx, revokeKeySQL, pgx.NamedArgs{"id": string(id), "within": string(within)}).Scan(&owner, &changed)
		switch {
		case pg.IsNoRows(err):
			return domain.ErrNotFound
		case err != nil, !changed:
			return err
		}
		return s.audit(ctx, tx, keyEntry(by, domain.APIKey{ID: id, Tenant: owner}, "key.revoke"))
	})
	return wrap("revoke key", err)
}

func keyArgs(key domain.APIKey) pgx.NamedArgs {
	return pgx.NamedArgs{
		"id": string(key.ID), "tenant": string(key.Tenant), "name": key.Name, "role": key.Role.String(),
		"hash": key.Hash[:], "expires_at": orNull(key.ExpiresAt),
	}
}

func keyEntry(by tenant.Caller, key domain.APIKey, action string) entry {
	e := entry{by: by, tenant: key.Tenant, action: action, resource: "key/" + string(key.ID)}
	if key.Role != tenant.NoRole {
		e.detail = map[string]any{"name": key.Name, "role": key.Role.String()}
	}
	return e
}

func scanKey(row pgx.Row) (domain.APIKey, error) {
	var (
		key              domain.APIKey
		role             string
		hash             []byte
		expires, revoked *time.Time
		left             *time.Duration
	)
	err := row.Scan(&key.ID, &key.Tenant, &key.Name, &role, &hash, &key.CreatedAt, &expires, &revoked, &left)
	if err != nil {
		return key, err
	}
	key.ExpiresAt, key.RevokedAt, key.Left = instant(expires), instant(revoked), domain.Forever
	if left != nil {
		key.Left = *left
	}
	copy(key.Hash[:], hash)
	key.Role, err = tenant.ParseRole(role)
	return key, err
}
