package store

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"postrider.dev/pkg/pg"
)

// What one step of Purge deletes at most.
const (
	purgeRows     = 2_000
	purgeSegments = 200
	purgeKeyPages = 1_000
)

// garbage is something a delete made unreachable.
type garbage struct {
	kind string
	id   int64
	page int64
}

// Purge frees a bounded part of what deletes left and reports whether it found any: call it again until it is false. Any dispatcher may do so at any time;
// several share the work. A step that is cut off is done again.
func (c *Control) Purge(ctx context.Context) (bool, error) {
	found := false
	err := c.inTx(ctx, func(tx pg.Tx) error {
		var g garbage
		err := tx.QueryRow(ctx, c.s.sql.text("garbage_claim")).Scan(&g.kind, &g.id, &g.page)
		if found = err == nil; pg.IsNoRows(err) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("claim garbage: %w", err)
		}
		done, err := c.purge(ctx, tx, g)
		if err != nil || !done {
			return err
		}
		return c.exec(ctx, tx, "garbage_done", g.kind, g.id)
	})
	return found, err
}

// purge frees a part of g and reports whether that was the last.
func (c *Control) purge(ctx context.Context, tx pg.Tx, g garbage) (bool, error) {
	switch g.kind {
	case "group_shard":
		for _, statement := range []string{"garbage_leases", "garbage_retries", "garbage_chunks"} {
			if more, err := c.purgeUpTo(ctx, tx, statement, g.id, purgeRows); more || err != nil {
				return false, err
			}
		}
		return true, nil
	case "shard":
		if more, err := c.purgeUpTo(ctx, tx, "garbage_segments", g.id, purgeSegments); more || err != nil {
			return false, err
		}
		if more, err := c.purgeUpTo(ctx, tx, "garbage_delayed", g.id, purgeRows); more || err != nil {
			return false, err
		}
		if more, err := c.purgeUpTo(ctx, tx, "garbage_tombstones", g.id, purgeRows); more || err != nil {
			return false, err
		}
		if more, err := c.purgeUpTo(ctx, tx, "garbage_traces", g.id, purgeRows); more || err != nil {
			return false, err
		}
		if more, err := c.purgeKeys(ctx, tx, g); more || err != nil {
			return false, err
		}
		return true, c.exec(ctx, tx, "garbage_shard", g.id)
	case "queue":
		if more, err := c.purgeUpTo(ctx, tx, "garbage_partitions", g.id, purgeRows); more || err != nil {
			return false, err
		}
		return true, c.exec(ctx, tx, "garbage_queue", g.id)
	}
	return false, fmt.Errorf("garbage of unknown kind %q", g.kind)
}

// purgeUpTo reports whether there may be more.
func (c *Control) purgeUpTo(ctx context.Context, tx pg.Tx, statement string, id int64, most int) (bool, error) {
	tag, err := tx.Exec(ctx, c.s.sql.text(statement), id, most)
	if err != nil {
		return false, fmt.Errorf("%s: %w", readable(statement), err)
	}
	return tag.RowsAffected() == int64(most), nil
}

// purgeKeys frees the idempotency keys of the shard, and of others that are as far, in the next stretch of their table and reports whether there are stretches left.
func (c *Control) purgeKeys(ctx context.Context, tx pg.Tx, g garbage) (bool, error) {
	var pages int64
	if err := tx.QueryRow(ctx, c.s.sql.text("garbage_key_pages")).Scan(&pages); err != nil {
		return false, fmt.Errorf("size of idempotency keys: %w", err)
	}
	if g.page >= pages {
		return false, nil
	}
	rows, err := tx.Query(ctx, c.s.sql.text("garbage_shards_at"), g.page)
	if err != nil {
		return false, fmt.Errorf("find shards to free: %w", err)
	}
	shards, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return false, fmt.Errorf("find shards to free: %w", err)
	}
	next := min(g.page+purgeKeyPages, pages)
	first, last := fmt.Sprintf("(%d,0)", g.page), fmt.Sprintf("(%d,0)", next)
	if err := c.exec(ctx, tx, "garbage_keys", first, last, shards); err != nil {
		return false, err
	}
	return true, c.exec(ctx, tx, "garbage_page", next, shards)
}
