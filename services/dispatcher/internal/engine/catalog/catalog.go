// Package catalog remembers which queues and groups exist, so that a push or a pop asks the database about names only once in a while.
//
// It is a cache and holds no truth. An entry may be out of date by at most Settings.Refresh, and by less where a hint or a config_version seen in a
// flush says so; what is out of date costs a query and never a wrong effect, because every write is arbitrated by the rows themselves: the shards of
// a deleted queue are sealed, the rows of a deleted group are gone. Refusals are never given from memory: a queue that memory calls missing for
// longer than a moment, or a group that memory says has other options, is read again first.
//
// Entries are keyed by (tenant, name): no tenant can reach another's entry.
package catalog

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/maypok86/otter/v2"

	"postrider.dev/pkg/clock"
	"postrider.dev/pkg/tenant"
	"postrider.dev/services/dispatcher/internal/store"
)

// Rows is where the truth is. Its methods are those of store.Control.
type Rows interface {
	// FindQueue returns the live queue of that name, or an error matching store.ErrQueueNotFound.
	FindQueue(ctx context.Context, t tenant.ID, name string) (store.Queue, error)
	// EnsureQueue returns the live queue of that name, made with default options if there was none.
	EnsureQueue(ctx context.Context, t tenant.ID, name string) (q store.Queue, created bool, err error)
	// FindGroup returns the group, or an error matching store.ErrGroupNotFound.
	FindGroup(ctx context.Context, q store.Queue, name string) (store.Group, error)
	// EnsureGroup returns the group, made with options if there was none. See store.Control.
	EnsureGroup(ctx context.Context, q store.Queue, name string, options store.GroupOptions) (g store.Group, created bool, err error)
}

// Settings of a Catalog.
type Settings struct {
	// Refresh is the longest an entry is believed; 60 s.
	Refresh time.Duration
	// Known is the longest a queue is remembered for when the database cannot be asked; 10 min.
	Known time.Duration
	// Missing is the longest a name is believed not to exist; 1 s.
	Missing time.Duration
	// Queues and Groups bound how many entries are kept; 50,000 and 100,000.
	Queues, Groups int
	// LoadTimeout bounds one read; 5 s.
	LoadTimeout time.Duration
}

// Defaults returns the settings used where nothing else is said.
func Defaults() Settings {
	return Settings{Refresh: time.Minute, Known: 10 * time.Minute, Missing: time.Second, Queues: 50_000, Groups: 100_000, LoadTimeout: 5 * time.Second}
}

// Queue is a queue as it was at one moment. It is never changed, so it may be kept as long as a request lasts.
type Queue struct {
	store.Queue

	seen uint64 // taken from Catalog.reads before the row was read
}

// Group is a group as it was at one moment. It is never changed. Shards[i] is its group-shard for shard i of the queue.
type Group struct {
	store.Group

	seen uint64
}

type queueKey struct {
	tenant tenant.ID
	name   string
}

type groupKey struct {
	queue int64
	name  string
}

// Catalog is safe for concurrent use. It starts no goroutine.
type Catalog struct {
	rows Rows
	set  Settings

	reads  atomic.Uint64 // counts reads begun; gives an order to what was seen
	queues *otter.Cache[queueKey, *Queue]
	known  *otter.Cache[queueKey, *Queue] // as last read, whatever was heard of it since
	groups *otter.Cache[groupKey, *Group]
}

// New returns an empty Catalog.
func New(rows Rows, clk clock.Clock, set Settings) (*Catalog, error) {
	c := &Catalog{rows: rows, set: set}
	var err error
	c.queues, err = otter.New(&otter.Options[queueKey, *Queue]{
		MaximumSize: set.Queues,
		Clock:       ticking{clk},
		ExpiryCalculator: otter.ExpiryWritingFunc(func(e otter.Entry[queueKey, *Queue]) time.Duration {
			if e.Value == nil {
				return set.Missing
			}
			return set.Refresh
		}),
	})
	if err != nil {
		return nil, fmt.Errorf("queue cache: %w", err)
	}
	c.known, err = otter.New(&otter.Options[queueKey, *Queue]{
		MaximumSize: set.Queues, Clock: ticking{clk}, ExpiryCalculator: otter.ExpiryWriting[queueKey, *Queue](set.Known),
	})
	if err != nil {
		return nil, fmt.Errorf("queue cache: %w", err)
	}
	c.groups, err = otter.New(&otter.Options[groupKey, *Group]{
		MaximumSize:      set.Groups,
		Clock:            ticking{clk},
		ExpiryCalculator: otter.ExpiryWriting[groupKey, *Group](set.Refresh),
	})
	if err != nil {
		return nil, fmt.Errorf("group cache: %w", err)
	}
	return c, nil
}

// Queue returns the live queue of that name. With create, one that does not exist is made with default options; without, the error matches
// store.ErrQueueNotFound, and may be a moment (Settings.Missing) behind a creation elsewhere. Concurrent calls for one name share one read.
// The name MUST have been validated.
func (c *Catalog) Queue(ctx context.Context, t tenant.ID, name string, create bool) (*Queue, error) {
	key := queueKey{t, name}
	if create {
		return c.createQueue(ctx, key)
	}
	q, err := c.queues.Get(ctx, key, otter.LoaderFunc[queueKey, *Queue](c.loadQueue))
	if err != nil {
		return nil, err
	}
	if q == nil {
		return nil, fmt.Errorf("queue %q: %w", name, store.ErrQueueNotFound)
	}
	return q, nil
}

// createQueue returns the queue, made if need be. Racing callers on all dispatchers get the same one: the unique index decides.
func (c *Catalog) createQueue(ctx context.Context, key queueKey) (*Queue, error) {
	for {
		q, err := c.queues.Get(ctx, key, otter.LoaderFunc[queueKey, *Queue](c.ensureQueue))
		if err != nil || q != nil {
			return q, err
		}
		// An absence was remembered, or we shared a read that makes nothing.
		c.queues.ComputeIfPresent(key, func(known *Queue) (*Queue, otter.ComputeOp) {
			if known == nil {
				return nil, otter.InvalidateOp
			}
			return known, otter.CancelOp
		})
	}
}

func (c *Catalog) ensureQueue(ctx context.Context, key queueKey) (*Queue, error) {
	ctx, cancel := c.loadContext(ctx)
	defer cancel()
	seen := c.reads.Add(1)
	row, _, err := c.rows.EnsureQueue(ctx, key.tenant, key.name)
	if err != nil {
		return nil, err
	}
	q := &Queue{Queue: row, seen: seen}
	c.known.Set(key, q)
	return q, nil
}

// LastKnown returns the queue as it was read last, if that is no longer ago than Settings.Known. It is for when the database cannot be asked, and for
// nothing else: the queue may have been changed or deleted.
func (c *Catalog) LastKnown(t tenant.ID, name string) (*Queue, bool) {
	return c.known.GetIfPresent(queueKey{t, name})
}

// Cached returns the queue if it is remembered, without waiting for anything; false says nothing about whether it exists.
func (c *Catalog) Cached(t tenant.ID, name string) (*Queue, bool) {
	q, ok := c.queues.GetIfPresent(queueKey{t, name})
	return q, ok && q != nil
}

func (c *Catalog) loadQueue(ctx context.Context, key queueKey) (*Queue, error) {
	ctx, cancel := c.loadContext(ctx)
	defer cancel()
	seen := c.reads.Add(1)
	row, err := c.rows.FindQueue(ctx, key.tenant, key.name)
	if errors.Is(err, store.ErrQueueNotFound) {
		c.known.Invalidate(key)
		return nil, nil //nolint:nilnil // the absence is what is remembered
	}
	if err != nil {
		return nil, err
	}
	q := &Queue{Queue: row, seen: seen}
	c.known.Set(key, q)
	return q, nil
}

// Group returns the group of q with that name, made with the options given if there is none. Options given (not zero) must agree with those of an
// existing group, or the error is an *invalid.Error with code GROUP_MISMATCH, given only after the group was read again. An error matching
// store.ErrQueueNotFound means that q is deleted: the caller should drop q and look the queue up again.
func (c *Catalog) Group(ctx context.Context, q *Queue, name string, given store.GroupOptions) (*Group, error) {
	key := groupKey{q.ID, name}
	if g, ok := c.groups.GetIfPresent(key); ok && g.seen >= q.seen && given.Agrees(g.Group.Group) == nil {
		return g, nil
	}
	load := c.groupLoader(func(ctx context.Context) (store.Group, error) {
		row, _, err := c.rows.EnsureGroup(ctx, q.Queue, name, given)
		return row, err
	})
	c.forgetOlder(key, q, given)
	for {
		g, err := c.groups.Get(ctx, key, load)
		switch {
		case errors.Is(err, store.ErrGroupNotFound): // we shared the read of a KnownGroup, which makes nothing
		case err != nil:
			return nil, err
		default:
			return g, given.Agrees(g.Group.Group)
		}
	}
}

// KnownGroup returns the group of q with that name; if there is none, an error matching store.ErrGroupNotFound, which is read and never remembered.
func (c *Catalog) KnownGroup(ctx context.Context, q *Queue, name string) (*Group, error) {
	key := groupKey{q.ID, name}
	if g, ok := c.groups.GetIfPresent(key); ok && g.seen >= q.seen {
		return g, nil
	}
	c.forgetOlder(key, q, store.GroupOptions{})
	return c.groups.Get(ctx, key, c.groupLoader(func(ctx context.Context) (store.Group, error) {
		return c.rows.FindGroup(ctx, q.Queue, name)
	}))
}

// forgetOlder forgets what is remembered of a group if it was read before q was, or disagrees with the options given. A read in flight goes on.
func (c *Catalog) forgetOlder(key groupKey, q *Queue, given store.GroupOptions) {
	c.groups.ComputeIfPresent(key, func(known *Group) (*Group, otter.ComputeOp) {
		if known.seen < q.seen || given.Agrees(known.Group.Group) != nil {
			return nil, otter.InvalidateOp
		}
		return known, otter.CancelOp
	})
}

func (c *Catalog) groupLoader(read func(context.Context) (store.Group, error)) otter.LoaderFunc[groupKey, *Group] {
	return func(ctx context.Context, _ groupKey) (*Group, error) {
		ctx, cancel := c.loadContext(ctx)
		defer cancel()
		seen := c.reads.Add(1)
		row, err := read(ctx)
		if err != nil {
			return nil, err
		}
		return &Group{Group: row, seen: seen}, nil
	}
}

// loadContext detaches a read from the caller that happened to start it, because others wait for it too.
func (c *Catalog) loadContext(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), c.set.LoadTimeout)
}
