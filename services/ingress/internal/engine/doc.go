// Package engine keeps the exchange with the dispatchers: a few long-lived streams to each, on which the operations of all clients travel in
// batches and are answered in any order.
//
//	Go/Do ──▶ task ──▶ pick a peer ──▶ stream: queue ──▶ batch ──▶ dispatcher
//	                      ▲                                          │
//	                      └── broken, moved or draining ◀── result ◀─┘
//
// What holds:
//   - Every task ends exactly once, with a result or an error; a stream that breaks ends or moves everything it carried.
//   - A dispatcher that hangs is given up within about six seconds, however it was found: what it carried ends or moves.
//   - A push without idempotency keys that was on the wire when its stream broke is never sent again: its outcome is unknown and said to be.
//   - A pop whose client is gone gives back, uncharged, whatever it still leases.
//   - Pushes that are submitted one after the other for one queue are sent in that order, also across a change to a better dispatcher (see lane);
//     only those that are lost with a dispatcher may come later than those behind them.
//
// The own host's dispatcher is preferred whenever it is up; without one, a queue always goes to the same dispatcher while the set of them is the same.
package engine
