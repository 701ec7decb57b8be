// Package audit keeps the record of what was done.
//
// Promise: an action and its entry are committed together or not at all. The other services call audit.enqueue, the one function this schema exports, inside the
// transaction of the action; the entry waits in the outbox:
//
//	action's transaction ──audit.enqueue──▶ outbox
//
// So far that is all. Nothing moves entries from the outbox into chains yet, nothing hashes them, and nothing can be verified; the outbox only grows, and this
// process measures it (postrider_audit_outbox_entries, postrider_audit_outbox_oldest_seconds) and answers for its health.
//
// It holds:
//   - An entry's time is the database's, in microseconds.
//   - What cannot be recorded (a missing actor, a detail over 64 KiB) does not happen: the error undoes the action too.
//   - No role but the owner's reads or writes the outbox otherwise (deploy/postgres/roles.sql).
//   - The order of the outbox's ids is no order of commits. Rows are to be taken by deleting them, never by a cursor.
//
// It never: stands in the way of an action by being away; the function works while no audit process runs.
package audit
