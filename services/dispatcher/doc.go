// Package dispatcher is the queue engine as a service: push, pop, ack and what belongs to them, for the ingresses of a cluster.
//
// # Promise
//
// What a push answers "queued" is durable, in one dense order per shard. What an ordered group pops is in that order per partition, with one lease per
// partition. What is acked is never handed out again to that group; what is not, is. A refusal is proven against the database's present state. All of it
// holds with any number of dispatchers on one queue, with every hint lost, and across the death of any of them at any moment.
//
// # Who is authoritative
//
// The rows in PostgreSQL, alone. A dispatcher holds views (windows) of them, segments it has seen, and requests on their way; it may lose all of that at
// any time. Database time decides what has expired or come due; the process's clock only decides when to look.
//
// # Inside
//
//	ingress ──Exchange──▶ server ──▶ engine ──▶ store ──▶ PostgreSQL
//	                                   │  ▲
//	                                   ▼  │
//	                          link ◀──▶ the host's sidecar (hints, both ways)
//	                          loop: reaper, delayer, cataloguer, housekeeper
//
//	engine:  push ──▶ flush lane ──▶ one segment a shard and commit
//	         pop, settle, renew, release ──▶ group-shard ──▶ plan on its view ──▶ work lane ──▶ one change a group-shard, many in a commit
//	                                             │ stale, lost race, refusal to prove
//	                                             └──▶ under the row's lock: lock, read, plan, write
//	         nothing ready ──▶ parked; woken by commits here, hints, alarms, and the shared re-poll
//
// # States
//
//	starting ──▶ serving ──▶ draining (not ready; parked pops and streams sent away; in flight finished) ──▶ stopped
//
// A dispatcher without its database is degraded, not unready: nobody else would serve better.
//
// # What it never does
//
// It does not authenticate clients (ingress does), does not hold a lock while it waits for anybody, does not refuse from memory, does not answer before
// COMMIT (or the spool's fsync), does not need another dispatcher, and keeps nothing on disk but its spool: pushes that the database cannot take now.
package dispatcher
