package link_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"

	"postrider.dev/pkg/grpcclient"
	"postrider.dev/pkg/grpcserver"
	"postrider.dev/pkg/run/runtest"
	meshv1 "postrider.dev/proto/gen/postrider/private/mesh/v1"
	"postrider.dev/services/dispatcher/internal/link"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// sidecar is a sidecar that keeps what it is told and says what it is given.
type sidecar struct {
	meshv1.UnimplementedMeshServiceServer

	mu       sync.Mutex // guards the rest
	announce []*meshv1.Announce
	hints    []*meshv1.Hint
	frames   int
	say      chan *meshv1.Hint
}

func (s *sidecar) Attach(stream grpc.BidiStreamingServer[meshv1.AttachRequest, meshv1.AttachResponse]) error {
	if err := stream.Send(&meshv1.AttachResponse{HostId: "h"}); err != nil {
		return err
	}
	go func() {
		for {
			select {
			case h := <-s.say:
				_ = stream.Send(&meshv1.AttachResponse{Hints: []*meshv1.Hint{h}})
			case <-stream.Context().Done():
				return
			}
		}
	}()
	for {
		m, err := stream.Recv()
		if err != nil {
			return nil //nolint:nilerr // the client left
		}
		s.mu.Lock()
		if m.GetAnnounce() != nil {
			s.announce = append(s.announce, m.GetAnnounce())
		}
		if len(m.GetHints()) > 0 {
			s.frames++
		}
		s.hints = append(s.hints, m.GetHints()...)
		s.mu.Unlock()
	}
}

// heard is a Listener that keeps what it hears.
type heard struct {
	mu        sync.Mutex // guards the rest
	available []link.QueueName
	changed   []link.QueueName
	modes     int
	all       int
}

func (h *heard) MessagesAvailable(q link.QueueName) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.available = append(h.available, q)
}

func (h *heard) QueueChanged(q link.QueueName) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.changed = append(h.changed, q)
}

func (h *heard) ModesChanged() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.modes++
}

func (h *heard) EverythingChanged() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.all++
}

func attach(t *testing.T) (*link.Sidecar, *sidecar, *heard) {
	t.Helper()
	env := runtest.New(t)
	srv, err := grpcserver.New(t.Context(), env, grpcserver.Options{Service: "meshhint", Listener: "internal", Addr: "mem:mesh"})
	require.NoError(t, err)
	peer := &sidecar{say: make(chan *meshv1.Hint)}
	meshv1.RegisterMeshServiceServer(srv, peer)
	runtest.Go(t, srv.Run)
	conn, err := grpcclient.Dial(env, "mem:mesh", "")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close()) })
	h := &heard{}
	s := link.New(meshv1.NewMeshServiceClient(conn), h, env.Clock, env.Log, link.Config{NodeID: "n", Version: "v"})
	runtest.Go(t, func(ctx context.Context) error { return s.Run(ctx) })
	runtest.Eventually(t, func() error {
		if !s.IsUp() {
			return errors.New("not attached")
		}
		return nil
	})
	return s, peer, h
}

func TestHintsOfAMillisecondTravelTogetherAndOnceAQueue(t *testing.T) {
	t.Parallel()
	s, peer, _ := attach(t)

	for i := range 1000 {
		s.MessagesAvailable(link.QueueName{Tenant: "t", Queue: strconv.Itoa(i % 10)})
	}
	s.QueueChanged(link.QueueName{Tenant: "t", Queue: "c"}, true)

	runtest.Eventually(t, func() error {
		peer.mu.Lock()
		defer peer.mu.Unlock()
		available := map[string]bool{}
		changed := 0
		for _, h := range peer.hints {
			if m := h.GetMessageAvailable(); m != nil {
				available[m.GetQueue()] = true
			}
			if c := h.GetQueueConfigChanged(); c != nil && c.GetDeleted() {
				changed++
			}
		}
		if len(available) != 10 || changed != 1 || len(peer.hints) > 100 {
			return fmt.Errorf("%d queues, %d changes, %d hints", len(available), changed, len(peer.hints))
		}
		return nil
	})
}

func TestARouteIsHintedAtByAKeyThatNamesNoOtherQueue(t *testing.T) {
	t.Parallel()
	s, peer, _ := attach(t)
	long := strings.Repeat("q", 254)

	for _, q := range []string{"a/c/1", "producer/x", long} {
		s.RouteChanged(link.QueueName{Tenant: "t", Queue: q})
	}

	runtest.Eventually(t, func() error {
		peer.mu.Lock()
		defer peer.mu.Unlock()
		keys := map[string]bool{}
		for _, h := range peer.hints {
			if r := h.GetRegistryChanged(); r != nil && r.GetRegistry() == "routes" {
				keys[r.GetKey()] = true
			}
		}
		if !maps.Equal(keys, map[string]bool{"t/a/c/1": true, "t/producer/x": true, "": true}) { // the long one does not fit and is any
			return fmt.Errorf("hinted at %v", keys)
		}
		return nil
	})
}

func TestTooManyQueuesBecomeEverything(t *testing.T) {
	t.Parallel()
	s, peer, _ := attach(t)

	for i := range 10_000 {
		s.MessagesAvailable(link.QueueName{Queue: strconv.Itoa(i)})
	}

	runtest.Eventually(t, func() error {
		peer.mu.Lock()
		defer peer.mu.Unlock()
		for _, h := range peer.hints {
			if h.GetEverythingChanged() != nil {
				return nil
			}
		}
		return fmt.Errorf("%d hints, none for everything", len(peer.hints))
	})
}

func TestHintsOfOthersAreHeardAndAttachingMeansThatSomeWereMissed(t *testing.T) {
	t.Parallel()
	_, peer, h := attach(t)
	tenant := "t"
	peer.say <- &meshv1.Hint{Kind: &meshv1.Hint_MessageAvailable{MessageAvailable: &meshv1.MessageAvailable{Tenant: &tenant, Queue: "q"}}}
	peer.say <- &meshv1.Hint{Kind: &meshv1.Hint_QueueConfigChanged{QueueConfigChanged: &meshv1.QueueConfigChanged{Queue: "q"}}}
	peer.say <- &meshv1.Hint{Kind: &meshv1.Hint_ModesChanged{ModesChanged: &meshv1.ModesChanged{Mode: "pop_maintenance"}}}
	peer.say <- &meshv1.Hint{Kind: &meshv1.Hint_EverythingChanged{EverythingChanged: &meshv1.EverythingChanged{}}}

	runtest.Eventually(t, func() error {
		h.mu.Lock()
		defer h.mu.Unlock()
		if len(h.available) != 1 || len(h.changed) != 1 || h.modes != 1 || h.all != 2 {
			return fmt.Errorf("heard %v %v %d %d", h.available, h.changed, h.modes, h.all)
		}
		return nil
	})
}

func TestAStateIsAnnouncedAgain(t *testing.T) {
	t.Parallel()
	s, peer, _ := attach(t)

	s.SetState("draining")

	runtest.Eventually(t, func() error {
		peer.mu.Lock()
		defer peer.mu.Unlock()
		if last := peer.announce[len(peer.announce)-1]; last.GetState() != "draining" || last.GetService() != "dispatcher" {
			return fmt.Errorf("announced %v", last)
		}
		return nil
	})
}
