package window_test

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"postrider.dev/pkg/run/runtest"
	"postrider.dev/services/dispatcher/internal/domain/queue"
	"postrider.dev/services/dispatcher/internal/domain/settled"
	"postrider.dev/services/dispatcher/internal/domain/window"
	"postrider.dev/services/dispatcher/internal/domain/window/windowtest"
)

// world is one group-shard with several dispatchers' views on it.
type world struct {
	t       *rapid.T
	log     *windowtest.Log
	mem     *windowtest.Mem
	policy  window.Policy
	checker *windowtest.Checker
	views   []*window.View
	tokens  []token // every lease ever granted
	start   window.Offset
	keys    int
	small   bool
	changes int
	trail   *trail
}

type token struct {
	epoch    window.Epoch
	messages []window.Message
}

func newWorld(t *rapid.T) *world {
	w := &world{
		t: t, log: &windowtest.Log{}, keys: rapid.SampledFrom([]int{1, 2, 3, 8}).Draw(t, "keys"), small: rapid.Bool().Draw(t, "small bounds"),
		policy: window.Policy{
			Mode:        rapid.SampledFrom([]queue.Mode{queue.Ordered, queue.Ordered, queue.Shared}).Draw(t, "mode"),
			OnFailure:   rapid.SampledFrom([]queue.OnFailure{queue.Block, queue.Skip}).Draw(t, "on failure"),
			MaxAttempts: rapid.IntRange(1, 4).Draw(t, "attempts"),
			Backoff:     queue.Backoff{Base: time.Second, Cap: 8 * time.Second},
			Trace:       true,
		},
		trail: newTrail(),
		views: make([]*window.View, rapid.IntRange(1, 3).Draw(t, "dispatchers")),
	}
	start := window.Offset(rapid.SampledFrom([]int{0, 0, 5, 4090}).Draw(t, "start"))
	for w.log.Head() < start {
		w.log.Append(make([]uint64, start)...)
	}
	w.start, w.mem = start, windowtest.NewMem(7, start)
	w.checker = windowtest.NewChecker(w.policy, start, w.log.Hash)
	w.checker.Trims(w.log.Tail)
	return w
}

func (w *world) load() *window.View {
	s, err := w.mem.Read()
	require.NoError(w.t, err)
	v, err := window.Load(s, w.policy)
	require.NoError(w.t, err)
	if w.small {
		window.SetLimits(v, 8, 4, 6, 2)
	}
	return v
}

func (w *world) draw() float64 { return float64(rapid.IntRange(0, 99).Draw(w.t, "jitter")) / 100 }

func (w *world) push() {
	n := rapid.IntRange(1, 12).Draw(w.t, "messages")
	hashes := make([]uint64, n)
	for i := range hashes {
		hashes[i] = uint64(rapid.IntRange(1, w.keys).Draw(w.t, "key")) * 1000
	}
	w.log.AppendAt(w.mem.Now(), hashes...)
}

// delays gives the queue another delay, of which all dispatchers hear at once.
func (w *world) delays() {
	w.policy.Delay = time.Duration(rapid.SampledFrom([]int{0, 1, 3}).Draw(w.t, "delay")) * time.Second
	w.checker.Ages(w.log.Born, w.policy.Delay)
	for _, v := range w.views {
		if v != nil {
			v.SetPolicy(w.policy)
			w.audit(v)
		}
	}
}

func (w *world) requests() []window.Request {
	var list []window.Request
	if rapid.IntRange(0, 7).Draw(w.t, "seek") == 0 {
		return append(list, w.seek())
	}
	for range rapid.IntRange(1, 4).Draw(w.t, "requests") {
		list = append(list, w.request())
	}
	return list
}

func (w *world) request() window.Request {
	t := w.t
	kind := rapid.SampledFrom([]string{"pop", "pop", "pop", "settle", "settle", "settle", "renew", "release", "reclaim", "at", "delete", "trim"}).Draw(t, "kind")
	if len(w.tokens) == 0 && kind != "pop" && kind != "at" && kind != "delete" && kind != "trim" {
		kind = "reclaim"
	}
	switch kind {
	case "pop":
		p := &window.Pop{
			MaxMessages: rapid.IntRange(1, 6).Draw(t, "batch"), MaxBytes: int64(rapid.SampledFrom([]int{0, 50, 260, 100_000}).Draw(t, "bytes")),
			MaxPartitions: rapid.IntRange(0, 2).Draw(t, "partitions"), Lease: time.Duration(rapid.IntRange(1, 10).Draw(t, "lease")) * time.Second,
			Holder: "worker",
		}
		if rapid.IntRange(0, 3).Draw(t, "named") == 0 {
			p.Named, p.Hash = true, uint64(rapid.IntRange(1, w.keys).Draw(t, "key"))*1000
		}
		return p
	case "settle":
		tok := w.token()
		s := &window.Settle{Epoch: tok.epoch}
		for range rapid.IntRange(1, 3).Draw(t, "items") {
			s.Items = append(s.Items, w.item(tok))
		}
		return s
	case "renew":
		return &window.Renew{Epoch: w.token().epoch, Lease: time.Duration(rapid.IntRange(1, 20).Draw(t, "lease")) * time.Second}
	case "release":
		tok, r := w.token(), &window.Release{}
		if r.Epoch = tok.epoch; rapid.Bool().Draw(t, "part") {
			r.Offsets = []window.Offset{rapid.SampledFrom(tok.messages).Draw(t, "message").Offset}
		}
		return r
	case "trim":
		return &window.Trim{To: w.log.Trim(window.Offset(rapid.IntRange(0, int(w.log.Head())).Draw(t, "trim")))}
	case "at", "delete":
		if w.log.Head() > 0 {
			off := window.Offset(rapid.IntRange(0, int(w.log.Head())-1).Draw(t, "offset"))
			hash, _ := w.log.Hash(off)
			if kind == "delete" {
				return &window.Delete{Offset: off, Hash: hash}
			}
			return &window.SettleAt{Offset: off, Hash: hash, Verdict: rapid.SampledFrom([]window.Verdict{window.Ack, window.Reject}).Draw(t, "verdict")}
		}
	}
	return &window.Reclaim{Max: rapid.IntRange(0, 2).Draw(t, "max")}
}

// seek is about the whole shard or one key, perhaps with messages that were deleted.
func (w *world) seek() *window.Seek {
	t := w.t
	s := &window.Seek{To: window.Offset(rapid.IntRange(max(0, int(w.start)-12), int(w.log.Head())).Draw(t, "to"))}
	if w.log.Head() > 0 && rapid.IntRange(0, 3).Draw(t, "with deleted") == 0 {
		s.Deleted = &settled.Marks{}
		for range rapid.IntRange(1, 4).Draw(t, "deleted") {
			s.Deleted.Add(window.Offset(rapid.IntRange(0, int(w.log.Head())-1).Draw(t, "offset")))
		}
	}
	if s.Keyed = rapid.Bool().Draw(t, "keyed"); s.Keyed {
		s.Hash = uint64(rapid.IntRange(1, w.keys).Draw(t, "key")) * 1000
		s.Members = w.log.Members(s.Hash)
	}
	return s
}

// token prefers recent leases, which are likelier to be alive.
func (w *world) token() token {
	back := rapid.IntRange(1, min(len(w.tokens), 6)).Draw(w.t, "lease")
	return w.tokens[len(w.tokens)-back]
}

func (w *world) item(tok token) window.Item {
	t := w.t
	item := window.Item{
		Offset:  rapid.SampledFrom(tok.messages).Draw(t, "message").Offset,
		Through: rapid.IntRange(0, 2).Draw(t, "through") == 0,
		Verdict: rapid.SampledFrom([]window.Verdict{window.Ack, window.Ack, window.Nack, window.Reject}).Draw(t, "verdict"),
	}
	if rapid.IntRange(0, 9).Draw(t, "another's") == 0 {
		item.Offset = window.Offset(rapid.IntRange(0, int(w.log.Head())-1).Draw(t, "offset"))
	}
	if item.Through && rapid.Bool().Draw(t, "all") {
		item.Offset = window.MaxOffset
	}
	if item.Through && rapid.Bool().Draw(t, "keyed") {
		item.Keyed, item.Hash = true, uint64(rapid.IntRange(1, w.keys).Draw(t, "key"))*1000
	}
	if rapid.Bool().Draw(t, "with delay") {
		item.HasDelay, item.Delay = true, time.Duration(rapid.IntRange(0, 5).Draw(t, "delay"))*time.Second
	}
	return item
}

// plan is a change that waits to be applied.
type plan struct {
	view     int
	change   window.Change
	requests []window.Request
	outcomes []window.Outcome
}

// propose lets one dispatcher plan, perhaps from a stale view.
func (w *world) propose(i int) plan {
	if w.views[i] == nil {
		w.views[i] = w.load()
	}
	v := w.views[i]
	p := plan{view: i, requests: w.requests()}
	skew := time.Duration(rapid.IntRange(-20, 20).Draw(w.t, "clock skew")) * 100 * time.Millisecond
	v.Advance(w.mem.Now().Add(skew))
	for _, r := range p.requests {
		if pop, ok := r.(*window.Pop); ok {
			w.log.Supply(v, pop)
		}
	}
	before := window.RowsOf(v)
	p.change, p.outcomes = v.Plan(w.mem.Now().Add(skew), w.draw, p.requests)
	require.Equal(w.t, before, window.RowsOf(v), "a plan changes nothing")
	w.audit(v)
	return p
}

// apply is what an engine does with a plan.
func (w *world) apply(p plan) {
	v := w.views[p.view]
	if p.change.Empty() {
		s, err := w.mem.Read()
		require.NoError(w.t, err)
		if s.Row.Version == v.Version() {
			w.check(windowtest.Record{Change: p.change, Requests: p.requests, Outcomes: p.outcomes})
		} else {
			w.refresh(p.view)
		}
		return
	}
	stamp, err := w.mem.Apply(p.change)
	if _, early := errors.AsType[*windowtest.TooEarlyError](err); early {
		return
	}
	if errors.Is(err, windowtest.ErrStale) {
		w.refresh(p.view)
		return
	}
	require.NoError(w.t, err)
	w.changes++
	v.Commit(p.change, stamp)
	w.trail.follow(w, p)
	w.check(windowtest.Record{Change: p.change, At: stamp.At, Requests: p.requests, Outcomes: p.outcomes})
	for _, o := range p.outcomes {
		if len(o.Messages) > 0 {
			w.tokens = append(w.tokens, token{epoch: o.Epoch, messages: o.Messages})
		}
	}
	w.same(v)
}

// same demands that the rows alone give the view that Commit made.
func (w *world) same(v *window.View) {
	fresh := w.load()
	require.NoError(w.t, window.Same(fresh, v))
	window.Advance(v, w.mem.Now())
	w.audit(v)
	w.audit(fresh)
}

func (w *world) refresh(i int) {
	s, err := w.mem.Read()
	require.NoError(w.t, err)
	if err := w.views[i].Refresh(s); err != nil {
		require.NoError(w.t, err)
	}
	w.same(w.views[i])
}

func (w *world) audit(v *window.View) {
	require.NoError(w.t, window.Audit(v, w.log.Head(), func(off window.Offset) (uint64, bool) {
		hash, ok := w.log.Hash(off)
		return hash, ok && off >= w.log.Tail()
	}))
}

func (w *world) check(r windowtest.Record) {
	w.checker.Check(r)
	if found := w.checker.Violations(); len(found) > 0 {
		r.Change.Hot.Bits = [settled.HotBytes]byte{}
		w.t.Fatalf("%v\n%s\n%+v", found, strings.ReplaceAll(fmt.Sprintf("%+v", r.Change), strings.Repeat("0 ", settled.HotBytes-1), "..."), r.Outcomes)
	}
}

// TestHistoryKeepsEveryPromise is properties (a) and (b): views on one store, drops and reloads at any point, replayed against the model.
func TestHistoryKeepsEveryPromise(t *testing.T) {
	t.Parallel()
	for i := range runtest.Volume(5, 1) { // rapid's own number of checks is small for so many kinds of steps
		t.Run(strconv.Itoa(i), func(t *testing.T) {
			t.Parallel()
			rapid.Check(t, history)
		})
	}
}

func history(t *rapid.T) {
	w := newWorld(t)
	var pending []plan
	for range rapid.IntRange(5, 60).Draw(t, "steps") {
		switch rapid.SampledFrom([]string{"push", "step", "step", "step", "step", "time", "hold", "hold", "drop", "delay"}).Draw(t, "what") {
		case "push":
			w.push()
		case "time":
			w.mem.Advance(time.Duration(rapid.IntRange(1, 4000).Draw(t, "ms")) * time.Millisecond)
		case "step":
			i := rapid.IntRange(0, len(w.views)-1).Draw(t, "dispatcher")
			pending = release(pending, i)
			w.apply(w.propose(i))
		case "hold": // a change on its way while others act
			i := rapid.IntRange(0, len(w.views)-1).Draw(t, "dispatcher")
			for _, p := range pending {
				if p.view == i {
					w.apply(p)
				}
			}
			pending = append(release(pending, i), w.propose(i))
		case "delay":
			for _, p := range pending {
				w.apply(p)
			}
			pending = nil
			w.delays()
		case "drop":
			i := rapid.IntRange(0, len(w.views)-1).Draw(t, "dispatcher")
			pending = release(pending, i)
			w.views[i] = nil
		}
	}
	w.drain()
}

func release(pending []plan, view int) []plan {
	var rest []plan
	for _, p := range pending {
		if p.view != view {
			rest = append(rest, p)
		}
	}
	return rest
}

// trim tells a view, of the present version, what the log has lost.
func (w *world) trim(v *window.View) {
	trim := &window.Trim{To: w.log.Tail()}
	change, outs := v.Plan(w.mem.Now(), w.draw, []window.Request{trim})
	w.apply(plan{change: change, requests: []window.Request{trim}, outcomes: outs})
}

// drain lets one honest consumer take everything that is left: nothing may be lost, and nothing may stand still.
func (w *world) drain() {
	v := w.views[0]
	if v == nil {
		v = w.load()
	} else {
		s, err := w.mem.Read()
		require.NoError(w.t, err)
		require.NoError(w.t, v.Refresh(s))
	}
	w.views[0] = v
	for idle := 0; v.Depth(w.log.Head()) > 0; {
		pop := &window.Pop{MaxMessages: rapid.IntRange(1, 3).Draw(w.t, "drain batch"), Lease: 5 * time.Second}
		v.Advance(w.mem.Now())
		w.log.Supply(v, pop)
		change, outs := v.Plan(w.mem.Now(), w.draw, []window.Request{pop})
		w.apply(plan{change: change, requests: []window.Request{pop}, outcomes: outs})
		if outs[0].Result != window.Done || v.Version() != change.To {
			w.trim(v)
			if idle++; idle > 40 {
				w.t.Fatalf("nothing moves, %d left, stop %d, low %d, frontier %d", v.Depth(w.log.Head()), outs[0].Stop, v.Low(), window.Frontier(v))
			}
			w.mem.Advance(time.Second)
			continue
		}
		idle = 0
		settle := &window.Settle{Epoch: outs[0].Epoch, Items: []window.Item{{Offset: window.MaxOffset, Through: true, Verdict: window.Ack}}}
		change, outs = v.Plan(w.mem.Now(), w.draw, []window.Request{settle})
		w.apply(plan{change: change, requests: []window.Request{settle}, outcomes: outs})
		require.Equal(w.t, window.Done, outs[0].Items[0].Result, fmt.Sprint(outs))
	}
}
