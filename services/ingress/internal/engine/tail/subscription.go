package tail

import (
	"context"
	"fmt"
	"slices"
	"time"

	"postrider.dev/pkg/clock"
	dispatcherv1 "postrider.dev/proto/gen/postrider/private/dispatcher/v1"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/ingress/internal/domain"
)

// Subscription is one subscriber's way through a queue. It is used by one goroutine.
type Subscription struct {
	hub    *Hub
	tail   *tail
	ctx    context.Context //nolint:containedctx // who asks; a page is read for it long after Subscribe has returned
	at     []int64         // everything below was told or is not wanted, by shard
	before []int64         // what at was before the last Next
	floor  []int64         // where the log ended when the subscription began, by shard: see take
	filter domain.Filter

	live   bool
	number uint64 // of the next chunk, while live
	begun  bool   // the first event was given
	ended  bool
	timer  clock.Timer // of the heartbeat
	handed time.Time   // when Next gave something last: until it is called again, that is being sent
}

// Close ends the subscription. It MUST be called once.
func (s *Subscription) Close() {
	s.timer.Stop()
	s.tail.leave()
	s.hub.leave()
}

// Next returns what is to be told next, waiting for it: messages and gaps, or a heartbeat when there was nothing for a while. After a batch that is Last
// it MUST NOT be called again. That it is called means that what it returned before was sent.
func (s *Subscription) Next(ctx context.Context) (*Batch, error) {
	stuck := s.hub.clk.Since(s.handed) > s.hub.cfg.SlowAfter
	s.before = append(s.before[:0], s.at...)
	b, err := s.next(ctx, s.begun && stuck)
	if err != nil {
		return nil, err
	}
	s.begun, s.handed = true, s.hub.clk.Now()
	s.timer.Reset(s.hub.cfg.Heartbeat)
	if b.Last {
		s.ended = true
	}
	s.hub.metrics.events.Add(float64(len(b.Events)))
	return b, nil
}

func (s *Subscription) next(ctx context.Context, stuck bool) (*Batch, error) {
	if !s.begun {
		return s.heartbeat(), nil
	}
	for {
		select { // before the log is looked at: there may be no end of what it has
		case <-s.hub.draining:
			return s.Closed(queuev1.ClosedReason_CLOSED_REASON_DRAINING, "the node is going away"), nil
		case <-s.timer.C():
			return s.heartbeat(), nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		default:
		}
		c, changed, over := s.take(stuck)
		switch {
		case over != 0:
			return s.closed(over), nil
		case c != nil:
			if b := s.tell(c); b != nil {
				return b, nil
			}
			continue
		case changed == nil:
			b, err := s.catchUp(ctx)
			if b != nil || err != nil {
				return b, err
			}
			continue
		}
		select {
		case <-changed:
		case <-s.hub.draining:
		case <-s.timer.C():
			return s.heartbeat(), nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// take returns the next chunk of the ring, or what to wait for when there is none. Neither means that the subscription is behind the ring. What was in the log
// before it began is read from the log, whatever the ring has: it may have been deleted since the ring got it.
func (s *Subscription) take(stuck bool) (c *chunk, changed <-chan struct{}, over queuev1.ClosedReason) {
	t := s.tail
	t.mu.Lock()
	defer t.mu.Unlock()
	if s.live && s.number < t.ring.first {
		s.live = false
		if stuck {
			return nil, nil, queuev1.ClosedReason_CLOSED_REASON_SLOW
		}
	}
	if !s.live && s.past(s.floor) && t.ring.covers(s.at) {
		s.live, s.number = true, t.ring.first
	}
	switch {
	case !s.live && t.over != queuev1.ClosedReason_CLOSED_REASON_LOG_REPLACED:
		return nil, nil, 0 // the log has something that the ring has not
	case s.live && s.number < t.ring.next():
		s.number++
		return t.ring.at(s.number - 1), nil, 0
	}
	return nil, t.changed, t.over
}

// tell moves over a chunk and returns what it has to say, nil if that is nothing.
func (s *Subscription) tell(c *chunk) *Batch {
	shard := c.page.GetShard()
	if s.at[shard] >= c.page.GetNext() {
		return nil
	}
	if s.filter.All() && slices.Equal(s.at, c.before) {
		s.at[shard] = c.page.GetNext()
		return nonEmpty(c.all())
	}
	return s.move(c.page)
}

// move moves over a page and returns what of it is told.
func (s *Subscription) move(page *dispatcherv1.LogPage) *Batch {
	b := &Batch{Events: events(s.tail.queue, page, s.at, s.filter)}
	s.at[page.GetShard()] = max(s.at[page.GetShard()], page.GetNext())
	return nonEmpty(b)
}

func nonEmpty(b *Batch) *Batch {
	if len(b.Events) == 0 {
		return nil
	}
	return b
}

// catchUp reads the next page of the shard that is furthest behind the ring, and returns what of it is told, nil if that is nothing.
func (s *Subscription) catchUp(ctx context.Context) (*Batch, error) {
	shard := s.behind()
	if shard < 0 {
		return nil, nil //nolint:nilnil // the ring has caught up with the subscription
	}
	page, err := s.read(ctx, shard)
	if reason := ending(err); reason != 0 {
		return s.closed(reason), nil
	}
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case err != nil:
		_ = s.hub.clk.Sleep(ctx, clock.Jitter(clock.Random{}, retryPage, 0.5)) // next looks at ctx
		return nil, nil                                                        //nolint:nilnil,nilerr // it is tried again, after what next looks at first
	case page.GetNext() <= s.at[shard]: // the ring has more than the log
		return s.closed(queuev1.ClosedReason_CLOSED_REASON_LOG_REPLACED), nil
	}
	return s.move(page), nil
}

const (
	retryPage   = 200 * time.Millisecond
	pageTimeout = 10 * time.Second
)

// past says that the subscription is at a place or further, in every shard.
func (s *Subscription) past(place []int64) bool {
	for i := range s.at {
		if s.at[i] < place[i] {
			return false
		}
	}
	return true
}

// behind returns the shard that has most between the subscription and where the ring serves it, -1 if none has any.
func (s *Subscription) behind() int {
	s.tail.mu.Lock()
	defer s.tail.mu.Unlock()
	shard, most := -1, int64(0)
	for i, start := range s.tail.ring.start() {
		if d := max(start, s.floor[i]) - s.at[i]; d > most {
			shard, most = i, d
		}
	}
	return shard
}

func (s *Subscription) read(ctx context.Context, shard int) (*dispatcherv1.LogPage, error) {
	s.hub.metrics.pages.Inc()
	call, cancel := context.WithTimeout(s.ctx, pageTimeout)
	defer cancel()
	stop := context.AfterFunc(ctx, cancel)
	defer stop()
	var page *dispatcherv1.LogPage
	//nolint:contextcheck // Ask gives it on
	err := s.hub.from.Ask(call, string(s.tail.key.tenant), s.tail.key.queue, func(ctx context.Context, d dispatcherv1.DispatcherServiceClient) error {
		resp, err := d.ReadLog(ctx, &dispatcherv1.ReadLogRequest{
			Queue: s.tail.key.queue, QueueId: s.tail.queue, Shard: int32(shard), From: s.at[shard],
		})
		page = resp.GetPage()
		return err
	})
	return page, err
}

// Rewind takes back a batch that Next gave and that was not sent: the subscription is where it was before it.
func (s *Subscription) Rewind() { s.at = s.before }

// Resume is the token of where the subscription is.
func (s *Subscription) Resume() string {
	return string(domain.AppendResume(nil, s.tail.queue, s.at, -1, 0))
}

func (s *Subscription) heartbeat() *Batch {
	return &Batch{Events: []*queuev1.SubscribeEvent{{
		Resume: s.Resume(), Kind: &queuev1.SubscribeEvent_Heartbeat{Heartbeat: &queuev1.SubscribeHeartbeat{}},
	}}}
}

func (s *Subscription) closed(why queuev1.ClosedReason) *Batch {
	var detail string
	switch why {
	case queuev1.ClosedReason_CLOSED_REASON_SLOW:
		detail = fmt.Sprintf("nothing was read for %s while more than %d messages or %d bytes became due", s.hub.cfg.SlowAfter, s.hub.cfg.BufferMessages, s.hub.cfg.BufferBytes)
	case queuev1.ClosedReason_CLOSED_REASON_QUEUE_DELETED:
		detail = "the queue was deleted"
	default:
		detail = "another database answers, whose log ends before what was delivered"
	}
	return s.Closed(why, detail)
}

// Closed is a last batch that says why, with where the subscription has got to.
func (s *Subscription) Closed(why queuev1.ClosedReason, detail string) *Batch {
	s.hub.metrics.closed.WithLabelValues(reasonLabel(why)).Inc()
	return &Batch{Last: true, Events: []*queuev1.SubscribeEvent{{
		Resume: s.Resume(), Kind: &queuev1.SubscribeEvent_Closed{Closed: &queuev1.SubscribeClosed{Reason: why, Detail: detail}},
	}}}
}
