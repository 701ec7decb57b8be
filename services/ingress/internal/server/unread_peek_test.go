package server_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"postrider.dev/pkg/apierr"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
)

// largePeeks answers peeks into queue "large" with one message of that size, and tells what each asked for.
func (s *surface) largePeeks(size int) (asked chan int32) {
	asked = make(chan int32, 100)
	s.exchange.control = func(req, resp proto.Message) error {
		peek, ok := req.(*queuev1.PeekMessagesRequest)
		if !ok {
			return nil
		}
		asked <- peek.GetMaxBytes()
		payload := []byte("small")
		if peek.GetQueue() == "large" {
			payload = make([]byte, size)
		}
		proto.Merge(resp, &queuev1.PeekMessagesResponse{Messages: []*queuev1.PeekedMessage{{MessageId: "m", Payload: payload}}, NextOffset: 1})
		return nil
	}
	return asked
}

// unreadPeekRPC sends a peek over gRPC whose answer nobody reads.
func (s *surface) unreadPeekRPC(ctx context.Context) (leave func(), err error) {
	conn := s.dialRPC()
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, "/postrider.queue.v1.QueueService/PeekMessages")
	require.NoError(s.t, err)
	require.NoError(s.t, stream.SendMsg(&queuev1.PeekMessagesRequest{Queue: "large"}))
	require.NoError(s.t, stream.CloseSend())
	if md, err := stream.Header(); err == nil && len(md.Get("content-type")) > 0 && len(stream.Trailer()) == 0 {
		return func() { _ = conn.Close() }, nil
	}
	return func() { _ = conn.Close() }, stream.RecvMsg(&queuev1.PeekMessagesResponse{})
}

// unreadPeekREST does over REST.
func (s *surface) unreadPeekREST(ctx context.Context) (leave func(), status string) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", s.web)
	require.NoError(s.t, err)
	s.t.Cleanup(func() { _ = conn.Close() })
	require.NoError(s.t, conn.(*net.TCPConn).SetReadBuffer(4<<10))
	_, err = fmt.Fprintf(conn, "GET /v1/queues/large/peek HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\n\r\n", readKey)
	require.NoError(s.t, err)
	line := make([]byte, len("HTTP/1.1 200"))
	_, err = io.ReadFull(conn, line)
	require.NoError(s.t, err)
	return func() { _ = conn.Close() }, string(line[len("HTTP/1.1 "):])
}

func TestPeeksThatNobodyReadsHaveTheRoomOfOtherAnswersAndNoMore(t *testing.T) {
	t.Parallel()
	for name, unread := range map[string]func(s *surface) (refused bool, leave func()){
		"grpc": func(s *surface) (bool, func()) {
			leave, err := s.unreadPeekRPC(s.as(readKey))
			if err != nil {
				require.Equal(t, "OVERLOADED", apierr.Reason(err), "%v", err)
				require.Positive(t, apierr.From(err).RetryAfter)
			}
			return err != nil, leave
		},
		"rest": func(s *surface) (bool, func()) {
			leave, status := s.unreadPeekREST(t.Context())
			require.Contains(t, []string{"200", "429"}, status)
			return status != "200", leave
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := unreadSurface(t, largeAnswer, time.Minute)
			asked := s.largePeeks(largeAnswer)
			refused := 0
			var leave []func()
			for range 30 {
				no, gone := unread(s)
				if no {
					refused++
				}
				leave = append(leave, gone)
				require.LessOrEqual(t, s.metric("answer_bytes"), float64(answerRoom))
			}

			require.Greater(t, refused, 10)
			require.Less(t, refused, 28)
			require.Zero(t, <-asked, "with room for it, what the client wants")
			for range 28 {
				<-asked
			}
			require.Positive(t, <-asked, "with little room, less")
			small, err := queuev1.NewQueueServiceClient(s.conn).PeekMessages(s.as(readKey), &queuev1.PeekMessagesRequest{Queue: "small"})
			require.NoError(t, err, "small answers go on")
			require.Len(t, small.GetMessages(), 1)
			require.Equal(t, http.StatusOK, s.request(http.MethodGet, "/v1/queues/small/peek", "").status)
			for _, gone := range leave {
				gone()
			}
			s.eventually("the room comes back", func() bool { return s.metric("answer_bytes") == 0 })
		})
	}
}

func TestAPeekThatNobodyReadsIsCutOff(t *testing.T) {
	t.Parallel()
	s := unreadSurface(t, 4<<20, time.Second)
	s.largePeeks(4 << 20)
	_, err := s.unreadPeekRPC(s.as(readKey))
	require.NoError(t, err)
	_, status := s.unreadPeekREST(t.Context())
	require.Equal(t, "200", status)

	s.eventually("both are cut off", func() bool { return s.metric("answers_cut_off_total") == 2 })

	s.eventually("the room comes back", func() bool { return s.metric("answer_bytes") == 0 })
}
