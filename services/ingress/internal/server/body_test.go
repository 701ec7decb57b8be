package server_test

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	dispatcherv1 "postrider.dev/proto/gen/postrider/private/dispatcher/v1"
	"postrider.dev/services/ingress/internal/server"
)

// upload begins a request whose body the test feeds; a negative length is unknown. What it is answered comes on the channel.
func (s *surface) upload(path string, length int64) (io.WriteCloser, <-chan answer) {
	s.t.Helper()
	r, w := io.Pipe()
	req, err := http.NewRequestWithContext(s.t.Context(), http.MethodPost, "http://ingress"+path, r)
	require.NoError(s.t, err)
	req.ContentLength = length
	req.Header.Set("Authorization", "Bearer "+adminKey)
	req.Header.Set("Content-Type", "application/json")
	got, ended := make(chan answer, 1), make(chan struct{})
	go func() {
		defer close(ended)
		defer close(got)
		resp, err := s.http.Do(req)
		if err != nil {
			return // the test is over
		}
		defer resp.Body.Close() //nolint:errcheck // read to its end
		text, _ := io.ReadAll(resp.Body)
		got <- answer{status: resp.StatusCode, header: resp.Header, body: string(text)}
	}()
	s.t.Cleanup(func() {
		_ = w.CloseWithError(io.ErrUnexpectedEOF)
		<-ended
	})
	return w, got
}

// small starts a surface whose bodies may have 1 MiB, and all of them together 8 MiB.
func small(t *testing.T) *surface {
	t.Helper()
	return startWith(t, server.Config{Timeout: 10 * time.Second, MaxBodyBytes: 1 << 20, AnswerTimeout: time.Minute})
}

func TestAWaitingPopHoldsNoRoomForItsBody(t *testing.T) {
	t.Parallel()
	s := small(t)
	s.exchange.answer = func(op *dispatcherv1.Operation) (*dispatcherv1.Result, error) {
		if op.GetPop() != nil {
			return nil, errWait
		}
		return accept(op)
	}
	for range 20 {
		body, _ := s.upload("/v1/queues/q/pop", -1)
		_, err := io.WriteString(body, `{"wait":"60s"}`+strings.Repeat(" ", 500_000))
		require.NoError(t, err)
		require.NoError(t, body.Close())
		<-s.exchange.parked
	}

	got := s.request(http.MethodPost, "/v1/queues/q/messages", `{"payload":"`+strings.Repeat("x", 500_000)+`"}`)

	require.Equal(t, http.StatusCreated, got.status, got.body)
	s.goAway()
}

func TestSlowUploadsDoNotKeepSmallRequestsOut(t *testing.T) {
	t.Parallel()
	s := small(t)
	answers := make(chan answer, 12)
	for range 12 { // each is given 1 MiB as soon as it begins, and there are 8
		body, got := s.upload("/v1/queues/q/messages", 1<<20)
		go func() {
			_, _ = io.WriteString(body, `{"payload":"`) // fails if it is refused before
		}()
		go func() {
			if a, ok := <-got; ok {
				answers <- a
			}
		}()
	}
	for range 4 {
		a := <-answers
		require.Equal(t, http.StatusTooManyRequests, a.status, a.body)
		require.Contains(t, a.body, "OVERLOADED")
		require.Equal(t, "1", a.header.Get("Retry-After"))
	}

	for _, verb := range []string{"messages", "ack", "pop"} {
		got := s.request(http.MethodPost, "/v1/queues/q/"+verb, map[string]string{"messages": `{"payload":1}`, "ack": `{"settlements":[{"message_id":"m"}]}`}[verb])
		require.Less(t, got.status, 300, got.body)
	}
}

func TestRoomForBodiesIsFreeAgainAfterwards(t *testing.T) {
	t.Parallel()
	s := small(t)
	big := `{"payload":"` + strings.Repeat("x", 1_000_000) + `"}`
	for range 10 {
		got := s.request(http.MethodPost, "/v1/queues/q/messages", big)
		require.Equal(t, http.StatusCreated, got.status, got.body)
		got = s.request(http.MethodPost, "/v1/queues/q/groups", big)
		require.Equal(t, http.StatusBadRequest, got.status, got.body)
		got = s.request(http.MethodPost, "/v1/queues/q/messages", big[:len(big)-1])
		require.Equal(t, http.StatusBadRequest, got.status, got.body)
	}
}
