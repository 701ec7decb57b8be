package loop

import (
	"context"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"go.uber.org/zap"

	"postrider.dev/pkg/clock"
	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/retention"
	"postrider.dev/services/dispatcher/internal/domain/window"
	"postrider.dev/services/dispatcher/internal/store"
)

// What one round does at most.
const (
	trimQueues   = 1_000 // queues looked at; the next round goes on behind them
	trimSegments = 200   // segments taken by one statement
	trimSteps    = 25    // statements for one shard
	trimNames    = 2_000 // names of a queue's catalogue looked at
)

// trimStore is the database as the trimmer uses it.
type trimStore interface {
	QueuesAfter(ctx context.Context, after int64, limit int) ([]store.Queue, error)
	ShardsToTrim(ctx context.Context, known map[message.ShardID]message.Offset) (map[message.ShardID]retention.Shard, error)
	GroupsOf(ctx context.Context, queues []int64) ([]store.GroupShards, error)
	ProgressOf(ctx context.Context, asked []store.AskedProgress) (map[window.GroupShardID]store.GroupShardState, error)
	Trim(ctx context.Context, shard message.ShardID, at retention.Shard, cut retention.Cut, most int) (store.Trimmed, error)
	TrimPartitions(ctx context.Context, queueID int64, after string, tails map[message.ShardID]message.Offset, most int) (string, bool, error)
}

// groupTrimmer tells groups what the log does not hold any more.
type groupTrimmer interface {
	Trim(ctx context.Context, id window.GroupShardID, seen window.Version, to message.Offset) error
}

// Trimmer applies retention. Every dispatcher runs one; the shard's row lock decides between them, and whatever one that died left undone, the next round of
// any other finds: it is all in the rows.
type Trimmer struct {
	db     trimStore
	groups groupTrimmer
	clk    clock.Clock
	log    *zap.Logger
	period time.Duration

	after int64 // the queue that the last round ended with

	// What was seen last, so that the database need not walk old versions of rows. Losing it costs that walk.
	heads    map[message.ShardID]message.Offset
	versions map[window.GroupShardID]window.Version
	names    map[int64]*cataloguePlace // of queues whose catalogue is to be looked through
	rests    map[int64]respite         // of queues of which nothing is due yet

	segments, messages, bytes prometheus.Counter
}

// cataloguePlace is how far a queue's catalogue was looked through.
type cataloguePlace struct {
	done  message.Offset // the sum of the tails it was last looked through for
	now   message.Offset // the sum it is being looked through for
	after string
}

// maxSeen bounds what a trimmer remembers.
const maxSeen = 1 << 17

// NewTrimmer returns a Trimmer.
func NewTrimmer(db trimStore, groups groupTrimmer, clk clock.Clock, log *zap.Logger, reg prometheus.Registerer, period time.Duration) *Trimmer {
	f := promauto.With(reg)
	count := func(name, help string) prometheus.Counter {
		return f.NewCounter(prometheus.CounterOpts{Namespace: "postrider", Subsystem: "dispatcher", Name: name, Help: help})
	}
	return &Trimmer{
		db: db, groups: groups, clk: clk, log: log, period: period,
		heads: map[message.ShardID]message.Offset{}, versions: map[window.GroupShardID]window.Version{}, names: map[int64]*cataloguePlace{},
		rests:    map[int64]respite{},
		segments: count("segments_trimmed_total", "Segments that retention took."),
		messages: count("messages_trimmed_total", "Messages that retention took, settled or not."),
		bytes:    count("bytes_trimmed_total", "Stored bytes that retention took."),
	}
}

// Run trims until ctx ends.
func (t *Trimmer) Run(ctx context.Context) error {
	return every(ctx, t.clk, t.period, t.log, "trimmer", t.Round)
}

// Round looks at the next queues and trims what is to go. A failure at one queue does not keep the others.
func (t *Trimmer) Round(ctx context.Context) error {
	if len(t.heads)+len(t.versions)+len(t.names)+len(t.rests) > maxSeen {
		clear(t.heads)
		clear(t.versions)
		clear(t.names)
		clear(t.rests)
	}
	queues, err := t.db.QueuesAfter(ctx, t.after, trimQueues)
	if err != nil {
		return err
	}
	if t.after = 0; len(queues) == trimQueues {
		t.after = queues[len(queues)-1].ID
	}
	batch := make([]*trimming, 0, len(queues))
	for _, q := range queues {
		if q.Config.Retention.Any() && !t.resting(&q) {
			batch = append(batch, &trimming{Queue: q})
		}
	}
	if len(batch) == 0 {
		return nil
	}
	if err := t.look(ctx, batch); err != nil {
		return err
	}
	var errs []error
	for _, q := range batch {
		if ctx.Err() != nil {
			break
		}
		if err := t.trim(ctx, q); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// trimming is one queue of a round.
type trimming struct {
	store.Queue

	shards []retention.Shard // in the order of the queue's; without a head where the row is gone
	groups []groupProgress
}

type groupProgress struct {
	store.GroupShards

	states []store.GroupShardState
}

// look reads what the queues of a round hold and how far their groups are, in three statements.
func (t *Trimmer) look(ctx context.Context, batch []*trimming) error {
	asked := map[message.ShardID]message.Offset{}
	byID := make(map[int64]*trimming, len(batch))
	ids := make([]int64, 0, len(batch))
	for _, q := range batch {
		byID[q.ID] = q
		ids = append(ids, q.ID)
		for _, id := range q.Shards {
			asked[id] = t.heads[id]
		}
	}
	shards, err := t.db.ShardsToTrim(ctx, asked)
	if err != nil {
		return err
	}
	for id := range asked {
		delete(t.heads, id)
	}
	for id, s := range shards {
		t.heads[id] = s.Head
	}
	for _, q := range batch {
		for _, id := range q.Shards {
			q.shards = append(q.shards, shards[id])
		}
	}
	groups, err := t.db.GroupsOf(ctx, ids)
	if err != nil {
		return err
	}
	return t.lookAtGroups(ctx, byID, groups)
}

func (t *Trimmer) lookAtGroups(ctx context.Context, queues map[int64]*trimming, groups []store.GroupShards) error {
	var asked []store.AskedProgress
	for _, g := range groups {
		for _, id := range g.IDs {
			asked = append(asked, store.AskedProgress{ID: id, Known: t.versions[id], After: queues[g.Queue].Config.Retention.ExpireAfter})
		}
	}
	found, err := t.db.ProgressOf(ctx, asked)
	if err != nil {
		return err
	}
	for _, a := range asked {
		delete(t.versions, a.ID)
	}
	for id, s := range found {
		t.versions[id] = s.Version
	}
	for _, g := range groups {
		p := groupProgress{GroupShards: g}
		for _, id := range g.IDs {
			if s, ok := found[id]; ok {
				p.states = append(p.states, s)
			}
		}
		if q := queues[g.Queue]; len(p.states) == len(q.Shards) { // else it is being deleted
			q.groups = append(q.groups, p)
		}
	}
	return nil
}

// trim applies the retention of one queue, then tells its groups.
func (t *Trimmer) trim(ctx context.Context, q *trimming) error {
	waited := q.waitedFor()
	var errs []error
	tails := make(map[message.ShardID]message.Offset, len(q.Shards))
	sum := message.Offset(0)
	for i, id := range q.Shards {
		lows := make([]message.Offset, 0, len(waited))
		for _, g := range waited {
			lows = append(lows, g.states[i].Low)
		}
		tail, err := t.trimShard(ctx, q, i, retention.SettledBelow(lows))
		if err != nil {
			errs = append(errs, err)
		}
		tails[id] = tail
		sum += tail
		for _, g := range q.groups {
			if g.states[i].Low < tail {
				if err := t.groups.Trim(ctx, g.IDs[i], g.states[i].Version, tail); err != nil {
					errs = append(errs, err)
				}
			}
		}
	}
	if err := t.catalogue(ctx, q.ID, sum, tails); err != nil {
		errs = append(errs, err)
	}
	if len(errs) == 0 {
		t.mayRest(q, tails, sum)
	}
	return errors.Join(errs...)
}

// waitedFor are the groups that keep what they have not settled.
func (q *trimming) waitedFor() []groupProgress {
	var waited []groupProgress
	for _, g := range q.groups {
		progress := make([]retention.Progress, len(g.states))
		for i := range g.states {
			progress[i] = g.states[i].Progress
		}
		if !retention.Expired(q.shards, progress, q.Config.Retention.ExpireAfter) {
			waited = append(waited, g)
		}
	}
	return waited
}

// trimShard takes what is to go of one shard, in bounded statements, and returns its tail.
func (t *Trimmer) trimShard(ctx context.Context, q *trimming, i int, settled message.Offset) (message.Offset, error) {
	s := q.shards[i]
	for range trimSteps {
		cut, ok := retention.CutOf(q.Config, s, settled)
		if !ok {
			break
		}
		took, err := t.db.Trim(ctx, q.Shards[i], s, cut, trimSegments)
		if err != nil {
			return s.Tail, err
		}
		t.segments.Add(float64(took.Segments))
		t.messages.Add(float64(took.Messages))
		t.bytes.Add(float64(took.Bytes))
		s.Tail, s.Bytes = took.Tail, s.Bytes-took.Bytes
		if took.Segments < trimSegments {
			break
		}
	}
	return s.Tail, nil
}

// catalogue forgets partitions of which nothing is left, a page a round, after the log was trimmed.
func (t *Trimmer) catalogue(ctx context.Context, queueID int64, sum message.Offset, tails map[message.ShardID]message.Offset) error {
	p := t.names[queueID]
	if p == nil {
		p = &cataloguePlace{}
		t.names[queueID] = p
	}
	if p.done >= sum {
		return nil
	}
	if p.after == "" {
		p.now = sum
	}
	next, done, err := t.db.TrimPartitions(ctx, queueID, p.after, tails, trimNames)
	if err != nil {
		return err
	}
	if p.after = next; done {
		p.after, p.done = "", p.now
	}
	return nil
}
