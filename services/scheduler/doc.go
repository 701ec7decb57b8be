// Package scheduler is for what happens because time passed, done by one leader.
//
// Promise: at most one scheduler believes itself the leader at a time, but for a moment; each take-over has a greater epoch (scheduler.leaders), and a leader that
// is cut off falls silent by itself. What a leader writes is fenced by its epoch, so that moment is harmless.
//
//	candidate ──lock and next epoch──▶ leader ──connection lost, trust over, drain──▶ candidate, or gone
//
// So far that is all: there are no schedules, ticks or watches yet, and a leader does nothing but lead. Dispatchers reap and trim for themselves.
//
// It holds (package leader):
//   - The lock is a session advisory lock on a direct connection (POSTRIDER_DATABASE_DIRECT_URL); behind a transaction pooler the scheduler refuses to run.
//   - A leader stops believing itself TRUST_TTL - TRUST_MARGIN after the start of its last proof, by its own monotonic clock, and at once when
//     its connection is lost.
//   - A drained scheduler has given the lock back: the next one leads within CAMPAIGN_EVERY or so.
//
// It never: depends on who leads for being ready. A standby is as ready as a leader; /internal/leader and the metrics tell them apart.
package scheduler
