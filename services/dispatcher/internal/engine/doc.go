// Package engine is the live part of a dispatcher: it gathers requests while the previous commit is in flight, plans them on views of the group-shards,
// brings them into the database together, and wakes who waits. It decides nothing (package window does) and keeps nothing (package store does).
//
// # Push
//
//	PushAsync ──▶ validated, encoded ──▶ flush lane: gather ──▶ one segment a shard, one commit ──▶ answers, in the answerer
//	                                        ▲   │ outcome unknown: look for it; lost connection: again; bad value: halves
//	                                        └───┘ queue deleted: to the queue that has the name now
//
// # Pop, settle, renew, release, reclaim
//
//	submit ──▶ group-shard: pending ──▶ work lane: plan on the view ──▶ one change a group-shard, up to 128 in a commit ──▶ answers
//	              ▲      │ no view, stale view, directory not in memory ──▶ load, beside the lane ──┐
//	              │      │ lost race, refusal to prove, unknown outcome   ──▶ slow: under the lock ─┤
//	              └──────┴──────────────────────────────────────────────────────────────────────────┘
//
// A pop that finds nothing parks on its group. It is woken by commits here, by the alarm (retries, expiries), and by the poller, which hints only make
// prompt. A wake takes parked pops into the next plan, so one lease costs one claim however many wait.
//
// # What holds
//
//   - One change of a group-shard is in flight at a time in this process: whoever makes it holds the busy state of the gshard, and nobody else touches the
//     view. A change whose outcome is unknown drops the view, and what it may have leased is given back under the lock before anything else.
//   - "No" is proven: STALE_EPOCH, already settled and the like are answered after a change of the same plan was applied, or from under the lock; "nothing
//     ready" after a poll that began later than the pop.
//   - Subscribe, check, wait: a pop is in the list before it looks whether anything came up since its plan (gshard.seq), and before the poll that checks.
//   - Everything that waits is bounded: bytes and requests before a commit, parked pops, views, cached segments. What is over is refused with a time to
//     try again, or dropped and read again.
//   - Every request is answered exactly once, whatever happens; what was granted to somebody who left is given back, uncharged.
//
// # Locks
//
// group.mu before gshard.mu before workLane.mu; group.mu before poller.mu; none is held across a statement, and no callback is called with gshard.mu,
// workLane.mu or poller.mu held.
package engine
