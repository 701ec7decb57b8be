package server_test

import (
	"bytes"
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
	"google.golang.org/protobuf/reflect/protoreflect"

	"postrider.dev/pkg/apierr"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/ingress/internal/server/wire"
)

// unreadRead is a read whose answer carries messages.
type unreadRead struct {
	method string // of gRPC
	path   string // of REST, below the queue
	ask    func(queue string) proto.Message
	answer func(payload []byte) proto.Message
}

// unreadReads are all of them; TestWhateverCarriesMessagesIsAmongTheReads looks for others.
func unreadReads() map[string]unreadRead {
	return map[string]unreadRead{
		"peek": {
			"PeekMessages", "/peek",
			func(q string) proto.Message { return &queuev1.PeekMessagesRequest{Queue: q} },
			func(b []byte) proto.Message {
				return &queuev1.PeekMessagesResponse{Messages: []*queuev1.PeekedMessage{{MessageId: "m", Payload: b}}, NextOffset: 1}
			},
		},
		"lookup": {
			"LookupMessage", "/messages/lookup?message_id=m",
			func(q string) proto.Message { return &queuev1.LookupMessageRequest{Queue: q, MessageId: "m"} },
			func(b []byte) proto.Message { return &queuev1.LookupMessageResponse{MessageId: "m", Payload: b} },
		},
		"dead letter": {
			"GetDeadLetter", "/dead-letters/d",
			func(q string) proto.Message { return &queuev1.GetDeadLetterRequest{Queue: q, Id: "d"} },
			func(b []byte) proto.Message {
				return &queuev1.GetDeadLetterResponse{DeadLetter: &queuev1.DeadLetter{Id: "d", Payload: b}}
			},
		},
		"dead letters, by their headers": {
			"ListDeadLetters", "/dead-letters?page_size=1000",
			func(q string) proto.Message { return &queuev1.ListDeadLettersRequest{Queue: q, PageSize: 1000} },
			func(b []byte) proto.Message {
				return &queuev1.ListDeadLettersResponse{DeadLetters: []*queuev1.DeadLetter{{Id: "d", Headers: map[string]string{"h": string(b)}}}}
			},
		},
	}
}

// largeReads answers reads of queue "large" with that many bytes, those of others with few, and tells what each peek asked for.
func (s *surface) largeReads(read unreadRead, size int) (asked chan int32) {
	asked = make(chan int32, 100)
	s.exchange.control = func(req, resp proto.Message) error {
		about, ok := req.(interface{ GetQueue() string })
		if !ok {
			return nil
		}
		if peek, ok := req.(*queuev1.PeekMessagesRequest); ok {
			asked <- peek.GetMaxBytes()
		}
		payload := []byte("small")
		if about.GetQueue() == "large" {
			payload = bytes.Repeat([]byte("x"), size)
		}
		proto.Merge(resp, read.answer(payload))
		return nil
	}
	return asked
}

// unreadOverRPC sends a read over gRPC whose answer nobody reads.
func (s *surface) unreadOverRPC(ctx context.Context, read unreadRead) (leave func(), err error) {
	conn := s.dialRPC()
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, "/postrider.queue.v1.QueueService/"+read.method)
	require.NoError(s.t, err)
	require.NoError(s.t, stream.SendMsg(read.ask("large")))
	require.NoError(s.t, stream.CloseSend())
	if md, err := stream.Header(); err == nil && len(md.Get("content-type")) > 0 && len(stream.Trailer()) == 0 {
		return func() { _ = conn.Close() }, nil
	}
	return func() { _ = conn.Close() }, stream.RecvMsg(read.answer(nil))
}

// unreadOverREST does over REST.
func (s *surface) unreadOverREST(ctx context.Context, read unreadRead) (leave func(), status string) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", s.web)
	require.NoError(s.t, err)
	s.t.Cleanup(func() { _ = conn.Close() })
	require.NoError(s.t, conn.(*net.TCPConn).SetReadBuffer(4<<10))
	_, err = fmt.Fprintf(conn, "GET /v1/queues/large%s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\n\r\n", read.path, readKey)
	require.NoError(s.t, err)
	line := make([]byte, len("HTTP/1.1 200"))
	_, err = io.ReadFull(conn, line)
	require.NoError(s.t, err)
	return func() { _ = conn.Close() }, string(line[len("HTTP/1.1 "):])
}

func TestReadsThatNobodyReadsHaveTheRoomOfOtherAnswersAndNoMore(t *testing.T) {
	t.Parallel()
	for name, read := range unreadReads() {
		t.Run(name+" over gRPC", func(t *testing.T) {
			t.Parallel()
			requireBoundedReads(t, read, func(s *surface) (bool, func()) {
				leave, err := s.unreadOverRPC(s.as(readKey), read)
				if err != nil {
					require.Equal(t, "OVERLOADED", apierr.Reason(err), "%v", err)
					require.Positive(t, apierr.From(err).RetryAfter)
				}
				return err != nil, leave
			})
		})
		t.Run(name+" over REST", func(t *testing.T) {
			t.Parallel()
			requireBoundedReads(t, read, func(s *surface) (bool, func()) {
				leave, status := s.unreadOverREST(t.Context(), read)
				require.Contains(t, []string{"200", "429"}, status)
				return status != "200", leave
			})
		})
	}
}

func requireBoundedReads(t *testing.T, read unreadRead, unread func(s *surface) (refused bool, leave func())) {
	t.Helper()
	s := unreadSurface(t, largeAnswer, time.Minute)
	asked := s.largeReads(read, largeAnswer)
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
	if read.method == "PeekMessages" {
		require.Zero(t, <-asked, "with room for it, what the client wants")
		for range 28 {
			<-asked
		}
		require.Positive(t, <-asked, "with little room, less")
	}
	small := read.answer(nil)
	require.NoError(t, s.conn.Invoke(s.as(readKey), "/postrider.queue.v1.QueueService/"+read.method, read.ask("small"), small), "small answers go on")
	require.True(t, proto.Equal(read.answer([]byte("small")), small), "%v", small)
	got := s.request(http.MethodGet, "/v1/queues/small"+read.path, "")
	require.Equal(t, http.StatusOK, got.status, got.body)
	require.Equal(t, string(wire.Append(nil, read.answer([]byte("small")))), got.body)
	for _, gone := range leave {
		gone()
	}
	s.eventually("the room comes back", func() bool { return s.metric("answer_bytes") == 0 })
}

// TestWhateverCarriesMessagesIsAmongTheReads walks the contract: an answer with a payload or headers in it is of a pop, of a subscription or among the
// reads that have bounded room.
func TestWhateverCarriesMessagesIsAmongTheReads(t *testing.T) {
	t.Parallel()
	bounded := map[string]bool{"Pop": true, "Subscribe": true}
	for _, read := range unreadReads() {
		bounded[read.method] = true
	}
	methods := queuev1.File_postrider_queue_v1_queue_service_proto.Services().ByName("QueueService").Methods()
	carrying := map[string]bool{}
	for i := range methods.Len() {
		if carriesMessages(methods.Get(i).Output(), map[protoreflect.FullName]bool{}) {
			carrying[string(methods.Get(i).Name())] = true
		}
	}

	require.Equal(t, bounded, carrying)
}

func carriesMessages(m protoreflect.MessageDescriptor, seen map[protoreflect.FullName]bool) bool {
	if seen[m.FullName()] {
		return false
	}
	seen[m.FullName()] = true
	for i := range m.Fields().Len() {
		f := m.Fields().Get(i)
		if f.Kind() == protoreflect.BytesKind || f.Name() == "headers" || f.Message() != nil && carriesMessages(f.Message(), seen) {
			return true
		}
	}
	return false
}

func TestAReadThatNobodyReadsIsCutOff(t *testing.T) {
	t.Parallel()
	for name, read := range unreadReads() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := unreadSurface(t, 4<<20, time.Second)
			s.largeReads(read, 4<<20)
			_, err := s.unreadOverRPC(s.as(readKey), read)
			require.NoError(t, err)
			_, status := s.unreadOverREST(t.Context(), read)
			require.Equal(t, "200", status)

			s.eventually("both are cut off", func() bool { return s.metric("answers_cut_off_total") == 2 })

			s.eventually("the room comes back", func() bool { return s.metric("answer_bytes") == 0 })
		})
	}
}
