package clock

import (
	"math/rand/v2"
	"time"
)

// Rand is where jitter comes from. *rand.Rand (math/rand/v2) is one for a single goroutine; Random is one for many.
type Rand interface {
	// Int64N returns a number in [0, n); n is positive.
	Int64N(n int64) int64
}

// Random is the process's shared random source, safe for concurrent use. It is for spreading load, not for secrets.
type Random struct{}

// Int64N returns a number in [0, n).
func (Random) Int64N(n int64) int64 {
	return rand.Int64N(n) //nolint:gosec // G404: jitter needs spread, not secrecy.
}

// FullJitter returns a duration in [0, d], the spread that keeps retries of many clients apart. It returns 0 when d is not positive.
func FullJitter(r Rand, d time.Duration) time.Duration {
	if d <= 0 {
		return 0
	}
	if d == maxDuration {
		d--
	}
	return time.Duration(r.Int64N(int64(d) + 1))
}

// Jitter returns a duration in [d - d*fraction, d + d*fraction]; fraction is held to [0, 1]. It returns d when d is not positive.
func Jitter(r Rand, d time.Duration, fraction float64) time.Duration {
	fraction = min(max(fraction, 0), 1)
	spread := time.Duration(float64(d) * fraction)
	if d <= 0 || spread <= 0 || d > maxDuration/2 {
		return d
	}
	return d - spread + time.Duration(r.Int64N(2*int64(spread)+1))
}

const maxDuration = time.Duration(1<<63 - 1)
