package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"

	"postrider.dev/pkg/grpcclient"
	dispatcherv1 "postrider.dev/proto/gen/postrider/private/dispatcher/v1"
)

const (
	maxBatchOps   = 4096
	maxBatchBytes = 1 << 20 // one larger operation travels alone
	// maxOpBytes is the largest operation that is taken. A frame larger than a message may be would end its stream and lose what everybody else has on
	// it; the difference is for what surrounds the operation and for a batch of cancels.
	maxOpBytes = grpcclient.MaxMessageBytes - 4<<20
)

// stream is one exchange stream and what it carries. It is opened again and again by its peer.
type stream struct {
	peer *peer
	wake chan struct{} // holds one token while something waits to be sent

	mu      sync.Mutex // guards the rest
	up      bool
	nextID  uint64
	flight  map[uint64]*task // submitted and not answered
	waiting []*task          // of these, not sent yet, in order
	cancels []uint64
}

func newStream(p *peer) *stream {
	return &stream{peer: p, wake: make(chan struct{}, 1), flight: map[uint64]*task{}}
}

// submit takes the task, unless the stream is down.
func (s *stream) submit(t *task) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.up {
		return false
	}
	s.nextID++
	t.mu.Lock()
	t.stream, t.id, t.avoid = s, s.nextID, s.peer
	t.mu.Unlock()
	t.op.Id = s.nextID
	s.flight[s.nextID] = t
	s.waiting = append(s.waiting, t)
	s.signal()
	return true
}

func (s *stream) isUp() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.up
}

// signal needs s.mu or no concurrent taker; a token more is harmless.
func (s *stream) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// withdraw takes back an operation: one that was not sent ends now, for one that is out the dispatcher is told.
func (s *stream) withdraw(id uint64) {
	s.mu.Lock()
	t := s.flight[id]
	if t == nil {
		s.mu.Unlock()
		return
	}
	if i := slices.Index(s.waiting, t); i >= 0 {
		s.waiting = slices.Delete(s.waiting, i, i+1)
		delete(s.flight, id)
		s.mu.Unlock()
		s.peer.x.back(t)
		t.end(nil, context.Canceled)
		return
	}
	s.cancels = append(s.cancels, id)
	s.signal()
	s.mu.Unlock()
}

// take returns the next batch, nil if nothing waits.
func (s *stream) take() []*dispatcherv1.Operation {
	s.mu.Lock()
	defer s.mu.Unlock()
	cancels := min(len(s.cancels), maxBatchOps)
	ops := make([]*dispatcherv1.Operation, 0, min(len(s.waiting), maxBatchOps)+cancels)
	n, bytes := 0, int64(0)
	for _, t := range s.waiting {
		if n == maxBatchOps || n > 0 && bytes+t.bytes > maxBatchBytes {
			break
		}
		ops = append(ops, t.op)
		bytes += t.bytes
		n++
	}
	clear(s.waiting[:n])
	s.waiting = s.waiting[n:]
	for _, id := range s.cancels[:cancels] {
		ops = append(ops, &dispatcherv1.Operation{Op: &dispatcherv1.Operation_Cancel{Cancel: id}})
	}
	s.cancels = s.cancels[cancels:]
	if len(s.waiting) == 0 {
		s.waiting = nil
	}
	if len(s.cancels) == 0 {
		s.cancels = nil
	}
	if s.waiting != nil || s.cancels != nil {
		s.signal()
	}
	return ops
}

// once opens the stream and serves it until it ends; the error says why. Everything it carried has ended or moved when once returns.
func (s *stream) once(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	wire, err := s.peer.client.Exchange(ctx)
	if err != nil {
		return fmt.Errorf("open exchange: %w", err)
	}
	s.raise()
	received := make(chan error, 1)
	go func() { received <- s.receive(wire) }() // ends with the stream; awaited below
	err = s.send(wire, received)
	s.lower()
	cancel()
	if rerr := <-received; err == nil || errors.Is(err, io.EOF) { // EOF on sending means: receive says why
		err = rerr
	}
	s.fail()
	return err
}

// send sends what waits, all that has gathered in one frame, until the receiver ends or sending fails. It leaves the receiver's error in place.
func (s *stream) send(wire dispatcherv1.DispatcherService_ExchangeClient, received chan error) error {
	for {
		select {
		case err := <-received:
			received <- err
			return err
		case <-s.wake:
		}
		ops := s.take()
		if len(ops) == 0 {
			continue
		}
		s.peer.x.metrics.batch.Observe(float64(len(ops)))
		if err := wire.Send(&dispatcherv1.ExchangeRequest{Operations: ops}); err != nil {
			return fmt.Errorf("send: %w", err)
		}
	}
}

func (s *stream) receive(wire dispatcherv1.DispatcherService_ExchangeClient) error {
	for {
		m, err := wire.Recv()
		if err != nil {
			return fmt.Errorf("receive: %w", err)
		}
		if m.GetDraining() {
			s.peer.drain()
		}
		for _, res := range m.GetResults() {
			if t := s.answered(res.GetId()); t != nil {
				t.finish(res, nil)
			}
		}
	}
}

func (s *stream) answered(id uint64) *task {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.flight[id]
	delete(s.flight, id)
	return t
}

func (s *stream) raise() {
	s.mu.Lock()
	s.up = true
	s.mu.Unlock()
	s.peer.raised()
}

func (s *stream) lower() {
	s.mu.Lock()
	s.up = false
	s.mu.Unlock()
	s.peer.lowered()
}

// fail ends or moves what the broken stream carried, in the order of submission, so that what moves keeps it.
func (s *stream) fail() {
	s.mu.Lock()
	flight, waiting := s.flight, s.waiting
	s.flight, s.waiting, s.cancels = map[uint64]*task{}, nil, nil
	s.mu.Unlock()

	unsent := make(map[*task]bool, len(waiting))
	for _, t := range waiting {
		unsent[t] = true
	}
	ids := make([]uint64, 0, len(flight))
	for id := range flight {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	for _, id := range ids {
		t := flight[id]
		if unsent[t] {
			t.finish(nil, errNotSent)
			continue
		}
		t.finish(nil, errBroken)
	}
}
