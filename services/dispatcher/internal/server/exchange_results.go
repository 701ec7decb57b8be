package server

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"postrider.dev/pkg/apierr"
	"postrider.dev/pkg/grpcclient"
	"postrider.dev/pkg/tenant"
	dispatcherv1 "postrider.dev/proto/gen/postrider/private/dispatcher/v1"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
)

const (
	// exchangeBytes is how much one frame of results holds at most, if it holds more than one.
	exchangeBytes = 1 << 20
	// resultBytes is the largest result that is sent. A frame larger than a message may be would end its stream and lose what everybody else has on it;
	// the difference is for what frames the result. No valid request has such an answer: max_bytes bounds those of pops.
	resultBytes = grpcclient.MaxMessageBytes - 4<<20
	// exchangeQueued bounds the bytes of results that wait for the peer to read. A peer that lives reads at once; beyond this, what pops were given is
	// taken back, and new pops are refused.
	exchangeQueued = 128 << 20
)

// ReasonAnswerTooLarge is the reason of an operation whose result is larger than a frame can carry.
const ReasonAnswerTooLarge = "ANSWER_TOO_LARGE"

// result is an answer with what is needed to take it back.
type result struct {
	*dispatcherv1.Result

	op   *dispatcherv1.Operation
	size int // in a frame
}

// sizeIn is what a result takes in a frame, exactly.
func sizeIn(r *dispatcherv1.Result) int { return 1 + protowire.SizeBytes(proto.Size(r)) }

func errUnread() error {
	return apierr.ResourceExhausted(ReasonOverloaded, "too many bytes of answers wait to be read on one stream", 100*time.Millisecond)
}

// answer queues the result of an operation. It never blocks. A result that must not be sent fails its operation alone, and what it leased is given back.
func (s *exchange) answer(op *dispatcherv1.Operation, r *dispatcherv1.Result) {
	out := result{Result: r, op: op, size: sizeIn(r)}
	if out.size > resultBytes {
		s.takeBack(out)
		out = s.instead(op, apierr.FailedPrecondition(ReasonAnswerTooLarge,
			fmt.Sprintf("the answer has %d bytes, at most %d are sent; ask for less at once", out.size, resultBytes)))
	}
	s.mu.Lock()
	if !s.closed && s.queued > 0 && s.queued+out.size > exchangeQueued && out.GetPop().GetLease() != "" {
		s.mu.Unlock()
		s.takeBack(out)
		out = s.withoutLease(op, out.GetPop())
		s.mu.Lock()
	}
	closed := s.closed
	if !closed {
		s.results = append(s.results, out)
		s.queued += out.size
	}
	s.mu.Unlock()
	if closed {
		s.takeBack(out)
		return
	}
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// instead is the result of an operation that is answered with an error after all.
func (s *exchange) instead(op *dispatcherv1.Operation, err error) result {
	r := s.failed(op, err)
	return result{Result: r, op: op, size: sizeIn(r)}
}

// withoutLease is the result of a pop whose lease was taken back because too much waits already: what it settled must be told, the rest is an error.
func (s *exchange) withoutLease(op *dispatcherv1.Operation, pop *queuev1.PopResponse) result {
	if op.GetPop().GetSettle() == nil {
		return s.instead(op, errUnread())
	}
	r := &dispatcherv1.Result{Id: op.GetId(), Result: &dispatcherv1.Result_Pop{Pop: &queuev1.PopResponse{
		Settled: pop.GetSettled(), RestAcked: pop.GetRestAcked(), SettleError: pop.GetSettleError(),
	}}}
	return result{Result: r, op: op, size: sizeIn(r)}
}

// takeBack undoes what nobody will hear of.
func (s *exchange) takeBack(r result) {
	if pop := r.GetPop(); pop.GetLease() != "" {
		s.engine.Undelivered(tenant.ID(r.op.GetTenant()), r.op.GetPop().GetQueue(), pop)
	}
}

// flush sends what waits, in frames of bounded size, and returns how many operations are left without a result.
func (s *exchange) flush() (left int, begun uint64, err error) {
	for {
		s.mu.Lock()
		results := s.results
		s.results = nil
		left, begun = s.inFlight, s.begun
		s.mu.Unlock()
		if len(results) == 0 {
			return left, begun, nil
		}
		for len(results) > 0 {
			frame, n, bytes := frameOf(results)
			if err := s.stream.Send(frame); err != nil {
				s.mu.Lock()
				s.results = append(results, s.results...) // close takes them back
				s.mu.Unlock()
				return 0, 0, err
			}
			s.mu.Lock()
			s.inFlight -= n
			s.queued -= bytes
			s.mu.Unlock()
			clear(results[:n])
			results = results[n:]
		}
	}
}

// frameOf is the next frame: one result, and those after it that fit exchangeBytes with it.
func frameOf(results []result) (frame *dispatcherv1.ExchangeResponse, n, bytes int) {
	frame = &dispatcherv1.ExchangeResponse{}
	for n < len(results) && (n == 0 || bytes+results[n].size <= exchangeBytes) {
		frame.Results = append(frame.Results, results[n].Result)
		bytes += results[n].size
		n++
	}
	return frame, n, bytes
}

// close takes back what was not sent and waits for what still runs: its context has ended, so it ends soon.
func (s *exchange) close() {
	s.mu.Lock()
	s.closed = true
	results := s.results
	s.results = nil
	s.mu.Unlock()
	for _, r := range results {
		s.takeBack(r)
	}
	s.running.Wait()
}
