package leader

import (
	"context"
	"errors"
	"time"

	"postrider.dev/pkg/fence"
)

var (
	errTrustOver = errors.New("the last proof is too old")
	errNotHeld   = errors.New("the session does not hold the lock")
	errStale     = errors.New("a newer epoch has been given out")
)

// term leads once. It returns nil when the term ended cleanly and the lock is free again; otherwise the session is to be closed.
func (e *Elector) term(ctx context.Context, s *session, lead Lead) error {
	start := e.clk.Now()
	epoch, err := s.takeOver(ctx)
	if err != nil {
		return err
	}
	if err := s.prove(ctx, epoch); err != nil {
		return err
	}
	e.elected(epoch, start)

	tctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	done := make(chan struct{})
	var leadErr error
	go func() {
		defer close(done)
		leadErr = lead(tctx, Term{Epoch: epoch, elector: e})
	}()
	lost := e.guard(ctx, s, epoch, done)
	resigned := closed(done)
	e.steppedDown(lost)
	cancel(errors.Join(ErrLost, lost, context.Cause(ctx)))
	<-done

	if resigned && leadErr != nil {
		return &fatalError{leadErr}
	}
	if lost != nil {
		return lost
	}
	return s.unlock(ctx)
}

// guard proves the lead again and again. It returns nil when ctx ended or lead returned, and otherwise why the lead is lost.
func (e *Elector) guard(ctx context.Context, s *session, epoch fence.Epoch, done <-chan struct{}) error {
	for {
		if err := e.watch(ctx, s, done); err != nil {
			return err
		}
		if closed(ctx.Done()) || closed(done) {
			return nil
		}
		if err := e.renew(ctx, s, epoch); err != nil {
			return err
		}
	}
}

// watch returns when the next proof is due, ctx ended or lead returned; and at once, with an error, when the connection is lost.
func (e *Elector) watch(ctx context.Context, s *session, done <-chan struct{}) error {
	timer := e.clk.NewTimer(e.cfg.ProofEvery)
	defer timer.Stop()
	wctx, cancel := context.WithCancel(ctx)
	defer cancel()
	loss := make(chan error, 1)
	go func() { loss <- s.awaitLoss(wctx) }()
	select {
	case <-timer.C():
	case <-done:
	case <-ctx.Done():
	case err := <-loss:
		return err
	}
	cancel()
	return <-loss
}

// renew makes one proof, which must arrive before trust in the last one ends. It runs to its own end even when ctx ends, because a statement that is
// cut off costs the connection, and with it the clean release.
func (e *Elector) renew(ctx context.Context, s *session, epoch fence.Epoch) error {
	start := e.clk.Now()
	left := e.trustedUntil().Sub(start)
	if left <= 0 {
		return errTrustOver
	}
	pctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	timer := e.clk.NewTimer(left)
	defer timer.Stop()
	proof := make(chan error, 1)
	go func() { proof <- s.prove(pctx, epoch) }()
	select {
	case err := <-proof:
		if err != nil {
			return err
		}
	case <-timer.C():
		cancel(errTrustOver)
		return errors.Join(errTrustOver, <-proof)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.until = e.cfg.Trust.TrustedUntil(start)
	return nil
}

func (e *Elector) trustedUntil() time.Time {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.until
}

// elected notes the beginning of a term; start is when the take-over was attempted.
func (e *Elector) elected(epoch fence.Epoch, start time.Time) {
	e.mu.Lock()
	e.until = e.cfg.Trust.TrustedUntil(start)
	e.state = State{Leading: true, Epoch: epoch, Since: e.clk.Now(), Changes: e.state.Changes + 1}
	e.mu.Unlock()
	e.changed()
}

// steppedDown notes the end of a term, before the work is told, so that nobody is believed who is being stopped.
func (e *Elector) steppedDown(err error) {
	e.mu.Lock()
	e.state.Leading, e.state.Err = false, err
	e.state.Changes++
	e.mu.Unlock()
	e.changed()
}

// note keeps the error of an attempt for State.
func (e *Elector) note(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.state.Err = err
}

func (e *Elector) changed() {
	if e.cfg.OnChange != nil {
		e.cfg.OnChange(e.State())
	}
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
