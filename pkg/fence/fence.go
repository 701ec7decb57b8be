// Package fence holds the arithmetic of leases and terms: epochs, which order holders, and the trust window, which tells a holder when to stop believing
// that it still is one. It is pure.
//
// The two protect differently. The epoch is safety: the store refuses a write that names an old one, whatever the writer believes. The trust window only
// saves work: it lets a holder that was cut off fall silent before somebody else starts.
package fence

import (
	"errors"
	"fmt"
	"time"
)

// Epoch numbers the holders of one role or partition; each new holder gets a greater one. 0 means none.
type Epoch int64

// Held says whether the epoch was ever given out.
func (e Epoch) Held() bool { return e > 0 }

// Fences says whether a holder of epoch e makes other stale.
func (e Epoch) Fences(other Epoch) bool { return e > other }

// Window is how long one proof of holding is believed.
type Window struct {
	// TTL is how long the right lasts, by whoever grants it, after a renewal.
	TTL time.Duration
	// Margin is taken off: for clocks that run at slightly different speed, and for what is still on its way when trust ends.
	Margin time.Duration
}

// Validate says whether the window leaves any time to be trusted.
func (w Window) Validate() error {
	var errs []error
	if w.TTL <= 0 {
		errs = append(errs, fmt.Errorf("ttl %v is not positive", w.TTL))
	}
	if w.Margin < 0 {
		errs = append(errs, fmt.Errorf("margin %v is negative", w.Margin))
	}
	if w.Margin >= w.TTL {
		errs = append(errs, fmt.Errorf("margin %v leaves nothing of ttl %v", w.Margin, w.TTL))
	}
	return errors.Join(errs...)
}

// TrustedUntil is the instant at which a proof stops being believed. attemptStart is when the attempt that succeeded was STARTED, on the holder's own
// monotonic clock: the grant happened at some time after it, so counting from the answer would trust too long.
func (w Window) TrustedUntil(attemptStart time.Time) time.Time {
	return attemptStart.Add(w.TTL - w.Margin)
}

// Trusted says whether at now a proof attempted at attemptStart is still believed. The boundary itself is not.
func (w Window) Trusted(now, attemptStart time.Time) bool {
	return now.Before(w.TrustedUntil(attemptStart))
}
