package engine

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"postrider.dev/pkg/pg"
	"postrider.dev/pkg/tenant"
	"postrider.dev/services/dispatcher/internal/engine/catalog"
	"postrider.dev/services/dispatcher/internal/spool"
	"postrider.dev/services/dispatcher/internal/store"
)

const (
	// divertAfter is how long the database must have failed before it is called away.
	divertAfter = 500 * time.Millisecond
	// probeTimeout bounds the question whether the database is there, probeEvery is how often it is asked while it is away.
	probeTimeout = time.Second
	probeEvery   = 250 * time.Millisecond
	// nearRecords and nearBytes are a backlog that is drained in a moment: a push that has to queue behind it waits in memory, so that the backlog ends.
	nearRecords = 1000
	nearBytes   = 8 << 20
)

// spooler decides when pushes go to the spool, and brings them back. It is nil where there is no spool.
//
//	committing ── the database fails, by its error's class, for divertAfter, and does not answer a question ──▶ away
//	     ▲                                                                                                       │
//	     └───────────────────────────── the database answers and takes writes ◀──────────────────────────────────┘
//
// While it is away, or in maintenance, every push goes to the spool. Else those of partitions of which the spool holds something go there too, or wait
// until it is drained if that is near.
type spooler struct {
	e           *Engine
	log         *spool.Log
	backlog     *Backlog
	maintenance func() (on, known bool)
	wake        chan struct{} // the drainer's

	away      atomic.Bool
	draining  atomic.Bool
	oldest    atomic.Int64 // when the oldest record was accepted, Unix microseconds; 0: not known
	drained   atomic.Int64
	refusedOf atomic.Int64
	blocked   atomic.Int64 // records that are held because the key of their queue is missing
}

func newSpooler(e *Engine, parts Parts) *spooler {
	if parts.Spool == nil {
		return nil
	}
	return &spooler{e: e, log: parts.Spool, backlog: parts.Backlog, maintenance: e.maintenance, wake: make(chan struct{}, 1)}
}

// inMaintenance says that pushes are not to touch the database. Until the mode is known they may.
func (e *Engine) inMaintenance() bool {
	on, known := e.maintenance()
	return on && known
}

// isAway says that the database is known not to be there. A nil spooler never says so.
func (s *spooler) isAway() bool { return s != nil && s.away.Load() }

// suspect says whether the database is away, given what failed, and since when things fail. A failure that is not of the database's own class never makes
// it so, nor does anything as long as the database answers.
func (s *spooler) suspect(ctx context.Context, err error, since time.Time) bool {
	if s == nil || s.e.leaving.Load() {
		return false
	}
	slow := errors.Is(err, context.DeadlineExceeded) || pg.IsOutcomeUnknown(err)
	if !pg.IsUnavailable(err) && !slow {
		return false
	}
	if s.away.Load() {
		return true
	}
	if s.e.clk.Since(since) < divertAfter || s.probe(ctx) == nil && !refusesWrites(err) {
		return false
	}
	if s.away.CompareAndSwap(false, true) {
		s.e.log.Warn("the database is away: pushes go to the spool", zap.Error(err))
		s.prod()
	}
	return true
}

// refusesWrites says that the server answers, and does not write.
func refusesWrites(err error) bool { return pg.IsUnavailable(err) && !pg.IsConnectionLost(err) }

func (s *spooler) probe(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	return s.e.db.Writable(ctx)
}

// prod makes the drainer look.
func (s *spooler) prod() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// course is where a push goes.
type course uint8

const (
	toLog course = iota
	toSpool
	waits
)

// courseOf says where a push goes now. behind says that an earlier one of its queue waits.
func (s *spooler) courseOf(p *push, behind bool) course {
	switch {
	case s.away.Load(), s.e.inMaintenance():
		return toSpool
	case !behind && !s.backlog.holds(p):
		return toLog
	case s.backlog.records.Load() > nearRecords || s.backlog.bytes.Load() > nearBytes || s.e.clk.Now().After(p.deadline):
		return toSpool
	}
	return waits
}

// queueForPush looks the queue of a push up, and makes it if need be. While the database is away, what was last known of it must do.
func (e *Engine) queueForPush(ctx context.Context, t tenant.ID, name string) (*catalog.Queue, error) {
	if e.spool == nil {
		return e.queue(ctx, t, name, true)
	}
	began := e.clk.Now()
	for n := 0; ; n++ {
		if e.spool.isAway() {
			if q, ok := e.catalog.LastKnown(t, name); ok {
				return q, e.usable(q)
			}
			return nil, &UnavailableError{Err: errUnknownQueue}
		}
		q, err := e.catalog.Queue(ctx, t, name, true)
		if err == nil {
			return q, e.usable(q)
		}
		if ctx.Err() != nil {
			return nil, err
		}
		if e.spool.suspect(ctx, err, began) {
			continue
		}
		if !retryable(err) && !pg.IsOutcomeUnknown(err) || e.clk.Since(began) > e.cfg.Patience {
			return nil, err
		}
		e.trouble("look-up", err)
		if e.pauseBetween(ctx, n) != nil {
			return nil, err
		}
	}
}

// sort tells pushes that go to the log from those that go to the spool; those that wait stay with the lane.
func (l *flushLane) sort(ps []*push) (direct, diverted []*push) {
	s := l.e.spool
	if s == nil || len(l.waiting) == 0 && s.backlog.records.Load() == 0 && !s.away.Load() && !l.e.inMaintenance() {
		return ps, nil
	}
	behind := map[int64]bool{} // queues
	for _, p := range l.waiting {
		behind[p.queue.ID] = true
	}
	direct = ps[:0:0]
	for _, p := range ps {
		switch s.courseOf(p, behind[p.queue.ID]) {
		case toLog:
			direct = append(direct, p)
		case toSpool:
			diverted = append(diverted, p)
		case waits:
			if p.req.GetRequire() == committed {
				l.e.finish(p, ErrWouldBeBuffered)
				continue
			}
			behind[p.queue.ID] = true
			l.waiting = append(l.waiting, p)
		}
	}
	return direct, diverted
}

// divertSorted spools what sort chose, once what came before it is in the log. What has to come after a push that goes into the next batch does so too.
func (l *flushLane) divertSorted(diverted, next []*push) []*push {
	queues := map[int64]bool{}
	for _, p := range next {
		queues[p.queue.ID] = true
	}
	for _, p := range diverted {
		if queues[p.queue.ID] {
			next = append(next, p)
			continue
		}
		l.e.divert(p, nil)
	}
	return next
}

// divertAll spools pushes whose flush failed, in their order; parts are of a flush of which nobody knows.
func (l *flushLane) divertAll(ps []*push, parts []*part) {
	for _, p := range ps {
		l.e.divert(p, parts)
	}
}

// recheckAll makes the lanes look again at what waits.
func (s *spooler) recheckAll() {
	for _, l := range s.e.flushLanes {
		l.recheck.Store(true)
		select {
		case l.wake <- struct{}{}:
		default:
		}
	}
}

// soughtOf lists the flushes with which a push may have got into the log: those to its own shards, or, if it had nothing to append, any of the same
// transaction.
func soughtOf(p *push, parts []*part) []store.Sought {
	var own, others []store.Sought
	for _, c := range parts {
		if len(c.frames)+len(c.delayed) == 0 {
			continue
		}
		x := c.sought()
		if len(others) == 0 {
			others = append(others, x)
		}
		mine := func(o owner) bool { return o.p == p }
		if slices.ContainsFunc(c.owners, mine) || slices.ContainsFunc(c.delayed, mine) {
			own = append(own, x)
		}
	}
	if len(own) == 0 {
		return others
	}
	return own
}

// age is how old the oldest record is, in seconds.
func (s *spooler) age() float64 {
	if s == nil {
		return 0
	}
	at := s.oldest.Load()
	if at == 0 {
		return 0
	}
	return max(0, s.e.clk.Since(time.UnixMicro(at)).Seconds())
}

// SpoolState says what the spool holds and why.
type SpoolState struct {
	spool.Stats

	Away, Maintenance, Draining bool
	OldestAt                    time.Time // zero: nothing, or not known yet
	Drained, Refused            int64
	Blocked                     int64 // of the records: those whose queue's key is missing here
}

// Spool returns the state of the spool; false if there is none.
func (e *Engine) Spool() (SpoolState, bool) {
	s := e.spool
	if s == nil {
		return SpoolState{}, false
	}
	out := SpoolState{
		Stats: s.log.Stats(), Away: s.away.Load(), Maintenance: e.inMaintenance(), Draining: s.draining.Load(), Drained: s.drained.Load(), Refused: s.refusedOf.Load(),
	}
	if out.Blocked = s.blocked.Load(); out.Blocked > 0 {
		out.Records = int(s.backlog.records.Load()) // others are drained beside them, which the log does not know
	}
	if at := s.oldest.Load(); at != 0 && out.Records > 0 {
		out.OldestAt = time.UnixMicro(at)
	}
	return out, true
}
