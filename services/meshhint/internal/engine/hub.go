// Package engine holds the sidecar's live state: who is attached, and the fan-out of hints among them and the carriers.
package engine

import (
	"cmp"
	"slices"
	"sync"

	meshv1 "postrider.dev/proto/gen/postrider/private/mesh/v1"
	"postrider.dev/services/meshhint/internal/domain"
)

// queueLen is how many batches may wait for one attached service.
const queueLen = 1024

// Attached is one service's stream. The server reads Out until Gone is closed.
type Attached struct {
	out chan []*meshv1.Hint

	node domain.Node // guarded by Hub.mu
}

// Out delivers batches of hints for this service.
func (a *Attached) Out() <-chan []*meshv1.Hint { return a.out }

// Publish sends hints to other hosts. It MUST NOT block.
type Publish func([]*meshv1.Hint)

// Hub fans hints out. A service's own hints do not come back to it.
type Hub struct {
	metrics  *Metrics
	carriers []Publish

	mu       sync.Mutex // guards attached and each Attached.node
	attached map[*Attached]struct{}
	departed []domain.Node // ended streams whose death is not in the directory yet
}

// NewHub returns a hub without anybody attached, and without a carrier or with some.
func NewHub(m *Metrics, carriers ...Publish) *Hub {
	return &Hub{metrics: m, carriers: carriers, attached: make(map[*Attached]struct{})}
}

// publish gives hints to every carrier. One that comes to a host by two of them makes it look twice.
func (h *Hub) publish(hints []*meshv1.Hint) {
	for _, carrier := range h.carriers {
		carrier(hints)
	}
}

// Attach adds a service.
func (h *Hub) Attach(n domain.Node) *Attached {
	a := &Attached{out: make(chan []*meshv1.Hint, queueLen), node: n}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.attached[a] = struct{}{}
	h.metrics.attached.Set(float64(len(h.attached)))
	return a
}

// Update replaces what the service says of itself.
func (h *Hub) Update(a *Attached, n domain.Node) {
	h.mu.Lock()
	defer h.mu.Unlock()
	a.node = n
}

// Detach removes a service. One that is gone, because its stream ended, is dead until it attaches again or beats for itself; one that is only
// sent away, because the sidecar ends, is not.
func (h *Hub) Detach(a *Attached, gone bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.attached, a)
	h.metrics.attached.Set(float64(len(h.attached)))
	if !gone {
		return
	}
	n := a.node
	n.State = domain.Dead
	h.departed = append(h.departed, n)
}

// Nodes returns what the directory should say of this host's nodes: the attached, and those that departed since the last call of Written.
func (h *Hub) Nodes() []domain.Node {
	h.mu.Lock()
	defer h.mu.Unlock()
	nodes := make([]domain.Node, 0, len(h.attached)+len(h.departed))
	present := make(map[string]bool, len(h.attached))
	for a := range h.attached {
		nodes = append(nodes, a.node)
		present[a.node.ID] = true
	}
	for _, n := range h.departed {
		if !present[n.ID] {
			nodes = append(nodes, n)
			present[n.ID] = true
		}
	}
	slices.SortFunc(nodes, func(x, y domain.Node) int { return cmp.Compare(x.ID, y.ID) })
	return nodes
}

// Written says that the directory holds the given nodes now: their departures need not be written again.
func (h *Hub) Written(nodes []domain.Node) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.departed = slices.DeleteFunc(h.departed, func(d domain.Node) bool {
		return slices.ContainsFunc(nodes, func(n domain.Node) bool { return n.Equal(d) })
	})
}

// FromService passes on the hints of an attached service: to the others of this host and to the carriers.
func (h *Hub) FromService(from *Attached, hints []*meshv1.Hint) {
	if len(hints) == 0 {
		return
	}
	h.metrics.hints.WithLabelValues("service").Add(float64(len(hints)))
	h.fanOut(from, hints)
	h.publish(hints)
}

// FromCarrier passes on hints of other hosts. They are never published again.
func (h *Hub) FromCarrier(hints []*meshv1.Hint) {
	h.metrics.hints.WithLabelValues("carrier").Add(float64(len(hints)))
	h.fanOut(nil, hints)
}

// EverythingChanged tells all attached services that hints may have been missed.
func (h *Hub) EverythingChanged() {
	h.fanOut(nil, []*meshv1.Hint{{Kind: &meshv1.Hint_EverythingChanged{EverythingChanged: &meshv1.EverythingChanged{}}}})
}

// NodesChanged tells everybody, here and elsewhere, that the directory changed.
func (h *Hub) NodesChanged() {
	hints := []*meshv1.Hint{{Kind: &meshv1.Hint_RegistryChanged{RegistryChanged: &meshv1.RegistryChanged{Registry: "nodes"}}}}
	h.fanOut(nil, hints)
	h.publish(hints)
}

func (h *Hub) fanOut(except *Attached, hints []*meshv1.Hint) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for a := range h.attached {
		if a == except {
			continue
		}
		select {
		case a.out <- hints:
		default:
			h.metrics.dropped.WithLabelValues("service").Add(float64(len(hints)))
		}
	}
}
