package store

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"

	"github.com/jackc/pgx/v5"

	"postrider.dev/pkg/pg"
	"postrider.dev/services/dispatcher/internal/domain/invalid"
	"postrider.dev/services/dispatcher/internal/domain/seal"
)

// ErrKeyMissing says that something is encrypted with a key that no master key configured here unwraps. What is encrypted with it waits: it is refused, and
// never dropped, dead-lettered or written in clear.
var ErrKeyMissing = errors.New("the encryption key is missing")

// ErrKeyGone says that the key is not there any more: it went with its queue, and what is encrypted with it opens never again. It matches ErrKeyMissing too.
var ErrKeyGone = errors.New("the encryption key was deleted")

// purposes of keys, as they are stored.
const (
	keyOfNames = "names"
	keyOfData  = "data"
)

// Keys are those of an encrypted queue that are in use. They are immutable.
type Keys struct {
	names *seal.Names
	data  *seal.Key
	err   error // matches ErrKeyMissing: there is nothing to encrypt or hash with
}

// maxKnownKeys bounds how many data keys a keyring remembers; forgetting costs a look-up.
const maxKnownKeys = 10_000

// keyring unwraps keys and remembers them.
type keyring struct {
	masters seal.Masters

	mu    sync.Mutex // guards known
	known map[int32]*seal.Key
}

// unwrap returns the secret of a key; the error matches ErrKeyMissing.
func (r *keyring) unwrap(w seal.Wrapped) ([]byte, error) {
	secret, err := r.masters.Unwrap(w)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrKeyMissing, err)
	}
	return secret, nil
}

// get returns a data key that is remembered.
func (r *keyring) get(id int32) *seal.Key {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.known[id]
}

func (r *keyring) put(k *seal.Key) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.known == nil || len(r.known) >= maxKnownKeys {
		r.known = map[int32]*seal.Key{}
	}
	r.known[k.ID()] = k
}

// dataKeys returns the data keys of these ids that are not remembered yet together with those that are. One that cannot be had is left out and its error is
// told by keyError.
func (s *Store) dataKeys(ctx context.Context, on querier, ids []int32) (map[int32]*seal.Key, error) {
	out := make(map[int32]*seal.Key, len(ids))
	var absent []int32
	for _, id := range ids {
		if id == 0 || out[id] != nil {
			continue
		}
		if k := s.keys.get(id); k != nil {
			out[id] = k
		} else {
			absent = append(absent, id)
		}
	}
	if len(absent) == 0 {
		return out, nil
	}
	read, err := s.readKeys(ctx, on, "queue_keys_by_id", absent)
	if err != nil {
		return nil, err
	}
	for _, w := range read {
		secret, err := s.keys.unwrap(w)
		if err != nil {
			return nil, err
		}
		k, err := seal.NewKey(w.Queue, w.ID, secret)
		if err != nil {
			return nil, err
		}
		s.keys.put(k)
		out[w.ID] = k
	}
	for _, id := range absent {
		if out[id] == nil {
			return nil, fmt.Errorf("there is no key %d: %w: %w", id, ErrKeyMissing, ErrKeyGone)
		}
	}
	return out, nil
}

// DataKey returns the data key of that id. The error matches ErrKeyMissing where it cannot be unwrapped here, and ErrKeyGone too where there is none.
func (s *Store) DataKey(ctx context.Context, id int32) (*seal.Key, error) {
	keys, err := s.dataKeys(ctx, s.db, []int32{id})
	return keys[id], err
}

func (s *Store) readKeys(ctx context.Context, on querier, statement string, args ...any) ([]seal.Wrapped, error) {
	rows, err := on.Query(ctx, s.sql.text(statement), args...)
	if err != nil {
		return nil, fmt.Errorf("read keys: %w", err)
	}
	read, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (w seal.Wrapped, err error) {
		return w, row.Scan(&w.ID, &w.Queue, &w.Purpose, &w.Master, &w.Bytes)
	})
	if err != nil {
		return nil, fmt.Errorf("read keys: %w", err)
	}
	return read, nil
}

// loadKeys gives an encrypted queue the keys in use. Keys that cannot be unwrapped are no error here: such a queue can still be shown and deleted.
func (c *Control) loadKeys(ctx context.Context, on querier, q *Queue) error {
	if !q.Encrypted() {
		return nil
	}
	read, err := c.s.readKeys(ctx, on, "queue_keys_in_use", q.ID)
	if err != nil {
		return err
	}
	keys := &Keys{}
	for _, w := range read {
		if err := keys.add(&c.s.keys, w); err != nil {
			keys.err = fmt.Errorf("queue %q: %w", q.Name, err)
		}
	}
	if keys.err == nil && (keys.names == nil || keys.data == nil) {
		keys.err = fmt.Errorf("queue %q has no keys: %w", q.Name, ErrKeyMissing)
	}
	q.keys = keys
	return nil
}

func (k *Keys) add(r *keyring, w seal.Wrapped) error {
	secret, err := r.unwrap(w)
	if err != nil {
		return err
	}
	if w.Purpose == keyOfNames {
		k.names, err = seal.NewNames(secret)
		return err
	}
	if k.data, err = seal.NewKey(w.Queue, w.ID, secret); err == nil {
		r.put(k.data)
	}
	return err
}

// checkMasters refuses an encrypted queue where no key is configured to encrypt with.
func (c *Control) checkMasters() error {
	if c.s.keys.masters.Any() {
		return nil
	}
	return invalid.New(invalid.NoEncryptionKey, "encryption", "needs POSTRIDER_ENCRYPTION_KEYS, and this dispatcher has none")
}

// makeKeys gives a new encrypted queue its keys, in the transaction that makes it.
func (c *Control) makeKeys(ctx context.Context, tx pg.Tx, q *Queue) error {
	for _, purpose := range []string{keyOfNames, keyOfData} {
		if err := c.makeKey(ctx, tx, q.ID, purpose); err != nil {
			return err
		}
	}
	return c.loadKeys(ctx, tx, q)
}

// makeKey draws a key and stores it wrapped.
func (c *Control) makeKey(ctx context.Context, tx pg.Tx, queueID int64, purpose string) error {
	w := seal.Wrapped{Queue: queueID, Purpose: purpose}
	if err := tx.QueryRow(ctx, c.s.sql.text("queue_key_ids"), 1).Scan(&w.ID); err != nil {
		return fmt.Errorf("number a key: %w", err)
	}
	secret := make([]byte, seal.KeyBytes)
	_, _ = rand.Read(secret) // never fails
	if err := c.s.keys.masters.Wrap(&w, secret); err != nil {
		return fmt.Errorf("wrap a key: %w", err)
	}
	return c.exec(ctx, tx, "queue_key_put", w.ID, w.Queue, w.Purpose, w.Master, w.Bytes)
}
