package e2e

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/durationpb"

	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	postrider "postrider.dev/sdk"
	"postrider.dev/tests/fleet"
)

func TestAGRPCClientWithDefaultLimitsReadsWhatItPops(t *testing.T) {
	t.Parallel()
	f := twoHosts(t)
	headers := map[string]string{}
	for i := range 64 {
		headers[fmt.Sprintf("%c", '0'+i)] = strings.Repeat("v", 126)
	}
	var messages []postrider.Message
	for i := range 1000 {
		messages = append(messages, postrider.Message{Partition: strconv.Itoa(i), Headers: headers, Payload: []byte("x")})
	}
	_, err := f.Client(t, 0).Push(t.Context(), "small", messages...)
	require.NoError(t, err)
	conn, err := grpc.NewClient(f.Hosts[1].GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })

	for got := 0; got < 1000; {
		resp, err := queuev1.NewQueueServiceClient(conn).Pop(authorized(t.Context(), fleet.AdminKey), &queuev1.PopRequest{
			Queue: "small", Batch: 1000, Wait: durationpb.New(20 * time.Second),
		})
		require.NoError(t, err)
		require.NotEmpty(t, resp.GetDeliveries())
		got += len(resp.GetDeliveries())
	}
}

func TestClientsThatDoNotReadTheirLargeMessagesHarmNobody(t *testing.T) {
	t.Parallel()
	f := twoHosts(t)
	a, b := f.Client(t, 0), f.Client(t, 1)
	_, err := a.Configure(t.Context(), "large", &queuev1.QueueOptions{MaxMessageBytes: new(int32(16 << 20)), MaxAttempts: new(int32(1))})
	require.NoError(t, err)
	const unread = 3
	for i := range unread {
		mustPush(t, a, "large", strconv.Itoa(i), strings.Repeat("x", 4<<20))
	}
	conn, err := grpc.NewClient(f.Hosts[0].GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithStaticStreamWindowSize(64<<10))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	for range unread {
		stream, err := conn.NewStream(authorized(t.Context(), fleet.AdminKey), &grpc.StreamDesc{ServerStreams: true}, "/postrider.queue.v1.QueueService/Pop")
		require.NoError(t, err)
		require.NoError(t, stream.SendMsg(&queuev1.PopRequest{Queue: "large", Lease: durationpb.New(time.Hour), Wait: durationpb.New(20 * time.Second)}))
		require.NoError(t, stream.CloseSend())
		_, err = stream.Header() // the answer has come, and is not read
		require.NoError(t, err)
	}
	require.Positive(t, metric(t, f.Hosts[0], "postrider_ingress_answer_bytes"))
	mustPush(t, a, "other", "p", "x")
	require.Equal(t, []string{"x"}, payloads(mustPop(t, a, "other", postrider.PopOptions{})), "others go on")

	require.NoError(t, conn.Close()) // in the middle of every answer

	for range unread { // on the other host, long before the leases end, and with the only attempt there is
		lease := mustPop(t, b, "large", postrider.PopOptions{Batch: 1})
		require.Equal(t, 1, lease.Deliveries[0].Attempt)
		require.Len(t, lease.Deliveries[0].Payload, 4<<20)
		_, err := lease.Ack(t.Context(), lease.Deliveries...)
		require.NoError(t, err)
	}
	eventually(t, func() error {
		if held := metric(t, f.Hosts[0], "postrider_ingress_answer_bytes"); held != 0 {
			return fmt.Errorf("%v bytes are held", held)
		}
		return nil
	})
}

func authorized(ctx context.Context, key string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+key)
}
