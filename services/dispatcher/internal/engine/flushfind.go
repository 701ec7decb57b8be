package engine

import (
	"context"
	"errors"

	"postrider.dev/services/dispatcher/internal/store"
)

// errNotHappened says that a flush with an unknown outcome turned out not to be in the log.
var errNotHappened = errors.New("the flush did not reach the log")

// recover finds out whether a flush with an unknown outcome is in the database (R5), and answers as the flush would have.
func (l *flushLane) recover(ctx context.Context, parts []*part, cause error) ([]store.Appended, error) {
	l.e.trouble("flush", cause)
	sought := make([]store.Sought, len(parts))
	for i, c := range parts {
		sought[i] = store.Sought{Shard: c.shard, FlushID: c.id, Known: c.known}
		for _, d := range c.delayed {
			sought[i].Pending = append(sought[i].Pending, d.p.items[d.item].later.pending)
		}
	}
	results, found, err := l.find(ctx, sought)
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
	end := l.e.clk.Now().Add(l.e.cfg.Patience)
	for n := 0; ; n++ {
		sctx, cancel := context.WithTimeout(ctx, l.e.cfg.StatementTimeout)
		results, found, err := l.e.db.FindFlush(sctx, sought)
		cancel()
		if err == nil || errors.Is(err, store.ErrTrimmedSince) {
			return results, found, err
		}
		if l.e.clk.Now().After(end) || l.e.pauseBetween(ctx, n) != nil {
			return nil, false, &OutcomeUnknownError{Err: err}
		}
	}
}
