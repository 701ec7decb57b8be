package e2e

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"postrider.dev/pkg/redisconn"
	"postrider.dev/pkg/redistest"
	meshv1 "postrider.dev/proto/gen/postrider/private/mesh/v1"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	postrider "postrider.dev/sdk"
	"postrider.dev/tests/fleet"
)

// forgeries is what somebody who can reach Redis may put there: a hint of messages that are not, copies of a message in the clear, and noise.
func forgeries(t *testing.T) [][]byte {
	t.Helper()
	hint, err := proto.Marshal(&meshv1.CarriedHints{From: "nobody", Hints: []*meshv1.Hint{
		{Kind: &meshv1.Hint_MessageAvailable{MessageAvailable: &meshv1.MessageAvailable{Queue: "news", Partitions: []string{"p0"}}}},
		{Kind: &meshv1.Hint_QueueConfigChanged{QueueConfigChanged: &meshv1.QueueConfigChanged{Queue: "news", Deleted: true}}},
		{Kind: &meshv1.Hint_EverythingChanged{EverythingChanged: &meshv1.EverythingChanged{}}},
	}})
	require.NoError(t, err)
	message, err := proto.Marshal(&queuev1.SubscribedMessage{Partition: "p0", Offset: 0, Payload: []byte("forged")})
	require.NoError(t, err)
	return [][]byte{hint, message, append(hint, message...), []byte("forged"), nil}
}

func TestWhatIsForgedOnRedisIsDeliveredToNobody(t *testing.T) {
	t.Parallel()
	if hintsOff() {
		return // there is no channel to forge on
	}
	url := redistest.Start(t).URL()
	f := fleet.Start(t, fleet.Options{Hosts: 2, RedisURL: url})
	a, b := f.Client(t, 0), f.Client(t, 1)
	far := listen(t, b, "news", postrider.SubscribeOptions{}, nil)
	forger, err := redisconn.Open(url, redisconn.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { _ = forger.Close() })
	before := heard(t, f.Hosts[1])

	for n := range 50 {
		for _, frame := range forgeries(t) {
			require.NoError(t, forger.Publish(t.Context(), "postrider:hints", frame))
		}
		count(t, a, "news", n, n+1, 1, 0)
	}
	eventually(t, func() error {
		if heard(t, f.Hosts[1]) < before+3*50 {
			return errors.New("the forged hints have not arrived")
		}
		return nil
	})

	far.heard(t, 50) // these, in their order, and nothing else
	for n := range 50 {
		lease := mustPop(t, b, "news", postrider.PopOptions{Group: "g"})
		require.NotContains(t, payloads(lease), "forged", "at %d", n)
		_, err := lease.Ack(t.Context())
		require.NoError(t, err)
	}
	none, err := b.Pop(t.Context(), "news", postrider.PopOptions{Group: "g"})
	require.NoError(t, err)
	require.Nil(t, none)
}
