// Package tail serves subscriptions: everybody who subscribes to a queue on this node shares one tail of it.
//
//	dispatcher ──TailLog──▶ tail: ring of the newest chunks ──▶ subscription (live): its place in the ring
//	           ◀─ReadLog─── subscription (behind): pages of its own ──▶ until its place is in the ring
//
// What holds:
//   - A subscription is a place, an offset a shard, and moves over every offset once: what it tells follows what it told before without a gap and without
//     a repeat. Where messages are gone, it tells that.
//   - The ring holds a stretch of each shard without a gap. A subscription whose place lies in the stretch of every shard is live; what the ring has below
//     its place it skips. One whose place lies before the ring reads the log in pages until it does not. So the seam needs no care: places decide.
//   - The ring is the buffer of all subscriptions together. It is bounded, and nothing else grows when one of them does not read. Who falls out of it while
//     one of its sends is stuck is closed, with its place; who falls out of it while it reads goes on from the log.
//   - A tail outlives its dispatcher: it goes on at another from where it was.
package tail
