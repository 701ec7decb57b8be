package store

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"postrider.dev/pkg/pg"
	"postrider.dev/pkg/tenant"
	"postrider.dev/services/dispatcher/internal/domain/seal"
)

// maxDataKeys is how many data keys a queue may have had: old ones are kept as long as the queue is, because what was sealed with them may lie in the spool
// of a host that nobody can ask.
const maxDataKeys = 10_000

var (
	// ErrNotEncrypted says that the queue has no keys.
	ErrNotEncrypted = errors.New("the queue is not encrypted")
	// ErrTooManyKeys says that the queue had as many data keys as one may have.
	ErrTooManyKeys = errors.New("the queue had too many data keys")
)

// RotateKey gives an encrypted queue a new data key. What is sealed from then on is sealed with it: by this dispatcher at once, by each other one from its
// next commit on, which tells it of the new version of the configuration. What is there stays as it is and is read with its own key. The names key stays,
// so partitions and idempotency keys are known by the same hashes. The error matches ErrNotEncrypted, ErrTooManyKeys, or ErrKeyMissing where the keys in use
// cannot be unwrapped here: others might not know the master key that is first here.
func (c *Control) RotateKey(ctx context.Context, by tenant.Caller, name string) (Queue, error) {
	var q Queue
	err := c.inTx(ctx, func(tx pg.Tx) error {
		var err error
		if q, err = c.oneQueue(ctx, tx, "queue_lock", string(by.Tenant), name); err != nil {
			return err
		}
		if !q.Encrypted() {
			return fmt.Errorf("queue %q: %w", name, ErrNotEncrypted)
		}
		if err := q.Usable(); err != nil {
			return err
		}
		var had int
		if err := tx.QueryRow(ctx, c.s.sql.text("queue_keys_count"), q.ID).Scan(&had); err != nil {
			return fmt.Errorf("count keys: %w", err)
		}
		if had >= maxDataKeys {
			return fmt.Errorf("queue %q: %w", name, ErrTooManyKeys)
		}
		if err := c.makeKey(ctx, tx, q.ID, keyOfData); err != nil {
			return err
		}
		if err := tx.QueryRow(ctx, c.s.sql.text("queue_touch"), q.ID).Scan(&q.ConfigVersion); err != nil {
			return fmt.Errorf("number the configuration: %w", err)
		}
		if err := c.loadKeys(ctx, tx, &q); err != nil {
			return err
		}
		err = c.audit(ctx, tx, by, "queue.rotate_key", "queue/"+name, map[string]any{
			"queue_id": idText(q.ID), "key_id": q.Key().ID(), "config_version": q.ConfigVersion,
		})
		if err != nil {
			return err
		}
		if err := c.exec(ctx, tx, "shards_lock", q.Shards); err != nil {
			return err
		}
		return c.exec(ctx, tx, "shards_configure", q.ConfigVersion, q.Shards)
	})
	return q, err
}

// Rewrapped is what a step of RewrapKeys did.
type Rewrapped struct {
	Keys int   // that are wrapped by the first master key now
	Last int32 // the last key looked at; 0: there was none
}

// RewrapKeys wraps keys again with the first master key that another one of the configured ones wraps: up to most of those behind an id. Any number of
// dispatchers may do so at once; a key that somebody else changed meanwhile is left as it is. Nothing that is encrypted changes.
func (c *Control) RewrapKeys(ctx context.Context, after int32, most int) (Rewrapped, error) {
	masters := c.s.keys.masters
	if !masters.Any() {
		return Rewrapped{}, nil
	}
	read, err := c.s.readKeys(ctx, c.on(), "queue_keys_to_rewrap", after, masters.First(), masters.IDs(), most)
	if err != nil {
		return Rewrapped{}, err
	}
	var out Rewrapped
	for _, was := range read {
		out.Last = was.ID
		secret, err := masters.Unwrap(was)
		if errors.Is(err, seal.ErrNoMaster) { // another key under that name
			continue
		}
		if err != nil {
			return out, err
		}
		now := was
		if err := masters.Wrap(&now, secret); err != nil {
			return out, fmt.Errorf("wrap a key again: %w", err)
		}
		tag, err := c.on().Exec(ctx, c.s.sql.text("queue_key_rewrap"), now.Master, now.Bytes, was.ID, was.Master, was.Bytes)
		if err != nil {
			return out, fmt.Errorf("wrap a key again: %w", err)
		}
		out.Keys += int(tag.RowsAffected())
	}
	return out, nil
}

// KeysOfOtherMasters counts the keys that are not wrapped by the first master key, by the id of the one that does; without master keys it counts all.
func (c *Control) KeysOfOtherMasters(ctx context.Context) (map[string]int, error) {
	rows, err := c.on().Query(ctx, c.s.sql.text("queue_keys_of_others"), c.s.keys.masters.First())
	if err != nil {
		return nil, fmt.Errorf("count keys: %w", err)
	}
	counts := map[string]int{}
	var id string
	var n int
	_, err = pgx.ForEachRow(rows, []any{&id, &n}, func() error {
		counts[id] = n
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("count keys: %w", err)
	}
	return counts, nil
}
