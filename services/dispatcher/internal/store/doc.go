// Package store is the only place with SQL: it makes durable what domain decides and engine carries.
//
// # The hot side
//
// Push is Flush (or FlushKeyed): an update of the shard's row and an insert of one segment, in one statement over all shards of the flush.
// Pop, settle, renew and reclaim are one window.Change a group-shard: Work applies it as one compare-and-set on (id, version), with every other row
// hanging on that statement's result; WorkLocked is the way after a lost race: lock in one statement, read in later ones, decide, write.
//
// # The cold side
//
// Control is everything that is not on the path of a message: queues, groups, dead letters, the catalogue of partitions, statistics, and the purge of what
// deletes left. It runs plain transactions, continues the lock order at its front (queue row first) and writes an audit entry with every control action.
// A control action may run inside another's transaction (Step, Once), which keeps its answer under the caller's idempotency key.
//
// # What holds
//
//   - Lock order: group_shards by id, then dead letters by key, then shards by id, then inserts. Flush takes only shards, Work only group-shards.
//   - Offsets of a shard are dense and their order is the order of commits, because they are given under the lock of its row.
//   - Instants are read from dispatcher.clock() after the lock was got. What merely looks uses dispatcher.now().
//   - An error means that nothing happened, unless pg.IsOutcomeUnknown. Then the session that may still be doing it is remembered, and
//     FindFlush, WorkLocked and Refresh end that session before they look, so nothing can still arrive behind their back.
//   - Nobody keeps a lock while waiting for a client: a waiter that times out ends the Postrider session in its way if that session waits
//     for its own client.
//   - Every table is read by all columns of a key, whatever the planner believes of the table's size (TestHotStatementsUseWholeKeys). Joins with a list
//     are written "key = ANY (ARRAY[list.key])": that is no equality to the planner, so it cannot walk the whole index to merge it.
package store
