package runtest

import (
	"runtime/debug"
	"slices"
	"time"
)

// raceFactor is how much more time a test has under the race detector, on a machine that other tests use too.
const raceFactor = 10

// Race says whether this program was built with the race detector, which makes it several times slower. The toolchain notes it in every program, so no
// build tag is needed.
func Race() bool {
	info, ok := debug.ReadBuildInfo()
	return ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}

// Bound is how long something may take: the true bound, or ten times that under the race detector.
func Bound(d time.Duration) time.Duration {
	if Race() {
		return raceFactor * d
	}
	return d
}

// Volume is how much a test does: the full volume, or a small one under the race detector, where the same code only has to be seen to be free of races.
// scripts/test runs tests that use it both ways.
func Volume[N any](full, raced N) N {
	if Race() {
		return raced
	}
	return full
}
