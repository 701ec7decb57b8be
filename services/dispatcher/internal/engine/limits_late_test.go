package engine_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/dispatcher/internal/store"
)

func TestARedriveIntoAFullQueueIsRefusedAndIsDoneOnceThereIsRoom(t *testing.T) {
	t.Parallel()
	for option, limit := range map[string]string{
		"messages": `{"max_queue_messages": 2, "retention_settled": true}`, "bytes": `{"max_queue_bytes": 2500, "retention_settled": true}`,
	} {
		t.Run(option, func(t *testing.T) {
			t.Parallel()
			url := database(t)
			n := newNode(t, url, nodeOptions{})
			letter := noise("a", 1000)
			n.push("q", letter)
			got := n.pop(&queuev1.PopRequest{Queue: "q"})
			n.ack(&queuev1.AckRequest{Queue: "q", Lease: got.GetLease(), Settlements: []*queuev1.Settlement{
				{MessageId: got.GetDeliveries()[0].GetMessageId(), Action: queuev1.AckAction_ACK_ACTION_REJECT},
			}})
			trim := n.trimmer()
			n.set(url, limit)
			n.push("q", noise("b", 1000), noise("c", 1000))
			redrive := func() error {
				done, err := n.control.Redrive(t.Context(), byAdmin, "q", store.RedriveRequest{Group: "default", Limit: 10})
				if err == nil {
					require.Equal(t, 1, done.Redriven)
				}
				return err
			}

			require.ErrorIs(t, redrive(), store.ErrQueueFull)
			full := n.pop(&queuev1.PopRequest{Queue: "q", Batch: 10})
			require.Len(t, full.GetDeliveries(), 2, "nothing of it is in the log")
			require.Zero(t, count(t, url, "SELECT count(*) FROM dispatcher.dead_letters WHERE redriven_at IS NOT NULL"), "and it is still to be redriven")

			n.ackAll("q", full.GetLease())
			eventually(t, func() error {
				require.NoError(t, trim.Round(t.Context()))
				return redrive()
			})
			require.Equal(t, letter.GetPayload(), n.pop(&queuev1.PopRequest{Queue: "q"}).GetDeliveries()[0].GetPayload())
		})
	}
}

func TestADelayedMessageIsAcceptedByAFullQueueAndComesAllTheSame(t *testing.T) {
	t.Parallel()
	for option, limit := range map[string]string{"messages": `{"max_queue_messages": 1}`, "bytes": `{"max_queue_bytes": 1500}`} {
		t.Run(option, func(t *testing.T) {
			t.Parallel()
			url := database(t)
			n := newNode(t, url, nodeOptions{})
			n.set(url, limit)
			n.push("q", noise("a", 1000))
			require.Error(t, n.tryPush(noise("a", 1000)))

			later := inAnHour("a", "later")
			later.Payload = noise("a", 1000).GetPayload()
			n.push("q", later)
			require.Error(t, n.tryPush(noise("a", 1000)), "it is as full as before")
			n.comeDue()

			got := n.pop(&queuev1.PopRequest{Queue: "q", Batch: 10})
			require.Len(t, got.GetDeliveries(), 2)
			require.Equal(t, later.GetPayload(), got.GetDeliveries()[1].GetPayload())
			require.Error(t, n.tryPush(noise("a", 1)), "now it counts")
			require.WithinDuration(t, time.Now(), got.GetDeliveries()[1].GetCreatedAt().AsTime(), time.Minute)
		})
	}
}
