package server

import (
	"context"
	"net/http"
	"net/url"

	"postrider.dev/pkg/modes"
	dispatcherv1 "postrider.dev/proto/gen/postrider/private/dispatcher/v1"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
)

// Pop maintenance is kept here and by the dispatchers; each is enough. Here it costs no hop, and a pop that waits is answered at the flip even if its
// dispatcher has not read the mode yet. Before the first reading a pop goes on: the dispatcher, which hands out nothing before it knows, decides.

// Modes are the modes of the fleet; modes.Watch has them.
type Modes interface {
	Observe() (m modes.Modes, known bool, changed <-chan struct{})
}

// Headers of a pop's answer while pops are in maintenance. The reason is percent-encoded, since a header cannot hold all that a reason can.
const (
	maintenanceHeader = "Postrider-Pop-Maintenance"
	reasonHeader      = "Postrider-Pop-Maintenance-Reason"
)

// maintenanceError ends a pop that waits when pops go into maintenance.
type maintenanceError struct{ said *queuev1.PopMaintenance }

func (*maintenanceError) Error() string { return "pops are in maintenance" }

// popMaintenance returns what to say to pops while they are in maintenance, else nil.
func (v *verbs) popMaintenance() *queuev1.PopMaintenance {
	m, _, _ := v.modes.Observe()
	if !m.PopMaintenance.Enabled {
		return nil
	}
	return &queuev1.PopMaintenance{Reason: m.PopMaintenance.Reason}
}

// settleOnly answers a pop in maintenance: nothing is handed out, what it settles is settled.
func (v *verbs) settleOnly(ctx context.Context, req *queuev1.PopRequest, m *queuev1.PopMaintenance) (*queuev1.PopResponse, error) {
	op, err := v.operation(ctx)
	if err != nil {
		return nil, err
	}
	if req.GetSettle() == nil {
		return &queuev1.PopResponse{PopMaintenance: m}, nil
	}
	req.Wait, op.SettleOnly = nil, true
	op.Op = &dispatcherv1.Operation_Pop{Pop: req}
	res, err := v.send(ctx, op, 0)
	if err != nil {
		return nil, err
	}
	resp := res.GetPop()
	resp.PopMaintenance = m
	return resp, nil
}

// sayMaintenance puts into headers why a pop handed out nothing, and when to ask again.
func sayMaintenance(h http.Header, m *queuev1.PopMaintenance) {
	if m == nil {
		return
	}
	h.Set(maintenanceHeader, "true")
	if m.GetReason() != "" {
		h.Set(reasonHeader, url.PathEscape(m.GetReason()))
	}
	h.Set("Retry-After", "1")
}
