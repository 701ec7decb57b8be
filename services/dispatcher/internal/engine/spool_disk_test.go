package engine_test

import (
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/dispatcher/internal/engine"
	"postrider.dev/services/dispatcher/internal/spool/spooltest"
)

func TestAFullDiskOfTheSpoolRefusesPushesAndLosesNothing(t *testing.T) {
	t.Parallel()
	for name, room := range map[string]int64{"at once": 0, "in the middle of a record": 30} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSpooling(t, database(t), spooltest.New(), &atomic.Bool{}, 1<<20)
			s.push("q", item("a", "1"))
			s.cut()
			require.Equal(t, []queuev1.PushStatus{buffered}, s.put(item("a", "2")))

			s.disk.SetRoom(room)
			_, err := s.Push(t.Context(), ten, &queuev1.PushRequest{Queue: "q", Items: []*queuev1.PushItem{item("a", "refused")}})
			require.ErrorIs(t, err, engine.ErrSpoolDisk)
			require.InDelta(t, 1, s.metric("spool_failures"), 0)

			s.disk.SetRoom(-1)
			require.Equal(t, []queuev1.PushStatus{buffered}, s.put(item("a", "3")), "it goes on")
			s.mend()
			s.awaitDrained()
			require.Equal(t, []queuev1.PushStatus{queuev1.PushStatus_PUSH_STATUS_QUEUED}, s.put(item("a", "4")))
			require.Equal(t, []string{"1", "2", "3", "4"}, s.everything())
		})
	}
}

func TestWhatIsDrainedWhileTheDiskRefusesIsNotedOnceItDoesNot(t *testing.T) {
	t.Parallel()
	mode := &atomic.Bool{}
	s := newSpooling(t, database(t), spooltest.New(), mode, 1<<20)
	s.push("q", item("a", "1"))
	mode.Store(true)
	require.Equal(t, []queuev1.PushStatus{buffered, buffered}, s.put(item("a", "2"), item("a", "3")))
	s.disk.FailSync(func(int) bool { return true })

	mode.Store(false)
	eventually(t, func() error { return wantf(s.metric("spool_drained_total") == 2, "not drained yet") })
	state, _ := s.Spool()
	require.Equal(t, 2, state.Records, "the disk does not know")
	require.Equal(t, 2, serviceKeys(t, s.node), "so the keys stay")

	s.disk.FailSync(nil)
	s.awaitDrained() // nothing more is pushed
	eventually(t, func() error { return wantf(serviceKeys(t, s.node) == 0, "keys are left") })
	require.Equal(t, []string{"1", "2", "3"}, s.everything(), "each came once")
}
