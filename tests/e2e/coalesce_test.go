package e2e

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	postrider "postrider.dev/sdk"
	"postrider.dev/stack"
	"postrider.dev/tests/fleet"
)

// framesOf counts the frames that a host sends to its only peer until it has taken a hint, while something is done.
func framesOf(t *testing.T, f *fleet.Fleet, do func()) float64 {
	t.Helper()
	const sent = "postrider_meshhint_mesh_frames_sent_total"
	before, told := metric(t, f.Hosts[0], sent), heard(t, f.Hosts[1])
	do()
	eventually(t, func() error {
		if heard(t, f.Hosts[1]) == told {
			return errors.New("no hint has arrived")
		}
		return nil
	})
	return metric(t, f.Hosts[0], sent) - before
}

func TestAPushOfAThousandPartitionsIsOneFrameAndSoAreAThousandMessagesOfOne(t *testing.T) {
	t.Parallel()
	if hintsLost() {
		return // there are no frames to count
	}
	f := meshed(t, 2, func(_ int, cfg *stack.Config) {
		cfg.Meshhint.MeshHeartbeat, cfg.Meshhint.MeshDeadAfter = time.Minute, 3*time.Minute // no frame but those of hints
	})
	a := f.Client(t, 0)
	mustPush(t, a, "orders", "first", "x")
	wide, deep := make([]postrider.Message, 1000), make([]postrider.Message, 1000)
	for n := range wide {
		wide[n] = postrider.Message{Partition: fmt.Sprintf("p%d", n), Payload: []byte("x")}
		deep[n] = postrider.Message{Partition: "p", Payload: []byte("x")}
	}
	push := func(messages []postrider.Message) func() {
		return func() {
			_, err := a.Push(t.Context(), "orders", messages...)
			require.NoError(t, err)
		}
	}
	framesOf(t, f, push(wide[:1])) // the first is out of the way

	require.InDelta(t, 1, framesOf(t, f, push(wide)), 0, "a thousand partitions")
	require.InDelta(t, 1, framesOf(t, f, push(deep)), 0, "a thousand times the same")
}
