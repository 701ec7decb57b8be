// Package leader elects one leader per role among processes that share a database.
//
//	           lock obtained, epoch bumped
//	candidate ─────────────────────────────▶ leader ──┐ proof every ProofEvery, trusted for
//	    ▲                                       │  ◀──┘ the trust window after it was asked for
//	    │  connection lost, lock not seen,      │
//	    └── newer epoch seen, or trust over ────┘ (the leader's context ends at once)
//
// The right to lead is a session advisory lock on a connection of its own; PostgreSQL frees it when that session ends, for whatever reason. It holds:
//   - Epochs grow: a row counts each take-over, in the session that has the lock. Every write of a leader MUST carry its epoch and be refused by the store
//     when the row has a greater one. That check is what protects; the lock only saves work, and two leaders for a moment must be harmless.
//   - A leader steps down as soon as its connection is lost, without waiting for the next proof, and stops believing itself when its last proof, counted from
//     its start on this process's monotonic clock, is older than the trust window.
//   - A proof is a look at pg_locks from the same session. The lock is never taken a second time: session locks stack, and a second unlock would be owed.
//   - The connection must be direct. Behind a pooler that lends sessions per transaction the lock would belong to nobody and never be freed: such a
//     connection is refused with *PoolerError before the lock is touched.
//
// Candidates poll. A session that waits inside pg_advisory_lock keeps a snapshot, and a snapshot held for hours keeps every dead row in the database.
//
// The table of epochs belongs to the caller's schema:
//
//	CREATE TABLE scheduler.leaders (
//		role       text        NOT NULL,
//		epoch      bigint      NOT NULL,
//		holder     text        NOT NULL,
//		elected_at timestamptz NOT NULL,
//		CONSTRAINT leaders_role_pk PRIMARY KEY (role)
//	);
package leader
