package postrider

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc/codes"

	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
)

// Handler works on one message. Its context ends when the consumer stops waiting for it (after Grace) or the lease is lost, with cause ErrLeaseLost then.
// nil acks the message; an error nacks it (see RetryAfter and Reject); a panic is not caught.
type Handler func(ctx context.Context, d *Delivery) error

// ConsumeOptions of a consumer. The zero value consumes one message at a time for group "default".
type ConsumeOptions struct {
	PopOptions

	// Concurrency is how many leases are worked on side by side; default 1. Inside a lease messages are handled one after another, in order.
	Concurrency int
	// Grace is how long handlers may go on once ctx has ended; default 10 s. What is not handled by then is released.
	Grace time.Duration
	// OnError is told what Consume gets over by itself: pops that fail, acks that are refused. nil ignores it.
	OnError func(error)
}

// maintenancePause is how long a consumer waits, at most, before it asks again while pops are in maintenance: they are answered at once then.
const maintenancePause = time.Second

// defaultWait is how long a consumer's pop waits for messages.
const defaultWait = 30 * time.Second

// Consume hands messages to h until ctx ends, and returns nil then. It pops elsewhere when a node goes away, renews leases while handlers work,
// and settles a lease in the same round trip that asks for the next. A refusal that will not change (a bad name, a missing right) ends it with that error.
func (c *Client) Consume(ctx context.Context, queue string, h Handler, opts ConsumeOptions) error {
	if opts.Wait == 0 {
		opts.Wait = defaultWait
	}
	if opts.Grace == 0 {
		opts.Grace = 10 * time.Second
	}
	if opts.OnError == nil {
		opts.OnError = func(error) {}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	for range max(opts.Concurrency, 1) {
		wg.Go(func() {
			w := &worker{client: c, queue: queue, handle: h, opts: opts}
			if err := w.run(ctx); err != nil {
				cancel(err)
			}
		})
	}
	wg.Wait()
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) && !errors.Is(cause, context.DeadlineExceeded) {
		return cause
	}
	return nil
}

// worker works on one lease at a time.
type worker struct {
	client *Client
	queue  string
	handle Handler
	opts   ConsumeOptions

	closed bool                // the last pop was answered that pops are in maintenance
	settle *queuev1.AckRequest // of the lease that was worked on last; goes out with the next pop
}

// run pops and handles until ctx ends (nil) or the server refuses for good.
func (w *worker) run(ctx context.Context) error {
	defer func() { w.flush(ctx) }()
	pause := retryMin
	for ctx.Err() == nil {
		lease, err := w.pop(ctx)
		switch {
		case ctx.Err() != nil:
			if lease != nil {
				w.release(ctx, lease)
			}
			return nil
		case err != nil && isFinal(err):
			return err
		case err != nil:
			w.opts.OnError(err)
			sleep(ctx, rand.N(pause)+1) //nolint:gosec // G404: jitter needs spread, not secrecy
			pause = min(2*pause, retryMax)
			continue
		}
		pause = retryMin
		switch {
		case lease != nil:
			w.work(ctx, lease)
		case w.closed:
			sleep(ctx, maintenancePause/2+rand.N(maintenancePause/2)) //nolint:gosec // G404: jitter needs spread, not secrecy
		}
	}
	return nil
}

// isFinal reports whether asking again will be refused again.
func isFinal(err error) bool {
	e, ok := errors.AsType[*Error](err)
	if !ok {
		return false
	}
	switch e.Status {
	case codes.InvalidArgument, codes.NotFound, codes.PermissionDenied, codes.FailedPrecondition, codes.Unimplemented, codes.Unauthenticated,
		codes.AlreadyExists:
		return true
	default:
		return false
	}
}

// pop settles the previous lease and asks for the next. A pop that comes back empty early (the node drains) is followed at once by another.
func (w *worker) pop(ctx context.Context) (*Lease, error) {
	req := w.opts.request(w.queue)
	if w.settle != nil && len(w.settle.GetSettlements()) > 0 {
		req.Settle = w.settle
	}
	var settled []*queuev1.AckResult
	lease, err := w.client.popWith(ctx, req, func(r *queuev1.PopResponse) {
		settled = append(settled, r.GetSettled()...)
		w.closed = r.GetPopMaintenance() != nil
	})
	if err != nil {
		return nil, err
	}
	if len(settled) > 0 {
		w.settle = nil
	} else if lease != nil {
		w.flush(ctx) // the node did not get to it; the lease in hand needs the place
	}
	w.report(ackResults(settled))
	return lease, nil
}

func (w *worker) report(results []AckResult) {
	for _, r := range results {
		if r.Err != nil {
			w.opts.OnError(r.Err)
		}
	}
}

// work handles a lease's messages in order, while a renewer keeps the lease. What failed stops its partition: the messages behind it come back by themselves.
func (w *worker) work(ctx context.Context, lease *Lease) {
	handling, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	defer stop(nil)
	var renewer sync.WaitGroup
	renewer.Go(func() { lease.keep(handling, stop, w.opts.Lease, w.opts.OnError) })
	ended := context.AfterFunc(ctx, func() {
		if !sleep(handling, w.opts.Grace) {
			return
		}
		stop(context.Cause(ctx))
	})
	defer ended()

	req := &queuev1.AckRequest{Queue: w.queue, Lease: lease.Token}
	failed := map[string]string{} // the message that stops a partition, by partition
	var back, behind []*Delivery
	for _, d := range lease.Deliveries {
		switch {
		case failed[d.Partition] != "":
			behind = append(behind, d)
		case ctx.Err() != nil || handling.Err() != nil:
			back = append(back, d)
		default:
			err := w.handle(handling, d)
			if w.stops(err) {
				failed[d.Partition] = d.MessageID
			}
			req.Settlements = append(req.Settlements, settlement(d, err))
		}
	}
	lost := errors.Is(context.Cause(handling), ErrLeaseLost)
	stop(nil)
	renewer.Wait()
	if lost {
		w.opts.OnError(ErrLeaseLost)
	}
	w.settle = req
	if len(back)+len(behind) == 0 || lost {
		return
	}
	// What is behind a failed message comes back by itself, unless that one was out of attempts: then it has to be given back.
	dead := map[string]bool{}
	for _, r := range w.flush(ctx) {
		dead[r.GetMessageId()] = r.GetStatus() == queuev1.AckStatus_ACK_STATUS_DEAD_LETTERED
	}
	for _, d := range behind {
		if dead[failed[d.Partition]] {
			back = append(back, d)
		}
	}
	if len(back) > 0 {
		w.release(ctx, lease, back...)
	}
}

// stops reports whether a handler's result stops the message's partition: a nack does in an ordered group, unless the group skips what failed.
func (w *worker) stops(err error) bool {
	if _, rejected := errors.AsType[*rejectError](err); err == nil || rejected {
		return false
	}
	return w.opts.Mode != queuev1.GroupMode_GROUP_MODE_SHARED && w.opts.OnFailure != queuev1.OnFailure_ON_FAILURE_SKIP
}

// settlement says what a handler's result means.
func settlement(d *Delivery, err error) *queuev1.Settlement {
	if err == nil {
		return &queuev1.Settlement{MessageId: d.MessageID, Action: queuev1.AckAction_ACK_ACTION_ACK}
	}
	reason := reasonOf(err)
	if _, ok := errors.AsType[*rejectError](err); ok {
		return reject(d, reason)
	}
	if r, ok := errors.AsType[*retryError](err); ok {
		return nack(d, r.after, reason)
	}
	return nack(d, -1, reason)
}

// maxReason is the most bytes of a reason that the server keeps.
const maxReason = 1024

// reasonOf makes an error's text one that the server takes: UTF-8 without NUL, cut between characters.
func reasonOf(err error) string {
	reason := strings.ReplaceAll(strings.ToValidUTF8(err.Error(), "\uFFFD"), "\x00", "\uFFFD")
	for len(reason) > maxReason {
		_, size := utf8.DecodeLastRuneInString(reason[:min(len(reason), maxReason+1)])
		reason = reason[:min(len(reason), maxReason+1)-size]
	}
	return reason
}

// cleanup bounds what a stopping consumer still says to the server.
const cleanup = 5 * time.Second

// flush settles what no later pop will carry.
func (w *worker) flush(ctx context.Context) []*queuev1.AckResult {
	if w.settle == nil || len(w.settle.GetSettlements()) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanup)
	defer cancel()
	resp, err := again(ctx, func() (*queuev1.AckResponse, error) { return w.client.queues.Ack(ctx, w.settle) })
	w.settle = nil
	if err != nil {
		w.opts.OnError(err)
		return nil
	}
	w.report(ackResults(resp.GetResults()))
	return resp.GetResults()
}

func (w *worker) release(ctx context.Context, lease *Lease, back ...*Delivery) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanup)
	defer cancel()
	if err := lease.Release(ctx, back...); err != nil {
		w.opts.OnError(err)
	}
}

// keep renews the lease each third of its length until ctx ends. When the lease cannot be trusted any more it ends the handlers with ErrLeaseLost: on
// this process's clock, before the server may give the messages to somebody else.
func (l *Lease) keep(ctx context.Context, stop context.CancelCauseFunc, d time.Duration, onError func(error)) {
	length := time.Until(l.TrustedUntil())
	margin := length / 10
	for {
		if !sleep(ctx, length/3) {
			return
		}
		attempt, cancel := context.WithDeadlineCause(ctx, l.TrustedUntil().Add(-margin), ErrLeaseLost)
		err := l.Renew(attempt, d)
		cancel()
		switch {
		case err == nil:
		case ctx.Err() != nil:
			return
		default:
			onError(err)
			if isFinal(err) || Code(err) == "STALE_EPOCH" || time.Until(l.TrustedUntil()) <= margin {
				stop(ErrLeaseLost)
				return
			}
		}
	}
}
