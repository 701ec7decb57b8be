package server_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/ingress/internal/domain"
	"postrider.dev/services/ingress/internal/server"
)

// fill appends more than any buffer between the log and a client holds, now that the subscriber stands.
func (s *surface) fill() {
	payload := `"` + strings.Repeat("x", 1<<20) + `"`
	for range 64 {
		s.log.Append(0, "p", nil, payload)
	}
}

func (s *surface) awaitSubscribers(n int64) {
	s.t.Helper()
	require.Eventually(s.t, func() bool {
		_, subscribers := s.log.Tails()
		return subscribers == n
	}, 30*time.Second, 10*time.Millisecond)
}

func TestASubscriberThatReadsNothingForTheAnswerTimeoutIsCutOff(t *testing.T) {
	t.Parallel()
	for name, upgrade := range map[string]string{
		"server-sent events": "", "websocket": "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// Long enough to be seen as a subscriber: a WebSocket is asked by a ping from the first, which this client leaves unanswered.
			s := startWith(t, server.Config{Timeout: 20 * time.Second, MaxBodyBytes: domain.RequestBytes, AnswerTimeout: 5 * time.Second})
			var d net.Dialer
			conn, err := d.DialContext(t.Context(), "tcp", s.web)
			require.NoError(t, err)
			t.Cleanup(func() { _ = conn.Close() })
			_, err = fmt.Fprintf(conn, "GET /v1/queues/q/subscribe HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\n%s\r\n", readKey, upgrade)
			require.NoError(t, err)
			_, err = io.ReadFull(conn, make([]byte, len("HTTP/1.1 200")))
			require.NoError(t, err)
			s.awaitSubscribers(1)

			s.fill()

			s.awaitSubscribers(0)
			require.NoError(t, conn.SetReadDeadline(time.Now().Add(20*time.Second)))
			n, err := io.Copy(io.Discard, conn)
			require.True(t, err == nil || !isTimeout(err), "the connection is closed, not left open: %v after %d", err, n)
			require.Less(t, n, int64(64<<20))
		})
	}
}

func isTimeout(err error) bool {
	late, ok := err.(net.Error) //nolint:errorlint // io.Copy returns it as it is
	return ok && late.Timeout()
}

func TestAGRPCSubscriberThatReadsNothingForTheAnswerTimeoutIsCutOff(t *testing.T) {
	t.Parallel()
	s := startWith(t, server.Config{Timeout: 20 * time.Second, MaxBodyBytes: domain.RequestBytes, AnswerTimeout: time.Second})
	ctx, cancel := context.WithTimeout(s.as(readKey), 40*time.Second)
	defer cancel()
	stream, err := queuev1.NewQueueServiceClient(s.dialRPC()).Subscribe(ctx, &queuev1.SubscribeRequest{Queue: "q"})
	require.NoError(t, err)
	_, err = stream.Recv()
	require.NoError(t, err)
	s.awaitSubscribers(1)

	s.fill()

	s.awaitSubscribers(0)
	for err == nil {
		_, err = stream.Recv()
	}
	require.Equal(t, codes.ResourceExhausted, status.Code(err), "%v", err)
	code, _ := reason(err)
	require.Equal(t, "SLOW", code)
}
