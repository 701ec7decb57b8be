package server

import (
	"net/http"
	"strings"

	"postrider.dev/pkg/apierr"
	"postrider.dev/pkg/idempotency"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/ingress/internal/domain"
	"postrider.dev/services/ingress/internal/domain/jsonscan"
	"postrider.dev/services/ingress/internal/server/wire"
)

func (s *Server) restPop(w http.ResponseWriter, r *http.Request) {
	req := &queuev1.PopRequest{}
	if err := s.read(w, r, req, wire.Decoder{}); err != nil {
		apierr.WriteHTTP(w, r, err)
		return
	}
	req.Queue = param(r, "queue")
	resp, hold, err := s.verbs.pop(r.Context(), req, weightInJSON)
	if err != nil {
		apierr.WriteHTTP(w, r, err)
		return
	}
	defer hold.Release()
	if resp.GetDraining() {
		w.Header().Set(drainingHeader, "true")
	}
	sayMaintenance(w.Header(), resp.GetPopMaintenance())
	if hasNothingToSay(resp) {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	lease := resp.GetLease()
	if r.Context().Err() != nil || !writeHeld(w, resp, hold) || http.NewResponseController(w).Flush() != nil || r.Context().Err() != nil {
		s.verbs.undelivered(r.Context(), req, lease)
	}
}

// hasNothingToSay says that nothing was leased and nothing became of a settlement.
func hasNothingToSay(resp *queuev1.PopResponse) bool {
	return len(resp.GetDeliveries()) == 0 && len(resp.GetSettled()) == 0 && resp.GetRestAcked() == 0 && resp.GetSettleError() == nil
}

func (s *Server) restAck(w http.ResponseWriter, r *http.Request) {
	req := &queuev1.AckRequest{}
	if err := s.read(w, r, req, wire.Decoder{}); err != nil {
		apierr.WriteHTTP(w, r, err)
		return
	}
	req.Queue = param(r, "queue")
	resp, err := s.verbs.ack(r.Context(), req)
	if err != nil {
		apierr.WriteHTTP(w, r, err)
		return
	}
	writeJSON(w, http.StatusOK, resp)
}

func (s *Server) restRenew(w http.ResponseWriter, r *http.Request) {
	req := &queuev1.RenewRequest{}
	if err := s.read(w, r, req, wire.Decoder{}); err != nil {
		apierr.WriteHTTP(w, r, err)
		return
	}
	req.Queue = param(r, "queue")
	resp, err := s.verbs.renew(r.Context(), req)
	if err != nil {
		apierr.WriteHTTP(w, r, err)
		return
	}
	writeJSON(w, http.StatusOK, resp)
}

func (s *Server) restRelease(w http.ResponseWriter, r *http.Request) {
	req := &queuev1.ReleaseRequest{}
	if err := s.read(w, r, req, wire.Decoder{}); err != nil {
		apierr.WriteHTTP(w, r, err)
		return
	}
	req.Queue = param(r, "queue")
	resp, err := s.verbs.release(r.Context(), req)
	if err != nil {
		apierr.WriteHTTP(w, r, err)
		return
	}
	writeJSON(w, http.StatusOK, resp)
}

// restConfigure merges options. An option that is null takes its default again, and one that does not exist is named in an error of its own.
func (s *Server) restConfigure(w http.ResponseWriter, r *http.Request) {
	req := &queuev1.ConfigureQueueRequest{}
	var reset []string
	d := wire.Decoder{
		OnNull: func(path string) {
			if name, ok := strings.CutPrefix(path, "options."); ok {
				reset = append(reset, name)
			}
		},
		Unknown: func(at int, path string) error {
			name, ok := strings.CutPrefix(path, "options.")
			if !ok {
				return nil
			}
			return jsonscan.Fail(domain.CodeOption, at, name, "there is no option of that name")
		},
	}
	if err := s.read(w, r, req, d); err != nil {
		apierr.WriteHTTP(w, r, err)
		return
	}
	req.Queue = param(r, "queue")
	req.Reset_ = append(req.GetReset_(), reset...)
	ctx, header, err := keyedCall(r.Context(), r.Header)
	if err != nil {
		apierr.WriteHTTP(w, r, err)
		return
	}
	resp, err := s.queue.ConfigureQueue(ctx, req)
	if err != nil {
		apierr.WriteHTTP(w, r, err)
		return
	}
	if idempotency.Replayed(header.Header()) {
		w.Header().Set(replayedHeader, "true")
	}
	writeJSON(w, http.StatusOK, resp)
}
