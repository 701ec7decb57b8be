// Package ingress is the front door: the only public listener. It serves REST and gRPC over one set of verbs, authenticates by API key, applies the one
// policy table and the one rule table, and forwards: hot verbs in batches over exchange streams, control verbs to the dispatcher's own surface. It
// keeps nothing on disk and owns the Postgres schema ingress: tenants and API keys.
//
//	online ── ctx ends ──▶ draining ── in flight done, pops given back ──▶ ended
//
// A node is in the directory from when its listeners are open; whether it can do its job, a dispatcher in reach and the administrator's key written, is
// what /readyz says.
//
// What it promises:
//   - What is refused is refused before anything is forwarded, with a stable code and the field at fault.
//   - A JSON payload's bytes pass through unchanged.
//   - Every request gets exactly one terminal answer. A push whose dispatcher was lost is never silently repeated unless idempotency keys cover it.
//   - What a pop leased and its client did not get is given back, uncharged.
//   - Whatever is not in the policy table is refused; a caller sees its own tenant only.
//   - A subscription tells of every message of its queue from where it began, each once and in order, or says that some are gone; when it ends, its token
//     goes on there.
//   - A revoked key ends within KEY_FRESH on every node, and what it subscribed to within 15 s more; while Postgres is away keys that are known are honoured for KEY_STALE.
//
// What it never does: decide who holds what, keep a message, or answer for a dispatcher.
package ingress
