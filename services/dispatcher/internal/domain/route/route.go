// Package route decides which dispatcher the operations of a queue are routed to. It is pure: a store brings the facts and writes what was decided.
//
// A route is an optimisation and never a condition: any dispatcher serves any queue, so a wrong route costs a hop between hosts and nothing else. It is worth
// having at an end of the way, at a host that has consumers of the queue. Who may hold it is decided by compare-and-set on the epoch, so of two that decide at
// the same time on the same facts one wins; the other finds, when it looks again, that there is nothing to do.
//
//	none ── a host with a consumer claims ──▶ held ── its node is not online, or its host has no consumer left ──▶ taken over, epoch + 1
package route

import "postrider.dev/pkg/fence"

// Node is a dispatcher's process and the host it runs on.
type Node struct{ ID, Host string }

// Record is what the registry holds of a queue; the zero value is that it holds nothing.
type Record struct {
	NodeID string
	Epoch  fence.Epoch
}

// Facts are what is true, of one moment, of a queue that is to be routed.
type Facts struct {
	Record Record
	// Host is the host of the record's node; empty when the node is not online. Only an online node may hold a route.
	Host string
	// Consumed says that the record's host has consumers of the queue.
	Consumed bool
}

// Claims says that self, whose host has a consumer of the queue, is to take the route at the epoch after the record's. A host that has consumers keeps it from
// all others: where there are two, there is no better place than the one that is known already.
func (f Facts) Claims(self Node) bool {
	switch {
	case f.Record.NodeID == self.ID:
		return false
	case f.Host == "": // nobody holds it, or nobody that can be sent to
		return true
	case f.Host == self.Host: // one that is older here, or one that took its place: to a host they are the same
		return false
	}
	return !f.Consumed
}

// Next is the record of the one that takes over.
func (f Facts) Next(self Node) Record { return Record{NodeID: self.ID, Epoch: f.Record.Epoch + 1} }
