package loop

import (
	"context"
	"errors"
	"slices"
	"time"

	"go.uber.org/zap"

	"postrider.dev/pkg/clock"
	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/store"
)

const (
	// lookEvery is the longest between two looks: what another dispatcher accepted is found in time if it is due later than that, and else this much late
	// at most where that dispatcher died.
	lookEvery = time.Second
	// lookAgain is between two looks while something is due that another dispatcher is moving.
	lookAgain = 20 * time.Millisecond
	// lookBack is how far before the database's time looks begin. It spares a walk over the dead rows that a long snapshot, such as a backup, holds back.
	lookBack = time.Minute
	// blockedFor is how long a shard is passed over whose due messages cannot be moved.
	blockedFor = 5 * time.Second
	// lookAllEvery is how often a look begins at the very first row: what became due longer ago than lookBack was left behind by an outage.
	lookAllEvery = 30 * time.Second
)

// dueStore is where messages wait for their time.
type dueStore interface {
	// FlushDue moves some of what is due into the log, but for that of some shards.
	FlushDue(ctx context.Context, since time.Time, except []message.ShardID) (store.Due, error)
	// NextDue returns the database's time and the time of the next message, zero if there is none.
	NextDue(ctx context.Context, since time.Time, except []message.ShardID) (now, next time.Time, err error)
}

// dueEngine is told what came due, and tells what was accepted.
type dueEngine interface {
	Arrived(due store.Due)
	// Withheld says what keeps the messages of a queue from being moved.
	Withheld(store.BlockedShard)
	DueSooner() <-chan struct{}
	WillLook(at time.Time)
}

// Delayer moves delayed messages into their logs when they are due. The rows decide: it remembers nothing that has to be true, and any number of dispatchers
// do the same.
type Delayer struct {
	db      dueStore
	engine  dueEngine
	clk     clock.Clock
	log     *zap.Logger
	lastAll time.Time                     // by this process's clock
	dbNow   time.Time                     // by the database's, at the last look
	blocked map[message.ShardID]time.Time // until when they are passed over, by this process's clock
}

// NewDelayer returns a Delayer.
func NewDelayer(db dueStore, engine dueEngine, clk clock.Clock, log *zap.Logger) *Delayer {
	return &Delayer{db: db, engine: engine, clk: clk, log: log, blocked: map[message.ShardID]time.Time{}}
}

// Run moves messages until ctx ends.
func (d *Delayer) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		wait, err := d.Round(ctx)
		if err != nil {
			if ctx.Err() == nil && !errors.Is(err, context.Canceled) {
				d.log.Warn("round failed", zap.String("part", "delayer"), zap.Error(err))
			}
			wait = clock.Jitter(clock.Random{}, lookEvery, 0.1)
		}
		t := d.clk.NewTimer(wait)
		select {
		case <-t.C():
		case <-d.engine.DueSooner():
		case <-ctx.Done():
		}
		t.Stop()
	}
	return nil
}

// Round moves all that is due now and returns how long to wait for the next.
func (d *Delayer) Round(ctx context.Context) (time.Duration, error) {
	d.engine.WillLook(time.Time{}) // before anything is read: what is accepted meanwhile is told
	since := d.since()
	for {
		except := d.passedOver()
		now, next, err := d.db.NextDue(ctx, since, except)
		if err != nil {
			return 0, err
		}
		moved := false
		if !next.IsZero() && !next.After(now) {
			due, err := d.db.FlushDue(ctx, since, except)
			if err != nil {
				return 0, err
			}
			d.engine.Arrived(due)
			for _, b := range due.Blocked {
				d.blocked[b.Shard] = d.clk.Now().Add(blockedFor)
				d.engine.Withheld(b)
			}
			moved = due.More
		}
		if moved && ctx.Err() == nil {
			continue
		}
		d.dbNow = now
		if since.IsZero() {
			d.lastAll = d.clk.Now()
		}
		wait := pause(now, next)
		d.engine.WillLook(now.Add(wait))
		return wait, nil
	}
}

// passedOver are the shards whose due messages are left alone for now, so that those of others are not kept from coming.
func (d *Delayer) passedOver() []message.ShardID {
	var out []message.ShardID
	for shard, until := range d.blocked {
		if d.clk.Now().Before(until) {
			out = append(out, shard)
		} else {
			delete(d.blocked, shard)
			d.lastAll = time.Time{} // what it holds may have been due for long
		}
	}
	slices.Sort(out)
	return out
}

// pause is how long it is until the next look.
func pause(now, next time.Time) time.Duration {
	wait := clock.Jitter(clock.Random{}, lookEvery, 0.1)
	switch {
	case next.IsZero():
		return wait
	case next.After(now):
		return min(wait, next.Sub(now))
	}
	return lookAgain
}

// since is where a look begins: near the present, and now and then, as after a failure, at the very first row.
func (d *Delayer) since() time.Time {
	if d.dbNow.IsZero() || d.clk.Since(d.lastAll) >= lookAllEvery {
		return time.Time{}
	}
	return d.dbNow.Add(-lookBack)
}
