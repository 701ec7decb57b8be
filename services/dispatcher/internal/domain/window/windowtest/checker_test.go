package windowtest_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"postrider.dev/services/dispatcher/internal/domain/lease"
	"postrider.dev/services/dispatcher/internal/domain/queue"
	"postrider.dev/services/dispatcher/internal/domain/settled"
	"postrider.dev/services/dispatcher/internal/domain/window"
	"postrider.dev/services/dispatcher/internal/domain/window/windowtest"
)

const a, b, c = 10, 20, 30

// story is a good history: every kind of event once, in ordered mode with two attempts.
type story struct {
	log     windowtest.Log
	policy  window.Policy
	records []windowtest.Record
	marks   map[string]int // index of the record a name stands for
	epochs  map[string]window.Epoch
}

func tell(t *testing.T) *story {
	t.Helper()
	s := &story{
		marks: map[string]int{}, epochs: map[string]window.Epoch{},
		policy: window.Policy{Mode: queue.Ordered, OnFailure: queue.Block, MaxAttempts: 2, Backoff: queue.Backoff{Base: time.Second, Cap: time.Minute}},
	}
	s.log.Append(a, a, a, b, b, c)
	mem := windowtest.NewMem(1, 0)
	rows, err := mem.Read()
	require.NoError(t, err)
	v, err := window.Load(rows, s.policy)
	require.NoError(t, err)
	do := func(name string, r window.Request) {
		if pop, ok := r.(*window.Pop); ok {
			s.log.Supply(v, pop)
		}
		change, outs := v.Plan(mem.Now(), func() float64 { return 0.5 }, []window.Request{r})
		stamp, err := mem.Apply(change)
		require.NoError(t, err, name)
		v.Commit(change, stamp)
		s.marks[name], s.epochs[name] = len(s.records), outs[0].Epoch
		s.records = append(s.records, windowtest.Record{Change: change, At: stamp.At, Requests: []window.Request{r}, Outcomes: outs})
	}
	do("pop two of a", &window.Pop{Named: true, Hash: a, MaxMessages: 2, Lease: 30 * time.Second})
	do("pop one of b", &window.Pop{Named: true, Hash: b, MaxMessages: 1, Lease: 30 * time.Second})
	do("ack 0", item(s.epochs["pop two of a"], window.Item{Offset: 0, Verdict: window.Ack}))
	do("nack 1", item(s.epochs["pop two of a"], window.Item{Offset: 1, Verdict: window.Nack, HasDelay: true, Delay: 10 * time.Second}))
	mem.Advance(11 * time.Second)
	do("pop two of a again", &window.Pop{Named: true, Hash: a, MaxMessages: 3, Lease: 30 * time.Second})
	do("renew b", &window.Renew{Epoch: s.epochs["pop one of b"], Lease: 20 * time.Second})
	mem.Advance(40 * time.Second)
	do("reclaim", &window.Reclaim{})
	do("pop suspect", &window.Pop{Named: true, Hash: a, MaxMessages: 5, Lease: 30 * time.Second})
	do("reject 1", item(s.epochs["pop suspect"], window.Item{Offset: 1, Verdict: window.Reject, Reason: "bad"}))
	return s
}

func item(e window.Epoch, items ...window.Item) *window.Settle {
	return &window.Settle{Epoch: e, Items: items}
}

// after is the history up to a record, and an empty change to follow it.
func (s *story) after(name string, wait time.Duration) ([]windowtest.Record, windowtest.Record) {
	history := slices.Clone(s.records[:s.marks[name]+1])
	last := history[len(history)-1]
	ch := last.Change
	return history, windowtest.Record{At: last.At.Add(wait), Change: window.Change{
		ID: 1, From: ch.To, To: ch.To + 1, Hot: ch.Hot, Low: ch.Low, UnsettledBelow: ch.UnsettledBelow, LeaseLow: ch.LeaseLow,
	}}
}

// pop makes a record hand out messages, well written.
func (s *story) pop(r windowtest.Record, attempt int, offs ...window.Offset) windowtest.Record {
	epoch := lease.MakeEpoch(r.Change.To, 0)
	out := window.Outcome{Result: window.Done, Epoch: epoch, Lease: time.Second}
	var entries []window.Entry
	for _, off := range offs {
		hash, _ := s.log.Hash(off)
		out.Messages = append(out.Messages, window.Message{Offset: off, Hash: hash, Attempt: attempt})
		entries = append(entries, window.Entry{Offset: off, Hash: hash})
	}
	r.Change.LeaseInserts = []window.LeaseInsert{{Epoch: epoch, Lease: time.Second, Entries: window.EncodeEntries(nil, len(offs) == 1, entries)}}
	r.Requests, r.Outcomes = []window.Request{&window.Pop{}}, []window.Outcome{out}
	return r
}

func (s *story) answer(r windowtest.Record, req window.Request, out window.Outcome) windowtest.Record {
	r.Requests, r.Outcomes = append(slices.Clone(r.Requests), req), append(slices.Clone(r.Outcomes), out)
	return r
}

func done(items ...window.Result) window.Outcome {
	out := window.Outcome{Result: window.Done}
	for _, i := range items {
		out.Items = append(out.Items, window.ItemResult{Result: i, Count: 1})
	}
	return out
}

func TestCheckerAcceptsAGoodHistory(t *testing.T) {
	t.Parallel()
	s := tell(t)

	found := windowtest.NewChecker(s.policy, 0, s.log.Hash).Replay(s.records)

	require.Empty(t, found)
}

// bad is a history that breaks one rule.
type bad struct {
	rule windowtest.Rule
	name string
	make func(s *story) []windowtest.Record
}

// then lets a record follow a good beginning.
func then(name string, wait time.Duration, change func(s *story, r windowtest.Record) windowtest.Record) func(s *story) []windowtest.Record {
	return func(s *story) []windowtest.Record {
		history, r := s.after(name, wait)
		return append(history, change(s, r))
	}
}

func pops(attempt int, offs ...window.Offset) func(s *story, r windowtest.Record) windowtest.Record {
	return func(s *story, r windowtest.Record) windowtest.Record { return s.pop(r, attempt, offs...) }
}

func answers(epochOf string, req func(window.Epoch) window.Request, out window.Outcome) func(s *story, r windowtest.Record) windowtest.Record {
	return func(s *story, r windowtest.Record) windowtest.Record { return s.answer(r, req(s.epochs[epochOf]), out) }
}

func settles(off window.Offset, v window.Verdict) func(window.Epoch) window.Request {
	return func(e window.Epoch) window.Request { return item(e, window.Item{Offset: off, Verdict: v}) }
}

func renews(e window.Epoch) window.Request   { return &window.Renew{Epoch: e, Lease: time.Second} }
func releases(e window.Epoch) window.Request { return &window.Release{Epoch: e} }

func reclaims(epochOf string) func(s *story, r windowtest.Record) windowtest.Record {
	return func(s *story, r windowtest.Record) windowtest.Record {
		r.Change.LeaseDeletes = []window.Epoch{s.epochs[epochOf]}
		return r
	}
}

func upserts(u window.RetryUpsert) func(s *story, r windowtest.Record) windowtest.Record {
	return func(_ *story, r windowtest.Record) windowtest.Record {
		r.Change.RetryUpserts = []window.RetryUpsert{u}
		return r
	}
}

func badHistories() []bad {
	list := []bad{
		{windowtest.RuleVersion, "a record is missing", func(s *story) []windowtest.Record { return slices.Delete(slices.Clone(s.records), 2, 3) }},
		{windowtest.RuleVersion, "a record is there twice", func(s *story) []windowtest.Record { return append(slices.Clone(s.records), s.records[4]) }},
		{windowtest.RuleVersion, "a change skips a version", then("ack 0", 0, func(_ *story, r windowtest.Record) windowtest.Record {
			r.Change.To++
			return r
		})},
		{windowtest.RuleOrder, "the second of a key before its failed one", then("nack 1", 11*time.Second, pops(1, 2))},
		{windowtest.RuleOrder, "the second of a fresh key first", then("pop two of a", 0, pops(1, 4))},
		{windowtest.RuleOrder, "another partition than asked for", then("pop two of a", 0, func(s *story, r windowtest.Record) windowtest.Record {
			r = s.pop(r, 1, 3)
			r.Requests[0] = &window.Pop{Named: true, Hash: c}
			return r
		})},
		{windowtest.RuleOrder, "an ack behind a nack of its partition counts", then("pop one of b", 0, answers("pop two of a", func(e window.Epoch) window.Request {
			return item(e, window.Item{Offset: 1, Verdict: window.Ack}, window.Item{Offset: 0, Verdict: window.Nack})
		}, done(window.Done, window.Retrying)))},
		{windowtest.RuleLease, "a leased message", then("pop one of b", 0, pops(1, 3))},
		{windowtest.RuleLease, "the next of a leased key", then("pop one of b", 0, pops(1, 4))},
		{windowtest.RuleLease, "a key whose earlier lease is open in part", then("ack 0", 0, pops(1, 2))},
		{windowtest.RuleSettled, "an acked message", then("nack 1", 0, pops(1, 0))},
		{windowtest.RuleSettled, "a rejected message", then("reject 1", 0, pops(3, 1))},
		{windowtest.RuleSettled, "an acked message, long after", then("reject 1", time.Hour, pops(1, 0))},
		{windowtest.RuleStale, "an ack by a lease that is gone", then("reclaim", 0, answers("pop one of b", settles(3, window.Ack), done(window.Done)))},
		{windowtest.RuleStale, "an ack of a message the lease gave back", then("ack 0", 0, answers("pop one of b", settles(4, window.Ack), done(window.Done)))},
		{windowtest.RuleStale, "a renewal of a lease that is gone", then("nack 1", 0, answers("pop two of a", renews, window.Outcome{Result: window.Done}))},
		{windowtest.RuleStale, "a release of a lease that is gone", then("nack 1", 0, answers("pop two of a", releases, window.Outcome{Result: window.Done}))},
		{windowtest.RuleBackoff, "a nacked message before its delay", then("nack 1", 9*time.Second, pops(2, 1))},
		{windowtest.RuleBackoff, "an expired message before its backoff", then("reclaim", 0, pops(2, 3))},
		{windowtest.RuleBackoff, "a change before its own not-before", then("ack 0", 0, func(_ *story, r windowtest.Record) windowtest.Record {
			r.Change.NotBefore = r.At + 1
			return r
		})},
	}
	return append(list, moreBadHistories()...)
}

func moreBadHistories() []bad {
	stale := window.Outcome{Result: window.Stale, Refusal: true}
	return []bad{
		{windowtest.RuleExpiry, "a fresh lease is reclaimed", then("pop one of b", 0, reclaims("pop one of b"))},
		{windowtest.RuleExpiry, "a lease is reclaimed an instant early", then("pop two of a", 30*time.Second-time.Microsecond, reclaims("pop two of a"))},
		{windowtest.RuleExpiry, "a renewed lease is reclaimed by its old end", then("renew b", 19*time.Second, reclaims("pop one of b"))},
		{windowtest.RuleCharge, "neighbours of an expired lease", then("reclaim", 0, upserts(window.RetryUpsert{Offset: 2, PartitionHash: a, Failures: 1, AloneThrough: -1}))},
		{windowtest.RuleCharge, "a failure is counted twice", then("reclaim", 0, upserts(window.RetryUpsert{Offset: 1, PartitionHash: a, Failures: 2, AloneThrough: -1}))},
		{windowtest.RuleCharge, "a failure is forgotten", then("reclaim", 0, upserts(window.RetryUpsert{Offset: 3, PartitionHash: b, Failures: 0, AloneThrough: -1}))},
		{windowtest.RuleCharge, "a dead letter with attempts left", then("pop one of b", 0, func(_ *story, r windowtest.Record) windowtest.Record {
			r.Change.DeadLetters = []window.DeadLetter{{Offset: 3}}
			return r
		})},
		{windowtest.RuleCharge, "a nack without its row", then("pop one of b", 0, answers("pop one of b", settles(3, window.Nack), done(window.Retrying)))},
		{windowtest.RuleCharge, "a nacked message acked with the rest", then("pop one of b", 0, func(s *story, r windowtest.Record) windowtest.Record {
			r = s.answer(r, item(s.epochs["pop one of b"], window.Item{Offset: 3, Verdict: window.Nack},
				window.Item{Offset: window.MaxOffset, Through: true, Verdict: window.Ack}), done(window.Retrying, window.Done))
			r.Change.Hot.Bits[0] |= 1 << 3
			r.Change.LeaseDeletes = []window.Epoch{s.epochs["pop one of b"]}
			return r
		})},
		{windowtest.RuleCharge, "a first attempt called the third", then("pop one of b", 0, pops(3, 5))},
		{windowtest.RuleAlone, "two suspects together", then("reclaim", 0, pops(2, 1, 2))},
		{windowtest.RuleAlone, "a suspect with a stranger", then("reclaim", 0, pops(2, 1, 5))},
		{windowtest.RuleAlone, "one that expired alone with a stranger", then("reclaim", time.Minute, pops(2, 3, 5))},
		{windowtest.RuleAlone, "an expired lease without marks", func(s *story) []windowtest.Record {
			history := slices.Clone(s.records[:s.marks["reclaim"]+1])
			ch := &history[len(history)-1].Change
			ch.RetryUpserts = slices.Clone(ch.RetryUpserts)
			for i := range ch.RetryUpserts {
				ch.RetryUpserts[i].AloneThrough = -1
			}
			return history
		}},
		{windowtest.RuleRows, "a lease_low behind an open lease", then("pop one of b", 0, func(_ *story, r windowtest.Record) windowtest.Record {
			r.Change.LeaseLow = r.Change.To
			return r
		})},
		{windowtest.RuleRefusal, "an open lease called stale", then("pop one of b", 0, answers("pop one of b", settles(3, window.Ack), done(window.Stale)))},
		{windowtest.RuleRefusal, "a held message called not held", then("pop one of b", 0, answers("pop one of b", settles(3, window.Ack), done(window.NotHeld)))},
		{windowtest.RuleRefusal, "an ack said to have come back for nothing", then("pop one of b", 0, answers("pop one of b", settles(3, window.Ack), done(window.Returned)))},
		{windowtest.RuleRefusal, "the rest is acked beside a refusal", then("pop one of b", 0, answers("pop two of a", func(e window.Epoch) window.Request {
			return item(e, window.Item{Offset: 3, Verdict: window.Nack}, window.Item{Offset: window.MaxOffset, Through: true, Verdict: window.Ack})
		}, done(window.NotHeld, window.Done)))},
		{windowtest.RuleRefusal, "an unsettled message called settled", then("pop one of b", 0, answers("pop one of b", settles(3, window.Ack), done(window.AlreadySettled)))},
		{windowtest.RuleRefusal, "a renewal refused to an open lease", then("pop one of b", 0, answers("pop one of b", renews, stale))},
		{windowtest.RuleRefusal, "a release refused to an open lease", then("pop one of b", 0, answers("pop one of b", releases, stale))},
		{windowtest.RuleRows, "an ack without its bit", func(s *story) []windowtest.Record {
			history := slices.Clone(s.records)
			history[s.marks["ack 0"]].Change.Hot = settled.Start(0)
			return history
		}},
		{windowtest.RuleRows, "a bit without an ack", then("pop one of b", 0, func(_ *story, r windowtest.Record) windowtest.Record {
			r.Change.Hot.Bits[0] |= 1 << 5
			return r
		})},
		{windowtest.RuleRows, "a lease that is written with too few messages", then("pop one of b", 0, func(s *story, r windowtest.Record) windowtest.Record {
			r = s.pop(r, 1, 5)
			r.Change.LeaseInserts[0].Entries = window.EncodeEntries(nil, true, nil)
			return r
		})},
		{windowtest.RuleRows, "a lowest unsettled offset that is too high", then("pop one of b", 0, func(_ *story, r windowtest.Record) windowtest.Record {
			r.Change.Low = 2
			return r
		})},
	}
}

func TestCheckerFlagsBadHistories(t *testing.T) {
	t.Parallel()
	count := map[windowtest.Rule]int{}
	for _, x := range badHistories() {
		count[x.rule]++
		t.Run(fmt.Sprintf("%s/%s", x.rule, x.name), func(t *testing.T) {
			t.Parallel()
			s := tell(t)

			found := windowtest.NewChecker(s.policy, 0, s.log.Hash).Replay(x.make(s))

			require.True(t, slices.ContainsFunc(found, func(v windowtest.Violation) bool { return v.Rule == x.rule }), "found only %v", found)
		})
	}
	require.Len(t, count, 11)
	for rule, n := range count {
		require.GreaterOrEqual(t, n, 3, rule)
	}
}
