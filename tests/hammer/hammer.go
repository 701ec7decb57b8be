// Package hammer drives a fleet with producers and consumers that record what they see, for the checkers of package invariant.
package hammer

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"sync"
	"time"

	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	postrider "postrider.dev/sdk"
	"postrider.dev/tests/invariant"
)

// Recorder is a history with its clock, and counts of what is still to come.
type Recorder struct {
	invariant.History

	start time.Time

	mu     sync.Mutex                    // guards the rest
	pushed map[string]map[string]bool    // contents by queue
	acked  map[[2]string]map[string]bool // contents by queue and group
	both   map[[2]string]int             // by queue and group: how many are in pushed and in acked
	wake   chan struct{}                 // closed and replaced at each ack
}

// NewRecorder starts a history.
func NewRecorder() *Recorder {
	return &Recorder{start: time.Now(), pushed: map[string]map[string]bool{}, acked: map[[2]string]map[string]bool{}, both: map[[2]string]int{}, wake: make(chan struct{})}
}

// Now reads the recorder's clock.
func (r *Recorder) Now() invariant.Instant { return time.Since(r.start) }

// Pushed counts the acknowledged pushes to a queue.
func (r *Recorder) Pushed(queue string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.pushed[queue])
}

// Acked counts the messages that a group has acked.
func (r *Recorder) Acked(queue, group string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.acked[[2]string{queue, group}])
}

// AwaitAcked returns when a group has acked n messages, or ctx ends.
func (r *Recorder) AwaitAcked(ctx context.Context, queue, group string, n int) error {
	for {
		r.mu.Lock()
		have, wake := len(r.acked[[2]string{queue, group}]), r.wake
		r.mu.Unlock()
		if have >= n {
			return nil
		}
		select {
		case <-wake:
		case <-ctx.Done():
			return fmt.Errorf("group %s of %s acked %d of %d: %w", group, queue, have, n, context.Cause(ctx))
		}
	}
}

// AwaitDrained returns when a group has acked every message whose push was acknowledged, or ctx ends.
func (r *Recorder) AwaitDrained(ctx context.Context, queue, group string) error {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		r.mu.Lock()
		left := len(r.pushed[queue]) - r.both[[2]string{queue, group}] // counted, not looked for: consumers wait for the lock
		r.mu.Unlock()
		if left == 0 {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("group %s of %s has not acked %d messages: %w", group, queue, left, context.Cause(ctx))
		}
	}
}

// AddPush records an acknowledged push.
func (r *Recorder) AddPush(p invariant.Push) {
	r.Add(p)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.pushed[p.Queue] == nil {
		r.pushed[p.Queue] = map[string]bool{}
	}
	if r.pushed[p.Queue][p.Content] {
		return
	}
	r.pushed[p.Queue][p.Content] = true
	for key, contents := range r.acked { // an ack may be told before its push
		if key[0] == p.Queue && contents[p.Content] {
			r.both[key]++
		}
	}
}

// AddAck records an accepted ack.
func (r *Recorder) AddAck(a invariant.Ack) {
	r.Add(a)
	r.mu.Lock()
	defer r.mu.Unlock()
	key := [2]string{a.Queue, a.Group}
	if r.acked[key] == nil {
		r.acked[key] = map[string]bool{}
	}
	if !r.acked[key][a.Content] {
		r.acked[key][a.Content] = true
		if r.pushed[a.Queue][a.Content] {
			r.both[key]++
		}
	}
	close(r.wake)
	r.wake = make(chan struct{})
}

// Produce says what a producer pushes.
type Produce struct {
	// Tenant, if named, is whose queue it is: histories keep queues of one name apart by it.
	Tenant           string
	Queue, Publisher string
	// Partitions are used in turn.
	Partitions []string
	// Priorities are used in turn too, each for a round of the partitions; none is 0.
	Priorities []int32
	// Batch is messages per push, Count messages in all.
	Batch, Count int
	// Keyed gives each message an idempotency key, so that a push without an answer is repeated. Without, a push whose outcome is unknown is given up:
	// its messages may be in the log once, never twice.
	Keyed bool
	// Bytes of payload; the content's name alone when 0.
	Bytes int
	// Every is the time between the beginnings of two pushes; 0: one after the other.
	Every time.Duration
	// Stop, when closed, ends the run before Count.
	Stop <-chan struct{}
}

// QueueOf is a queue's name in the history.
func QueueOf(tenant, queue string) string {
	if tenant == "" {
		return queue
	}
	return tenant + "/" + queue
}

// PartitionOf is a partition's name in the history: what is used in two lanes is two partitions.
func PartitionOf(partition string, priority int32) string {
	if priority == 0 {
		return partition
	}
	return fmt.Sprintf("%s@%d", partition, priority)
}

// Run pushes until all are acknowledged. A message whose push failed for good is an error.
func (p Produce) Run(ctx context.Context, r *Recorder, c *postrider.Client) error {
	tick := time.NewTicker(max(p.Every, 1))
	defer tick.Stop()
	for seq := 0; seq < p.Count; {
		if p.stopped(tick.C) {
			return nil
		}
		n := min(p.Batch, p.Count-seq)
		batch := make([]postrider.Message, n)
		for i := range batch {
			content := fmt.Sprintf("%s/%d", p.Publisher, seq+i)
			batch[i] = postrider.Message{
				Partition: p.Partitions[(seq+i)%len(p.Partitions)], Payload: payload(content, p.Bytes), Headers: map[string]string{"content": content},
			}
			if n := len(p.Priorities); n > 0 {
				batch[i].Priority = p.Priorities[(seq+i)/len(p.Partitions)%n]
			}
			if p.Keyed {
				batch[i].IdempotencyKey = content
			}
		}
		sent := r.Now()
		results, err := c.Push(ctx, p.Queue, batch...)
		answered := r.Now()
		if !p.Keyed && errors.Is(err, postrider.ErrOutcomeUnknown) {
			seq += n
			continue
		}
		if err != nil {
			return fmt.Errorf("publisher %s at %d: %w", p.Publisher, seq, err)
		}
		for i, res := range results {
			if res.Err != nil {
				return fmt.Errorf("publisher %s message %d: %w", p.Publisher, seq+i, res.Err)
			}
			r.AddPush(invariant.Push{
				Tenant: p.Tenant, Queue: QueueOf(p.Tenant, p.Queue), Partition: PartitionOf(batch[i].Partition, batch[i].Priority), Content: batch[i].Headers["content"], Digest: Digest(batch[i].Payload), ID: res.MessageID, Offset: res.Offset, Buffered: res.Buffered,
				Publisher: p.Publisher, Seq: int64(seq + i), Sent: sent, Answered: answered,
			})
		}
		seq += n
	}
	return nil
}

// stopped waits for the next push, if there is a pace, and reports whether there is to be none.
func (p Produce) stopped(next <-chan time.Time) bool {
	if p.Every == 0 {
		select {
		case <-p.Stop:
			return true
		default:
			return false
		}
	}
	select {
	case <-p.Stop:
		return true
	case <-next:
		return false
	}
}

// Digest is a checksum of a payload.
func Digest(payload []byte) uint64 {
	h := fnv.New64a()
	_, _ = h.Write(payload) // never fails
	return h.Sum64()
}

func payload(content string, bytes int) []byte {
	out := []byte(content)
	for len(out) < bytes {
		out = append(out, byte('a'+rand.N(26)))
	}
	return out
}

// Consume says how a consumer consumes.
type Consume struct {
	Tenant       string // as in Produce
	Queue, Group string
	Batch        int
	Partitions   int
	Lease        time.Duration
	Mode         queuev1.GroupMode
	// Fate says what to do with a delivery; nil acks it.
	Fate func(*postrider.Delivery) Fate
}

// Fate is what a consumer does with a delivery.
type Fate int

// The fates.
const (
	Acks Fate = iota
	Nacks
	Rejects
	// Forgets keeps the message until its lease ends, as a crash would.
	Forgets
)

// Run pops and settles until ctx ends.
func (c Consume) Run(ctx context.Context, r *Recorder, client *postrider.Client) error {
	opts := postrider.PopOptions{Group: c.Group, Batch: c.Batch, Partitions: c.Partitions, Wait: time.Second, Lease: c.Lease, Mode: c.Mode}
	for ctx.Err() == nil {
		sent := r.Now()
		lease, err := client.Pop(ctx, c.Queue, opts)
		if err != nil && ctx.Err() == nil {
			return fmt.Errorf("consumer of %s: %w", c.Group, err)
		}
		if lease == nil {
			continue
		}
		answered := r.Now()
		for _, d := range lease.Deliveries {
			r.Add(invariant.Delivery{
				Tenant: c.Tenant, Queue: QueueOf(c.Tenant, c.Queue), Group: c.Group, Partition: PartitionOf(d.Partition, d.Priority), ID: d.MessageID, Content: d.Headers["content"], Digest: Digest(d.Payload), Offset: d.Offset,
				Attempt: int32(d.Attempt), Lease: lease.Token, Shared: c.Mode == queuev1.GroupMode_GROUP_MODE_SHARED, Sent: sent, Answered: answered,
			})
		}
		if err := c.settle(ctx, r, client, lease); err != nil && ctx.Err() == nil {
			return err
		}
	}
	return nil
}

// settle does to each message what its fate says. Refusals are the server's right: they are not recorded as acks.
func (c Consume) settle(ctx context.Context, r *Recorder, client *postrider.Client, lease *postrider.Lease) error {
	req := &queuev1.AckRequest{Queue: c.Queue, Lease: lease.Token}
	contents := map[string]string{}
	for _, d := range lease.Deliveries {
		contents[d.MessageID] = d.Headers["content"]
		s := &queuev1.Settlement{MessageId: d.MessageID, Action: queuev1.AckAction_ACK_ACTION_ACK}
		if c.Fate != nil {
			switch c.Fate(d) {
			case Nacks:
				s.Action, s.Reason = queuev1.AckAction_ACK_ACTION_NACK, "told to"
			case Rejects:
				s.Action, s.Reason = queuev1.AckAction_ACK_ACTION_REJECT, "told to"
			case Forgets:
				continue
			case Acks:
			}
		}
		req.Settlements = append(req.Settlements, s)
	}
	if len(req.GetSettlements()) == 0 {
		return nil
	}
	sent := r.Now()
	resp, err := client.Settle(ctx, req)
	if err != nil {
		if stale, ok := errors.AsType[*postrider.Error](err); ok && stale.Code == "STALE_EPOCH" {
			return nil
		}
		return fmt.Errorf("settle in %s: %w", c.Group, err)
	}
	answered := r.Now()
	for i, res := range resp.GetResults() {
		s := req.GetSettlements()[i]
		if s.GetAction() != queuev1.AckAction_ACK_ACTION_ACK {
			continue
		}
		a := invariant.Ack{Queue: QueueOf(c.Tenant, c.Queue), Group: c.Group, ID: s.GetMessageId(), Content: contents[s.GetMessageId()], Lease: lease.Token, Sent: sent, Answered: answered}
		switch res.GetStatus() { //nolint:exhaustive // the others settle nothing
		case queuev1.AckStatus_ACK_STATUS_SETTLED:
			r.AddAck(a)
		case queuev1.AckStatus_ACK_STATUS_ALREADY_SETTLED:
			a.Lease = "" // by a try of ours whose answer was lost, or by another lease: it says nothing about who held it
			r.AddAck(a)
		}
	}
	return nil
}
