package engine

import (
	"context"
	"errors"
	"time"

	"postrider.dev/services/dispatcher/internal/store"
)

// errNotHappened says that a flush with an unknown outcome turned out not to be in the log.
var errNotHappened = errors.New("the flush did not reach the log")

// findTimeout bounds one question for a flush where there is a spool to keep what cannot be found.
const findTimeout = 3 * time.Second

// doubtError says that nobody knows whether a flush happened and that the database is away: its pushes go to the spool, which looks for the flush when the
// database is back.
type doubtError struct{ parts []*part }

func (*doubtError) Error() string { return errDoubt.Error() }

// sought says how the part is found.
func (c *part) sought() store.Sought {
	x := store.Sought{Shard: c.shard, FlushID: c.id, Known: c.known}
	for _, d := range c.delayed {
		x.Pending = append(x.Pending, d.p.items[d.item].later.pending)
	}
	return x
}

// recover finds out whether a flush with an unknown outcome is in the database (R5), and answers as the flush would have.
func (l *flushLane) recover(ctx context.Context, parts []*part, cause error) ([]store.Appended, error) {
	l.e.trouble("flush", cause)
	sought := make([]store.Sought, len(parts))
	for i, c := range parts {
		sought[i] = c.sought()
	}
	results, found, err := l.find(ctx, sought)
	if errors.Is(err, errDoubt) {
		return nil, &doubtError{parts}
	}
	if errors.Is(err, store.ErrTrimmedSince) && deduplicated(parts) {
		return nil, errNotHappened // and if it did, the keys know
	}
	if errors.Is(err, store.ErrTrimmedSince) {
		return nil, &OutcomeUnknownError{Err: err}
	}
	if err != nil {
		return nil, err
	}
	if !found { // nor is it if there was nothing to append: keys make the repetition harmless then
		return nil, errNotHappened
	}
	for i, c := range parts {
		if c.judged && len(c.frames) == 0 { // committed with the others
			results[i] = store.Appended{Shard: c.shard, Status: store.StatusNothing, ConfigVersion: results[i].ConfigVersion}
		}
	}
	return results, nil
}

// deduplicated says that keys keep all of the parts from being appended twice.
func deduplicated(parts []*part) bool {
	for _, c := range parts {
		for _, o := range c.offered {
			if !o.p.deduplicated() {
				return false
			}
		}
	}
	return true
}

// find asks until it gets an answer or patience ends.
func (l *flushLane) find(ctx context.Context, sought []store.Sought) ([]store.Appended, bool, error) {
	began, timeout := l.e.clk.Now(), l.e.cfg.StatementTimeout
	end := began.Add(l.e.cfg.Patience)
	if l.e.spool != nil {
		timeout = min(timeout, findTimeout)
	}
	for n := 0; ; n++ {
		sctx, cancel := context.WithTimeout(ctx, timeout)
		results, found, err := l.e.db.FindFlush(sctx, sought)
		cancel()
		if err == nil || errors.Is(err, store.ErrTrimmedSince) {
			return results, found, err
		}
		if l.e.spool.suspect(ctx, err, began) {
			return nil, false, errDoubt
		}
		if l.e.clk.Now().After(end) || l.e.pauseBetween(ctx, n) != nil {
			return nil, false, &OutcomeUnknownError{Err: err}
		}
	}
}
