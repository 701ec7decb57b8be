package server

import (
	"context"

	adminv1 "postrider.dev/proto/gen/postrider/admin/v1"
	dispatcherv1 "postrider.dev/proto/gen/postrider/private/dispatcher/v1"
)

// States and reasons of a spool.
const (
	spoolOff       = "off"
	spoolIdle      = "idle"
	spoolBuffering = "buffering"
	spoolDraining  = "draining"
	spoolBlocked   = "blocked"

	becauseAway        = "outage"
	becauseMaintenance = "maintenance"
)

// GetSpool shows this dispatcher's spool.
func (x *Exchange) GetSpool(context.Context, *dispatcherv1.GetSpoolRequest) (*dispatcherv1.GetSpoolResponse, error) {
	s, ok := x.engine.Spool()
	if !ok {
		return &dispatcherv1.GetSpoolResponse{Spool: &adminv1.Spool{Host: x.host, State: spoolOff}}, nil
	}
	out := &adminv1.Spool{
		Host: x.host, State: spoolIdle, Bytes: s.Bytes, MaxBytes: s.MaxBytes, Records: int64(s.Records), OldestAt: instant(s.OldestAt),
		Drained: s.Drained, Refused: s.Refused, Damage: int32(s.Damage), DamagedFiles: int32(s.DamagedFiles), Blocked: s.Blocked,
	}
	switch {
	case s.Away:
		out.State, out.Reason = spoolBuffering, becauseAway
	case s.Maintenance:
		out.State, out.Reason = spoolBuffering, becauseMaintenance
	case s.Blocked > 0 && s.Blocked >= int64(s.Records):
		out.State = spoolBlocked
	case s.Records > 0:
		out.State = spoolDraining
	}
	return &dispatcherv1.GetSpoolResponse{Spool: out}, nil
}
