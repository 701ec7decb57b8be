// Package mesh is the sidecar's TCP carrier: framed hints between the sidecars of a fleet, without Redis.
//
//	Publish ──▶ frame.Encode ──▶ a bounded queue a peer ──▶ Sender ═══ TCP ═══▶ Listener of the peer ──▶ frame.Decode ──▶ Receiver
//
// A full mesh: each sidecar listens and dials every peer it knows, by name from its settings and, while it has a listener of its own, from the node
// directory. It sends on what it dialled and receives on what it accepted.
//
// Promise: a caller of Publish never waits; memory is bounded whatever peers and strangers do; what is received was sealed by a sidecar that has the
// secret, as the next frame of its connection. What is received is passed to the services of the host and never published again.
//
// It never: carries a message, an offset or a lease; decides anything. A frame that is lost costs latency, one that is forged (in an open mesh) a query.
//
// frame is the wire format, handshake the keys, peer the two ends of a connection; this package keeps one Sender a peer.
package mesh
