// Package window is the queue engine's pure core: what one consumer group knows and decides about one shard. No clock, no context, no
// database; time and randomness are arguments.
//
// # Who is authoritative
//
// The rows in the database. A View is a cache of them and of segment directories, valid exactly when its version is the row's. A
// stale view may propose (the compare-and-set finds out) but never refuse: every "no" is an Outcome with Refusal set, and leaves the
// process only if the change of the same plan was applied or the view was refreshed under the row's lock.
//
// # The life of a message in a group
//
//	               Admit                       Pop
//	(in the log) ---------> ready (listed) ----------> leased
//	                          ^   ^   ^                 |  |  |
//	                          |   |   |  Release        |  |  |  Ack, SettleAt
//	                          |   |   +-----------------+  |  +--------------> settled (bit set, for good)
//	                          |   |      uncharged         |                      ^
//	                          |   |  expired with others:  |  Nack, or expired    |
//	                          |   |  uncharged, alone next |  alone: failures+1   |
//	                          |   +------------------------+                      |
//	                          |      due                   v     last failure,    |
//	                          +------------------------ waiting  or Reject        |
//	                                                       +---> dead letter -----+
//
// # Rules
//
//   - Undone is the default: a message counts as settled only when its bit says so. Losing a lease or retry row costs a redelivery.
//   - One change in flight: Plan, apply, Commit. Plan changes nothing that can be seen; a change that was not applied is forgotten. If
//     the outcome is unknown, the view is dropped.
//   - Every change adds one to the version, also a renew.
//   - A key (64-bit partition hash) is ready, in ordered mode, if it has no open lease entry and no waiting message before its first
//     listed one (a group with on_failure skip does not wait for failed ones). In shared mode each message is for itself.
//   - Instants in rows come from the statement's clock: a Change carries durations, and NotBefore for what it believes has passed.
//   - Expiry permits others to reclaim; until then the lease is as good as new. A reclaim charges a message only if it was the only
//     one its lease was granted for. Otherwise it charges none, and those messages are handed out one by one from then on, each the
//     only one of its pop, so that a crasher takes no neighbours with it.
//   - Within one plan settles, renews and releases come first and pops last: an ack frees its key for a pop beside it. What a plan
//     gives back (nack, release, reclaim) is handed out from the next plan on (Outcome.Again).
//   - Where the queue has a delay, a segment is admitted when it is that old, and not before; those behind it are younger. A Change that hands out
//     what was listed carries NotBefore.
//   - Bounds are absolute (MaxAdmitted and its neighbours). Admission is on demand and in offset order; a key lists at most MaxListed
//     messages and then one number; blocked keys give their lists up when room is needed.
//   - A seek says where the group stands, forgets leases and failures of what it is about, and is planned alone. A view that is older
//     forgets what it admitted (Row.Sought): what is unsettled again may lie anywhere below its frontier.
//   - Releases leave no trace; Attempt counts hand-outs that were not released.
//
// # Use
//
//	v, err := Load(snapshot, policy)         // cold; v.Refresh(snapshot) keeps what was admitted
//	v.Advance(now)                           // where there is a delay
//	need, more := v.Need(head)               // which directory is wanted next, for a pop of any partition
//	need, more = v.NeedKey(hash, head, most) // the same for a named one
//	v.Admit(directory)                       // answers Need; v.AdmitKey(hash, directory) answers a keyed one. What does not join on is left out
//	v.Skip(from, to), v.SkipKey(hash, ...)   // there is no message (of that hash) in [from, to)
//	change, outcomes := v.Plan(now, draw, requests)
//	// fill change.DeadLetters, apply change, and if it was applied:
//	v.Commit(change, stamp)
//	v.NextWake(), v.Ready(), v.Key(hash), v.Depth(head), v.Stopped(), v.Known(), v.Policy(), v.SetPolicy(p)
package window
