package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"golang.org/x/sync/errgroup"

	"postrider.dev/tests/hammer"
	"postrider.dev/tests/invariant"
	"postrider.dev/tests/rest"
)

// Run describes one run over a fleet.
type Run struct {
	Key, Queue string
	// Producers and Consumers are the base URLs each side prefers, in order.
	Producers, Consumers []string
	Corpus               []Webhook
	// Messages is how many to push: the corpus is repeated, with the round in the partition's name.
	Messages int
	Groups   []string
	// PerGroup is how many consumers a group has.
	PerGroup int
	Batch    int
	Lease    time.Duration
	// At calls Fault once when so many messages of the first group are acked.
	At    int
	Fault func(Flight)
	// Progress is told about ten times a second.
	Progress func(pushed, acked int)
}

// Flight is what was under way at an instant.
type Flight struct{ Pushed, Acked, Leased int }

// Outcome is what a run saw.
type Outcome struct {
	Recorder        *hammer.Recorder
	Took, PushTook  time.Duration
	Bytes           int64
	Push, Pop, Ack  *hdrhistogram.Histogram // microseconds
	PayloadsChanged int
	Redelivered     int
}

// runner is a run under way.
type runner struct {
	Run

	rec     *hammer.Recorder
	leased  atomic.Int64
	changed atomic.Int64
	again   atomic.Int64
	bytes   atomic.Int64

	mu             sync.Mutex // guards the histograms
	push, pop, ack *hdrhistogram.Histogram
}

const (
	publishers   = 4
	longestMicro = 10 * 60 * 1_000_000
	popWait      = 2 * time.Second
)

func histogram() *hdrhistogram.Histogram { return hdrhistogram.New(1, longestMicro, 3) }

// Go performs the run and returns when every group has acked every message.
func (r Run) Go(ctx context.Context) (*Outcome, error) {
	w := &runner{Run: r, rec: hammer.NewRecorder(), push: histogram(), pop: histogram(), ack: histogram()}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	consuming, stop := context.WithCancel(ctx)
	defer stop()
	began := time.Now()
	var consumers, producers errgroup.Group
	for _, g := range r.Groups {
		for range r.PerGroup {
			consumers.Go(func() error { return w.fail(cancel, w.consume(consuming, g)) })
		}
	}
	for p := range publishers {
		producers.Go(func() error { return w.fail(cancel, w.produce(ctx, p)) })
	}
	watch := make(chan struct{})
	go func() { // ends with consuming; awaited below
		defer close(watch)
		w.watch(consuming)
	}()
	err := producers.Wait()
	pushTook := time.Since(began)
	for _, g := range r.Groups {
		err = errors.Join(err, w.rec.AwaitAcked(ctx, r.Queue, g, r.Messages))
	}
	took := time.Since(began)
	stop()
	<-watch
	err = errors.Join(err, consumers.Wait())
	return &Outcome{
		Recorder: w.rec, Took: took, PushTook: pushTook, Bytes: w.bytes.Load(), Push: w.push, Pop: w.pop, Ack: w.ack,
		PayloadsChanged: int(w.changed.Load()), Redelivered: int(w.again.Load()),
	}, err
}

// fail ends the whole run with the first failure.
func (w *runner) fail(cancel context.CancelCauseFunc, err error) error {
	if err != nil {
		cancel(err)
	}
	return err
}

// message is the nth of the run.
func (w *runner) message(n int) (hook Webhook, item rest.Item, content string) {
	hook = w.Corpus[n%len(w.Corpus)]
	content = fmt.Sprintf("%s/%d", w.Queue, n)
	return hook, rest.Item{
		Partition: fmt.Sprintf("%s#%d", hook.Partition, n/len(w.Corpus)), Payload: hook.Payload, IdempotencyKey: content,
		Headers: map[string]string{"event": hook.Event, "name": hook.Name, "content": content, "corpus": strconv.Itoa(n % len(w.Corpus))},
	}, content
}

// produce pushes this publisher's share in batches, in order. A partition's messages all go through one publisher, round by round.
func (w *runner) produce(ctx context.Context, publisher int) error {
	client := rest.New(w.Key, w.Producers...)
	defer client.Close()
	rounds := (w.Messages + len(w.Corpus) - 1) / len(w.Corpus)
	for round := publisher; round < rounds; round += publishers {
		last := min((round+1)*len(w.Corpus), w.Messages)
		for from := round * len(w.Corpus); from < last; from += w.Batch {
			if err := w.pushBatch(ctx, client, publisher, from, min(from+w.Batch, last)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (w *runner) pushBatch(ctx context.Context, client *rest.Client, publisher, from, to int) error {
	items, contents := make([]rest.Item, 0, to-from), make([]string, 0, to-from)
	for n := from; n < to; n++ {
		_, item, content := w.message(n)
		items, contents = append(items, item), append(contents, content)
		w.bytes.Add(int64(len(item.Payload)))
	}
	sent := w.rec.Now()
	results, err := client.Push(ctx, w.Queue, items)
	answered := w.rec.Now()
	if err != nil {
		return fmt.Errorf("push: %w", err)
	}
	w.observe(w.push, answered-sent)
	for i, res := range results {
		w.rec.AddPush(invariant.Push{
			Queue: w.Queue, Partition: items[i].Partition, Content: contents[i], Digest: digest(items[i].Payload), ID: res.MessageID, Offset: res.Offset,
			Publisher: strconv.Itoa(publisher), Seq: int64(from + i), Sent: sent, Answered: answered,
		})
	}
	return nil
}

// consume pops, compares and acks until ctx ends.
func (w *runner) consume(ctx context.Context, group string) error {
	client := rest.New(w.Key, w.Consumers...)
	defer client.Close()
	for ctx.Err() == nil {
		sent := w.rec.Now()
		lease, err := client.Pop(ctx, w.Queue, group, w.Batch, popWait, w.Lease)
		answered := w.rec.Now()
		if err != nil && ctx.Err() == nil {
			return fmt.Errorf("pop for %s: %w", group, err)
		}
		if lease == nil {
			continue
		}
		w.observe(w.pop, answered-sent)
		w.leased.Add(int64(len(lease.Deliveries)))
		err = w.settle(ctx, client, group, lease, sent, answered)
		w.leased.Add(-int64(len(lease.Deliveries)))
		if err != nil && ctx.Err() == nil {
			return err
		}
	}
	return nil
}

func (w *runner) settle(ctx context.Context, client *rest.Client, group string, lease *rest.Lease, sent, answered invariant.Instant) error {
	ids := make([]string, len(lease.Deliveries))
	for i, d := range lease.Deliveries {
		ids[i] = d.MessageID
		w.compare(d)
		if d.Attempt > 1 {
			w.again.Add(1)
		}
		w.rec.Add(invariant.Delivery{
			Queue: w.Queue, Group: group, Partition: d.Partition, ID: d.MessageID, Content: d.Headers["content"], Digest: digest(d.Payload), Offset: d.Offset,
			Attempt: d.Attempt, Lease: lease.Token, Sent: sent, Answered: answered,
		})
	}
	sent = w.rec.Now()
	statuses, err := client.Ack(ctx, w.Queue, lease.Token, ids)
	answered = w.rec.Now()
	if err != nil {
		return fmt.Errorf("ack for %s: %w", group, err)
	}
	w.observe(w.ack, answered-sent)
	for i, s := range statuses {
		a := invariant.Ack{
			Queue: w.Queue, Group: group, ID: ids[i], Content: lease.Deliveries[i].Headers["content"], Lease: lease.Token, Sent: sent, Answered: answered,
		}
		switch s {
		case "ACK_STATUS_SETTLED":
			w.rec.AddAck(a)
		case "ACK_STATUS_ALREADY_SETTLED":
			a.Lease = "" // by a try whose answer was lost
			w.rec.AddAck(a)
		}
	}
	return nil
}

// digest is of the JSON without white space: the client of the demonstration compacts what it sends.
func digest(payload json.RawMessage) uint64 {
	var compact bytes.Buffer
	if err := json.Compact(&compact, payload); err != nil {
		return 0
	}
	return hammer.Digest(compact.Bytes())
}

// compare checks that a payload came back as the same JSON, and counts when not.
func (w *runner) compare(d rest.Delivery) {
	var n int
	if _, err := fmt.Sscan(d.Headers["corpus"], &n); err != nil || n < 0 || n >= len(w.Corpus) {
		w.changed.Add(1)
		return
	}
	hook := w.Corpus[n]
	var want, got bytes.Buffer
	same := json.Compact(&want, hook.Payload) == nil && json.Compact(&got, d.Payload) == nil && bytes.Equal(want.Bytes(), got.Bytes())
	if !same || d.Headers["event"] != hook.Event || d.Headers["name"] != hook.Name {
		w.changed.Add(1)
	}
}

// watch tells the progress and calls the fault at its time.
func (w *runner) watch(ctx context.Context) {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	faulted := w.Fault == nil
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		pushed, acked := w.rec.Pushed(w.Queue), w.rec.Acked(w.Queue, w.Groups[0])
		w.Progress(pushed, acked)
		if !faulted && acked >= w.At {
			faulted = true
			w.Fault(Flight{Pushed: pushed, Acked: acked, Leased: int(w.leased.Load())})
		}
	}
}

func (w *runner) observe(h *hdrhistogram.Histogram, d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	_ = h.RecordValue(max(d.Microseconds(), 1)) // longer than ten minutes is not recorded and not possible
}
