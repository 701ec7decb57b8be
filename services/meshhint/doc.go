// Package meshhint is the sidecar: one a host. It keeps the host's nodes in the directory and carries hints between the services of its host and
// those of other hosts.
//
// Promise: a hint that a service sends reaches every other service of the fleet soon, or not at all. Nothing depends on it: parked work re-polls,
// caches are re-read. A hint never carries authority; it says "look", and the looker reads PostgreSQL.
//
// The node directory (mesh.nodes, read through mesh.directory()) is kept on database time:
//
//	joining ──▶ online ──▶ draining ──▶ (gone)
//	   ╰───────────┴───────────┴──────▶ dead      no heartbeat for DEAD_AFTER, or its stream to the sidecar broke
//
// A service announces itself on its Attach stream; the sidecar writes all nodes of the host with one statement a heartbeat. When the sidecar is
// silent, a service beats for itself through mesh.announce, so a dead sidecar costs its host wake latency and nothing else.
//
// Carriers, either or both: framed TCP between the sidecars (internal/mesh), and Redis pub/sub. When a peer connects or the subscription is confirmed,
// the first time and after each break, every service is told that anything may have changed, since what was missed is unknown. A carrier's queue is
// bounded; what does not fit is dropped and counted, never waited for. A hint that came by a carrier goes to the services of this host and to no carrier;
// one that comes by both makes them look twice.
//
// It never: carries a message, an offset or a lease; holds up a caller; decides who holds what; makes readiness depend on a peer.
package meshhint
