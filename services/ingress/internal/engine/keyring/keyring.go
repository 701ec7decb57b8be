// Package keyring remembers API keys for a few seconds, so that authentication costs no query a request.
//
// A record is believed for Fresh. Then it is read again; while the database is away the old record is honoured until it is MaxStale old. A hint makes
// a record due for reading and nothing more, so a forged one costs a query. Keys that do not exist are remembered too, apart from the others, so that
// they push no good key out. Every new guess is a query all the same, so of ids that are not known only a few are read at once, in their order, and
// one whose turn does not come in time is answered ErrAway: guessing slows the first use of a key on a node, and nothing else.
package keyring

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/maypok86/otter/v2"
	"golang.org/x/sync/semaphore"
	"golang.org/x/sync/singleflight"

	"postrider.dev/pkg/clock"
	"postrider.dev/pkg/tenant"
	"postrider.dev/services/ingress/internal/domain"
)

const (
	maxKnown    = 100_000
	maxUnknown  = 10_000
	loadTimeout = 2 * time.Second
	retryEvery  = time.Second // while the database is away
)

var (
	// ErrRefused says that the key does not exist, has another secret, expired or was revoked: which one is nobody's business.
	ErrRefused = errors.New("key refused")
	// ErrAway says that the key is not known here and the database cannot be asked.
	ErrAway = errors.New("key cannot be checked now")
)

// Source reads a key's record; domain.ErrNotFound if there is none, domain.ErrAway if it cannot be asked.
type Source interface {
	Key(ctx context.Context, id domain.KeyID) (domain.APIKey, error)
}

// Config says how long records are believed.
type Config struct {
	Fresh     time.Duration
	MaxStale  time.Duration
	Strangers int64 // ids that are not known and are read at once; MUST be less than the source bears
}

// Ring is a cache of keys. It is safe for concurrent use.
type Ring struct {
	cfg     Config
	source  Source
	clk     clock.Clock
	known   *otter.Cache[domain.KeyID, record]
	unknown *otter.Cache[domain.KeyID, time.Time] // when it was found missing
	loads   singleflight.Group
	turns   *semaphore.Weighted // for ids that are not known
}

type record struct {
	key    domain.APIKey
	readAt time.Time
	due    time.Time // when it must be read again
}

// New returns an empty ring over source.
func New(source Source, clk clock.Clock, cfg Config) (*Ring, error) {
	known, err := otter.New(&otter.Options[domain.KeyID, record]{MaximumSize: maxKnown})
	if err != nil {
		return nil, fmt.Errorf("key cache: %w", err)
	}
	unknown, err := otter.New(&otter.Options[domain.KeyID, time.Time]{MaximumSize: maxUnknown})
	if err != nil {
		return nil, fmt.Errorf("key cache: %w", err)
	}
	return &Ring{cfg: cfg, source: source, clk: clk, known: known, unknown: unknown, turns: semaphore.NewWeighted(cfg.Strangers)}, nil
}

// Check returns who the key speaks for, ErrRefused or ErrAway.
func (r *Ring) Check(ctx context.Context, key domain.Key) (tenant.Caller, error) {
	rec, err := r.record(ctx, key.ID)
	if err != nil {
		return tenant.Caller{}, err
	}
	if !key.Matches(rec.key.Hash) || !rec.key.Live(r.clk.Since(rec.readAt)) {
		return tenant.Caller{}, ErrRefused
	}
	return rec.key.Caller(), nil
}

func (r *Ring) record(ctx context.Context, id domain.KeyID) (record, error) {
	now := r.clk.Now()
	if rec, ok := r.known.GetIfPresent(id); ok && now.Before(rec.due) {
		return rec, nil
	}
	if at, ok := r.unknown.GetIfPresent(id); ok && now.Sub(at) < r.cfg.Fresh {
		return record{}, ErrRefused
	}
	loaded := r.loads.DoChan(string(id), func() (any, error) { return r.load(context.WithoutCancel(ctx), id) })
	select {
	case res := <-loaded:
		rec, _ := res.Val.(record)
		return rec, res.Err
	case <-ctx.Done():
		return record{}, context.Cause(ctx)
	}
}

// load reads the record again. It runs once for all that wait for it, so it does not end with one of them.
func (r *Ring) load(ctx context.Context, id domain.KeyID) (record, error) {
	ctx, cancel := context.WithTimeout(ctx, loadTimeout)
	defer cancel()
	if _, known := r.known.GetIfPresent(id); !known {
		if err := r.turns.Acquire(ctx, 1); err != nil {
			return record{}, fmt.Errorf("%w: its turn did not come: %w", ErrAway, err)
		}
		defer r.turns.Release(1)
	}
	began := r.clk.Now()
	key, err := r.source.Key(ctx, id)
	switch {
	case err == nil:
		rec := record{key: key, readAt: began, due: began.Add(r.cfg.Fresh)}
		r.known.Set(id, rec)
		r.unknown.Invalidate(id)
		return rec, nil
	case errors.Is(err, domain.ErrNotFound):
		r.known.Invalidate(id)
		r.unknown.Set(id, began)
		return record{}, ErrRefused
	case errors.Is(err, domain.ErrAway), errors.Is(err, context.DeadlineExceeded):
		return r.stale(id, err)
	}
	return record{}, err
}

// stale returns the old record while the database is away.
func (r *Ring) stale(id domain.KeyID, cause error) (record, error) {
	rec, ok := r.known.GetIfPresent(id)
	now := r.clk.Now()
	if !ok || now.Sub(rec.readAt) > r.cfg.MaxStale {
		return record{}, fmt.Errorf("%w: %w", ErrAway, cause)
	}
	rec.due = now.Add(retryEvery)
	r.known.Set(id, rec)
	return rec, nil
}

// Invalidate makes the key be read again at its next use.
func (r *Ring) Invalidate(id domain.KeyID) {
	r.unknown.Invalidate(id)
	if rec, ok := r.known.GetIfPresent(id); ok {
		rec.due = time.Time{}
		r.known.Set(id, rec)
	}
}

// InvalidateAll is Invalidate for every key.
func (r *Ring) InvalidateAll() {
	for id := range r.known.All() {
		r.Invalidate(id)
	}
	r.unknown.InvalidateAll()
}
