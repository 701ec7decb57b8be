package tail_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"postrider.dev/pkg/clock"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/ingress/internal/domain"
	"postrider.dev/services/ingress/internal/engine/tail"
	"postrider.dev/services/ingress/internal/engine/tail/tailtest"
)

func TestALogThatLacksWhatWasDeliveredClosesItsSubscribersAndTheirTokensAreOfNoUse(t *testing.T) {
	t.Parallel()
	log := tailtest.New(3, 1)
	hub, _ := start(t, log, clock.Real{}, nil)
	ahead := subscribe(t, hub, tail.Wish{})
	defer ahead.Close()
	log.Append(0, "p", nil, "1", "2", "3")
	for n := 0; n < 3; {
		n += len(next(t, ahead).Events)
	}

	log.Replace(0, 1) // a standby that lacks the last two took over

	b := next(t, ahead)
	require.True(t, b.Last)
	require.Equal(t, queuev1.ClosedReason_CLOSED_REASON_LOG_REPLACED, b.Events[0].GetClosed().GetReason())
	at, err := domain.ParseResume(ahead.Resume())
	require.NoError(t, err)
	_, err = hub.Subscribe(t.Context(), caller, tail.Wish{Queue: "q", Position: at})
	require.ErrorIs(t, err, tail.ErrResumeGone)

	fresh := subscribe(t, hub, tail.Wish{Position: domain.Position{Named: domain.Earliest}})
	defer fresh.Close()
	log.Append(0, "p", nil, "another 2")
	var got []string
	for len(got) < 2 {
		for _, e := range next(t, fresh).Events {
			got = append(got, string(e.GetMessage().GetPayload()))
		}
	}
	require.Equal(t, []string{"1", "another 2"}, got)
}
