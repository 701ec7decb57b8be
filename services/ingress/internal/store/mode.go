package store

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"postrider.dev/pkg/pg"
	"postrider.dev/pkg/tenant"
	"postrider.dev/services/ingress/internal/domain"
)

// Modes returns the modes of the fleet by name.
func (s *Store) Modes(ctx context.Context) ([]domain.Mode, error) {
	rows, err := s.db.Query(ctx, listModesSQL)
	if err != nil {
		return nil, wrap("list modes", err)
	}
	out, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (domain.Mode, error) {
		m, _, err := scanMode(row)
		return m, err
	})
	return out, wrap("list modes", err)
}

// SetMode makes a mode what m says and returns it. Setting what is set changes and audits nothing. The row is meshhint's: its exported function writes
// it in this transaction, so that the answer to an idempotency key, the audit entry and the effect are one.
func (s *Store) SetMode(ctx context.Context, by tenant.Caller, m domain.Mode) (domain.Mode, error) {
	var out domain.Mode
	err := s.inTx(ctx, func(tx pg.Tx) error {
		var changed bool
		var err error
		out, changed, err = scanMode(tx.QueryRow(ctx, setModeSQL, pgx.NamedArgs{
			"mode": m.Name, "enabled": m.Enabled, "reason": m.Reason, "by": by.Actor,
		}))
		if err != nil || !changed {
			return err
		}
		return s.audit(ctx, tx, entry{
			by: by, tenant: tenant.Default, action: "mode.set", resource: "mode/" + m.Name,
			detail: map[string]any{"enabled": m.Enabled, "reason": m.Reason, "version": out.Version},
		})
	})
	return out, wrap("set mode", err)
}

func scanMode(row pgx.Row) (m domain.Mode, changed bool, err error) {
	var at *time.Time
	err = row.Scan(&m.Name, &m.Enabled, &m.Reason, &at, &m.ChangedBy, &m.Version, &changed)
	m.ChangedAt = instant(at)
	return m, changed, err
}
