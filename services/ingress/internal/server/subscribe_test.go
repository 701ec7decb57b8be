package server_test

import (
	"bufio"
	"context"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"postrider.dev/pkg/clock"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/ingress/internal/domain"
	"postrider.dev/services/ingress/internal/server"
)

// event is one server-sent event as a client has it.
type event struct{ id, name, data string }

// events opens an event stream. It ends with the test, or with cancel.
func (s *surface) events(query string, header ...string) (next func() event, head answer) {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, "http://ingress/v1/queues/q/subscribe"+query, nil)
	require.NoError(s.t, err)
	req.Header.Set("Authorization", "Bearer "+readKey)
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := s.http.Do(req)
	require.NoError(s.t, err)
	s.t.Cleanup(func() { _ = resp.Body.Close() })
	lines := bufio.NewScanner(resp.Body)
	return func() (e event) {
		s.t.Helper()
		for lines.Scan() {
			field, value, _ := strings.Cut(lines.Text(), ": ")
			switch field {
			case "id":
				e.id = value
			case "event":
				e.name = value
			case "data":
				if e.data != "" {
					e.data += "\n"
				}
				e.data += value
			case "":
				if lines.Text() == "" && e.id != "" {
					return e
				}
			}
		}
		return event{name: "end"}
	}, answer{status: resp.StatusCode, header: resp.Header}
}

func TestASubscriptionIsServerSentEventsThatResumeByTheirID(t *testing.T) {
	t.Parallel()
	s := start(t)
	next, head := s.events("")
	require.Equal(t, http.StatusOK, head.status)
	require.Equal(t, "text/event-stream", head.header.Get("Content-Type"))
	require.Equal(t, "no-cache", head.header.Get("Cache-Control"))
	require.Equal(t, "no", head.header.Get("X-Accel-Buffering"))
	require.Empty(t, next().name, "a heartbeat is no event to a browser")

	s.log.Append(0, "p", map[string]string{"h": "v"}, "{\"big\": 12345678901234567890,\n \"a\":\"\\u0000\"}", "2")
	one, two := next(), next()
	require.Equal(t, "message", one.name)
	require.JSONEq(t, `{"message_id":"0-0","partition":"p","offset":"0","shard":0,"payload":{"big":12345678901234567890,"a":"\u0000"},"content_type":"application/json","headers":{"h":"v"},"client_id":"","priority":0}`, one.data)
	require.Contains(t, one.data, "{\"big\": 12345678901234567890,\n \"a\":\"\\u0000\"}", "byte for byte")
	require.Contains(t, two.data, `"offset":"1"`)

	again, _ := s.events("?from=latest", "Last-Event-ID", one.id)
	require.Empty(t, again().name)
	require.Equal(t, two, again())
	s.goAway()
	require.Equal(t, event{two.id, "closed", `{"reason":"CLOSED_REASON_DRAINING","detail":"the node is going away"}`}, again())
	require.Equal(t, "end", again().name)
}

func TestAPayloadWithACarriageReturnComesOutOfAnEventStreamUnchanged(t *testing.T) {
	t.Parallel()
	s := start(t)
	next, _ := s.events("")
	next()

	s.log.Append(0, "p", nil, "[1,\r\n2]")

	require.Contains(t, next().data, `"payload_base64":"WzEsDQoyXQ=="`)
}

func TestASubscriptionTellsOfGaps(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.log.Append(0, "p", nil, "0", "1", "2")
	s.log.Trim(0, 2)

	next, _ := s.events("?from=1")
	next()

	require.JSONEq(t, `{"shard":0,"from":"1","to":"2","why":"GAP_REASON_RETENTION"}`, next().data)
	require.Contains(t, next().data, `"offset":"2"`)
}

func TestASubscriptionHasOnlyWhatItsFilterWants(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.log.Append(0, "a", map[string]string{"x": "1", "y": "2"}, `"wanted"`)
	s.log.Append(0, "a", map[string]string{"x": "1"}, `"no y"`)
	s.log.Append(0, "a", map[string]string{"x": "2", "y": "2"}, `"another x"`)
	s.log.Append(0, "b", map[string]string{"x": "1", "y": "2"}, `"another partition"`)
	s.log.Append(0, "é/", map[string]string{"x": "1", "y": "2", "postrider-origin": "me"}, `"my own"`)
	s.log.Append(0, "é/", map[string]string{"x": "1", "y": "2", "postrider-origin": "you"}, `"wanted too"`)

	next, _ := s.events("?from=earliest&partitions=a&partitions=" + url.QueryEscape("é/") + "&headers[x]=1&headers%5By%5D=2&skip_origin=me")
	next()

	require.Contains(t, next().data, `"wanted"`)
	require.Contains(t, next().data, `"wanted too"`)
}

func TestASubscriptionSpeaksForTheCallersTenantAndAReaderMakesNoQueue(t *testing.T) {
	t.Parallel()
	s := start(t)
	for _, key := range []string{readKey, strangerKey} {
		next, _ := s.events("", "Authorization", "Bearer "+key, "Postrider-Tenant", "default")
		next()
	}

	requests, callers := s.log.Located()
	require.EqualValues(t, "default", callers[0].Tenant)
	require.EqualValues(t, "other", callers[1].Tenant)
	require.False(t, requests[0].GetCreate(), "this key may only read")
	require.True(t, requests[1].GetCreate())
}

func TestASubscriptionOverWebSocketHasTheSameEvents(t *testing.T) {
	t.Parallel()
	s := start(t)
	conn, _, err := websocket.Dial(t.Context(), "ws://ingress/v1/queues/q/subscribe?from=earliest", &websocket.DialOptions{ //nolint:bodyclose // the library says that it never has to be
		HTTPClient: s.http, HTTPHeader: http.Header{"Authorization": {"Bearer " + readKey}},
	})
	require.NoError(t, err)
	defer conn.CloseNow() //nolint:errcheck // it was closed by the other side
	read := func() string {
		_, text, err := conn.Read(t.Context())
		require.NoError(t, err)
		return string(text)
	}
	require.Contains(t, read(), `"heartbeat":{}`)

	s.log.Append(0, "p", nil, "[1, 2]")
	require.Contains(t, read(), `"payload":[1, 2]`)
	s.goAway()
	require.Contains(t, read(), `"reason":"CLOSED_REASON_DRAINING"`)
	_, _, err = conn.Read(t.Context())
	require.Equal(t, websocket.StatusGoingAway, websocket.CloseStatus(err))
}

func TestAWebSocketOfAForeignPageIsRefused(t *testing.T) {
	t.Parallel()
	s := start(t)
	_, resp, err := websocket.Dial(t.Context(), "ws://ingress/v1/queues/q/subscribe", &websocket.DialOptions{ //nolint:bodyclose // the library says that it never has to be
		HTTPClient: s.http, HTTPHeader: http.Header{"Authorization": {"Bearer " + readKey}, "Origin": {"https://evil.example"}},
	})
	require.Error(t, err)
	require.Equal(t, http.StatusForbidden, resp.StatusCode)
}

func TestASubscriptionOverGRPCHasTheSameEvents(t *testing.T) {
	t.Parallel()
	s := start(t)
	client := queuev1.NewQueueServiceClient(s.conn)
	ctx, cancel := context.WithTimeout(s.as(readKey), 20*time.Second)
	defer cancel()
	stream, err := client.Subscribe(ctx, &queuev1.SubscribeRequest{Queue: "q"})
	require.NoError(t, err)
	first, err := stream.Recv()
	require.NoError(t, err)
	require.NotNil(t, first.GetEvents()[0].GetHeartbeat())

	s.log.Append(0, "p", nil, "1", "2")
	got, err := stream.Recv()
	require.NoError(t, err)
	require.Len(t, got.GetEvents(), 2)
	resumed, err := client.Subscribe(ctx, &queuev1.SubscribeRequest{Queue: "q", Resume: got.GetEvents()[0].GetResume()})
	require.NoError(t, err)
	_, err = resumed.Recv()
	require.NoError(t, err)
	rest, err := resumed.Recv()
	require.NoError(t, err)
	require.EqualValues(t, 1, rest.GetEvents()[0].GetMessage().GetOffset())

	_, err = client.Subscribe(ctx, &queuev1.SubscribeRequest{Queue: "q", From: "1", Resume: got.GetEvents()[0].GetResume()})
	require.NoError(t, err)
	for from, want := range map[string]string{"9": "INVALID_START", "0,0": "INVALID_START"} {
		bad, err := client.Subscribe(ctx, &queuev1.SubscribeRequest{Queue: "q", From: from})
		require.NoError(t, err)
		_, err = bad.Recv()
		require.Equal(t, codes.InvalidArgument, status.Code(err))
		code, field := reason(err)
		require.Equal(t, want, code)
		require.Equal(t, "from", field)
	}
	s.goAway()
	closed, err := stream.Recv()
	require.NoError(t, err)
	require.Equal(t, queuev1.ClosedReason_CLOSED_REASON_DRAINING, closed.GetEvents()[0].GetClosed().GetReason())
}

func TestASubscriptionEndsSoonAfterItsKey(t *testing.T) {
	t.Parallel()
	clk := &leaping{}
	s := startOn(t, server.Config{Timeout: 10 * time.Second, AnswerTimeout: time.Minute, MaxBodyBytes: domain.RequestBytes}, clk)
	next, _ := s.events("", "Authorization", "Bearer prk_passing_0123456789ABCDEFGHIJKLMNOP")
	next()
	clk.leap(20 * time.Second)
	s.log.Append(0, "p", nil, "1")
	one := next()
	require.Equal(t, "message", one.name, "the key is still good")

	revoked.Store(domain.KeyID("passing"), true)
	clk.leap(20 * time.Second)
	s.log.Append(0, "p", nil, "2")

	require.Equal(t, event{one.id, "closed", `{"reason":"CLOSED_REASON_ACCESS_LOST","detail":"the key may not read this queue any more"}`}, next())
	require.Equal(t, "end", next().name)
}

// leaping is the real clock, moved ahead.
type leaping struct {
	clock.Real

	ahead atomic.Int64
}

func (c *leaping) leap(d time.Duration) { c.ahead.Add(int64(d)) }

func (c *leaping) Now() time.Time { return c.Real.Now().Add(time.Duration(c.ahead.Load())) }

func (c *leaping) Since(t time.Time) time.Duration { return c.Now().Sub(t) }
