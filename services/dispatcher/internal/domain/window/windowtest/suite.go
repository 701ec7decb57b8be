package windowtest

import (
	"cmp"
	"errors"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"postrider.dev/pkg/run/runtest"
	"postrider.dev/services/dispatcher/internal/domain/queue"
	"postrider.dev/services/dispatcher/internal/domain/settled"
	"postrider.dev/services/dispatcher/internal/domain/window"
)

// Store keeps the rows of one untouched group-shard. Mem is one; a real one MUST behave the same.
type Store interface {
	// Read returns all rows of one version.
	Read() (window.Snapshot, error)
	// Apply writes the whole change or nothing. It returns ErrStale if the version is another one and *TooEarlyError if the store's clock
	// has not passed NotBefore.
	Apply(window.Change) (window.Stamp, error)
}

// Run drives a store and a Mem in step, with random work from two dispatchers, and demands equal rows after each change, every promise
// of the checker, and that what may not be written is not. open returns a fresh group-shard that begins at offset 0.
//
// One goroutine does it all, so that the race detector has little to find and makes the checker slow: what is long is done without it (scripts/volume).
func Run(t *testing.T, open func(*testing.T) (Store, window.GroupShardID)) {
	t.Helper()
	for _, p := range []window.Policy{
		{Mode: queue.Ordered, OnFailure: queue.Block}, {Mode: queue.Ordered, OnFailure: queue.Skip, Trace: true}, {Mode: queue.Shared, OnFailure: queue.Block},
	} {
		t.Run(string(p.Mode)+" "+string(p.OnFailure), func(t *testing.T) {
			t.Parallel()
			store, id := open(t)
			p.MaxAttempts, p.Backoff = 3, queue.Backoff{Base: time.Millisecond, Cap: 4 * time.Millisecond}
			d := &driver{
				t: t, store: store, mem: NewMem(id, 0), log: &Log{}, policy: p,
				rnd: rand.New(rand.NewPCG(uint64(id), 7)), //nolint:gosec // a test's choices need no secrecy
			}
			d.checker = NewChecker(p, 0, d.log.Hash)
			d.checker.Trims(d.log.Tail)
			for range runtest.Volume(1200, 300) {
				d.step()
			}
			require.Empty(t, d.checker.Violations())
			require.Positive(t, d.applied)
		})
	}
}

type driver struct {
	t       *testing.T
	store   Store
	mem     *Mem
	log     *Log
	policy  window.Policy
	rnd     *rand.Rand
	checker *Checker
	views   [2]*window.View
	tokens  []window.Outcome
	now     window.DBTime
	applied int
}

func (d *driver) step() {
	if d.rnd.IntN(3) == 0 {
		hashes := make([]uint64, 1+d.rnd.IntN(600)) // several chunks in the course of a run
		for i := range hashes {
			hashes[i] = uint64(1+d.rnd.IntN(5)) << 60
		}
		d.log.Append(hashes...)
	}
	i := d.rnd.IntN(2)
	if d.views[i] == nil || d.rnd.IntN(20) == 0 {
		d.views[i] = d.load()
	}
	v := d.views[i]
	requests := d.requests(v)
	ahead := window.DBTime(d.rnd.IntN(3000)) // the dispatcher's clock may be fast
	change, outcomes := v.Plan(d.now+ahead, d.rnd.Float64, requests)
	if change.Empty() {
		return
	}
	stamp, err := d.store.Apply(change)
	if early, ok := errors.AsType[*TooEarlyError](err); ok {
		require.Less(d.t, early.Now, change.NotBefore)
		d.now = early.Now
		d.compare()
		return
	}
	if errors.Is(err, ErrStale) {
		require.NotEqual(d.t, d.mem.row.Version, change.From)
		s, err := d.store.Read()
		require.NoError(d.t, err)
		require.NoError(d.t, v.Refresh(s))
		return
	}
	require.NoError(d.t, err)
	d.follow(change, stamp)
	v.Commit(change, stamp)
	d.checker.Check(Record{Change: change, At: stamp.At, Requests: requests, Outcomes: outcomes})
	for _, o := range outcomes {
		if len(o.Messages) > 0 {
			d.tokens = append(d.tokens, o)
		}
	}
}

// follow lets the Mem do what the store did.
func (d *driver) follow(change window.Change, stamp window.Stamp) {
	require.GreaterOrEqual(d.t, stamp.At, change.NotBefore)
	_, err := d.mem.ApplyAt(change, stamp.At)
	require.NoError(d.t, err)
	d.now = stamp.At
	d.applied++
	d.compare()
}

func (d *driver) compare() {
	want, err := d.mem.Read()
	require.NoError(d.t, err)
	got, err := d.store.Read()
	require.NoError(d.t, err)
	want.Row.Shard = got.Row.Shard
	require.Equal(d.t, want.Row, got.Row)
	require.Len(d.t, got.Chunks, len(want.Chunks))
	for i := range want.Chunks {
		require.Equal(d.t, want.Chunks[i].No, got.Chunks[i].No)
		require.Equal(d.t, want.Chunks[i].Encoding, got.Chunks[i].Encoding)
		require.Equal(d.t, string(want.Chunks[i].Data), string(got.Chunks[i].Data))
	}
	slices.SortFunc(got.Leases, func(a, b window.LeaseRow) int { return cmp.Compare(a.Epoch, b.Epoch) })
	slices.SortFunc(got.Retries, func(a, b window.RetryRow) int { return cmp.Compare(a.Offset, b.Offset) })
	require.True(d.t, reflect.DeepEqual(want.Leases, got.Leases), "leases: want %v, got %v", want.Leases, got.Leases)
	require.True(d.t, reflect.DeepEqual(want.Retries, got.Retries), "retries: want %v, got %v", want.Retries, got.Retries)
}

func (d *driver) load() *window.View {
	s, err := d.store.Read()
	require.NoError(d.t, err)
	v, err := window.Load(s, d.policy)
	require.NoError(d.t, err)
	return v
}

func (d *driver) requests(v *window.View) []window.Request {
	if d.rnd.IntN(12) == 0 {
		return []window.Request{d.seek()}
	}
	var list []window.Request
	for range 1 + d.rnd.IntN(3) {
		switch kind := d.rnd.IntN(12); {
		case kind == 11 && d.log.Head() > 0:
			off := window.Offset(d.rnd.Int64N(int64(d.log.Head())))
			hash, _ := d.log.Hash(off)
			list = append(list, &window.Delete{Offset: off, Hash: hash})
		case kind == 10:
			list = append(list, &window.Trim{To: d.log.Trim(v.Low() + window.Offset(d.rnd.IntN(300)))})
		case kind < 4 || len(d.tokens) == 0:
			p := &window.Pop{MaxMessages: 1 + d.rnd.IntN(200), Lease: time.Duration(1+d.rnd.IntN(50_000)) * time.Microsecond, Holder: "worker"}
			if d.rnd.IntN(4) == 0 {
				p.Named, p.Hash = true, uint64(1+d.rnd.IntN(5))<<60
			}
			d.log.Supply(v, p)
			list = append(list, p)
		case kind < 8:
			list = append(list, d.settle())
		case kind == 8:
			list = append(list, &window.Renew{Epoch: d.token().Epoch, Lease: time.Duration(d.rnd.IntN(40)) * time.Millisecond})
		default:
			list = append(list, &window.Release{Epoch: d.token().Epoch})
		}
	}
	return list
}

// seek goes anywhere, with the whole shard or one key, around a message that was deleted.
func (d *driver) seek() *window.Seek {
	s := &window.Seek{To: window.Offset(d.rnd.Int64N(int64(d.log.Head()) + 1)), Deleted: &settled.Marks{}}
	if d.log.Head() > 0 {
		s.Deleted.Add(window.Offset(d.rnd.Int64N(int64(d.log.Head()))))
	}
	if s.Keyed = d.rnd.IntN(2) == 0; s.Keyed {
		s.Hash = uint64(1+d.rnd.IntN(5)) << 60
		s.Members = d.log.Members(s.Hash)
	}
	return s
}

func (d *driver) token() window.Outcome {
	return d.tokens[len(d.tokens)-1-d.rnd.IntN(min(4, len(d.tokens)))]
}

func (d *driver) settle() *window.Settle {
	tok := d.token()
	s := &window.Settle{Epoch: tok.Epoch}
	verdicts := []window.Verdict{window.Ack, window.Ack, window.Ack, window.Nack, window.Reject}
	if d.rnd.IntN(2) == 0 {
		s.Items = []window.Item{{Offset: window.MaxOffset, Through: true, Verdict: window.Ack}}
		return s
	}
	for range 1 + d.rnd.IntN(4) {
		m := tok.Messages[d.rnd.IntN(len(tok.Messages))]
		s.Items = append(s.Items, window.Item{
			Offset: m.Offset, Verdict: verdicts[d.rnd.IntN(len(verdicts))], Reason: "because", HasDelay: d.rnd.IntN(2) == 0, Delay: time.Millisecond,
		})
	}
	return s
}
