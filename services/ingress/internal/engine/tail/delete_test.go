package tail_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"postrider.dev/pkg/clock"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/ingress/internal/domain"
	"postrider.dev/services/ingress/internal/engine/tail"
	"postrider.dev/services/ingress/internal/engine/tail/tailtest"
)

// payloads are those of messages, as they come, until the last.
func payloads(t *testing.T, s *tail.Subscription, last string) []string {
	t.Helper()
	var out []string
	for len(out) == 0 || out[len(out)-1] != last {
		for _, e := range next(t, s).Events {
			m, ok := e.GetKind().(*queuev1.SubscribeEvent_Message)
			require.True(t, ok, "a message that was deleted is no gap: %v", e)
			out = append(out, string(m.Message.GetPayload()))
		}
	}
	return out
}

func TestWhoSubscribesAfterADeleteIsNotGivenTheMessageThoughItIsStillInMemory(t *testing.T) {
	t.Parallel()
	log := tailtest.New(1, 1)
	hub, _ := start(t, log, clock.Real{}, nil)
	live := subscribe(t, hub, tail.Wish{})
	defer live.Close()
	require.Eventually(t, func() bool { tails, _ := log.Tails(); return tails == 1 }, 5*time.Second, time.Millisecond)
	log.Append(0, "p", nil, "0", "1", "2")
	require.Equal(t, []string{"0", "1", "2"}, payloads(t, live, "2"), "the ring has them")

	log.Remove(0, 1)
	late := subscribe(t, hub, tail.Wish{Position: domain.Position{Offsets: []int64{0}}})
	defer late.Close()
	require.Equal(t, []string{"0", "2"}, payloads(t, late, "2"))
	log.Append(0, "p", nil, "3")

	require.Equal(t, []string{"3"}, payloads(t, late, "3"))
	require.Equal(t, []string{"3"}, payloads(t, live, "3"))
	require.LessOrEqual(t, log.Reads(), 2, "what is new comes from the ring")
}

func TestAPageWhoseMessagesAreAllDeletedIsPassedOverWithoutAWord(t *testing.T) {
	t.Parallel()
	log := tailtest.New(1, 1)
	log.Page = 2
	log.Append(0, "p", nil, "0", "1", "2")
	log.Remove(0, 0)
	log.Remove(0, 1)
	hub, _ := start(t, log, clock.Real{}, nil)

	s := subscribe(t, hub, tail.Wish{Position: domain.Position{Offsets: []int64{0}}})
	defer s.Close()

	require.Equal(t, []string{"2"}, payloads(t, s, "2"))
}
