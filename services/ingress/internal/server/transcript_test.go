package server_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"postrider.dev/pkg/apierr"
	dispatcherv1 "postrider.dev/proto/gen/postrider/private/dispatcher/v1"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// TestTranscriptsAreWhatTheGoldensSay runs each testdata/*.txt: requests as people write them, with the answers below. With -update the answers
// are rewritten.
func TestTranscriptsAreWhatTheGoldensSay(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/*.txtar")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			s := start(t)
			s.exchange.answer, s.exchange.control = scripted, scriptedControl
			want, err := os.ReadFile(file)
			require.NoError(t, err)

			got := replay(t, s, string(want))

			if *update {
				require.NoError(t, os.WriteFile(file, []byte(got), 0o600))
				return
			}
			require.Empty(t, cmp.Diff(string(want), got), "run with -update to rewrite %s", file)
		})
	}
}

// replay sends the requests of a transcript and returns the transcript with the answers that came. A section "-- name.req --" holds a request: its line,
// headers, an empty line, the body.
func replay(t *testing.T, s *surface, transcript string) string {
	t.Helper()
	var out strings.Builder
	for section := range strings.SplitSeq("\n"+transcript, "\n-- ") {
		name, text, ok := strings.Cut(section, " --\n")
		if !ok {
			if comment := strings.TrimPrefix(section, "\n"); comment != "" {
				out.WriteString(strings.TrimSuffix(comment, "\n") + "\n")
			}
			continue
		}
		base, isRequest := strings.CutSuffix(name, ".req")
		if !isRequest {
			continue
		}
		text = strings.TrimSuffix(text, "\n")
		head, body, _ := strings.Cut(text, "\n\n")
		lines := strings.Split(head, "\n")
		method, path, _ := strings.Cut(lines[0], " ")
		var header []string
		for _, line := range lines[1:] {
			k, v, _ := strings.Cut(line, ": ")
			header = append(header, k, strings.TrimSpace(v))
		}
		got := s.request(method, path, body, header...)
		fmt.Fprintf(&out, "-- %s.req --\n%s\n-- %s.resp --\n%s\n", base, text, base, show(got))
	}
	return out.String()
}

func show(a answer) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d\n", a.status)
	for _, name := range []string{"Allow", "Content-Type", "Idempotency-Replayed", "Postrider-Draining", "Retry-After", "Www-Authenticate"} {
		if v := a.header.Get(name); v != "" {
			fmt.Fprintf(&b, "%s: %s\n", name, v)
		}
	}
	if a.body != "" {
		var pretty bytes.Buffer
		if a.header.Get("Content-Type") == apierr.ContentType && json.Indent(&pretty, []byte(a.body), "", "  ") == nil {
			a.body = strings.TrimSpace(pretty.String())
		}
		b.WriteString("\n" + a.body + "\n")
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// scripted answers hot verbs by the name of their queue.
func scripted(op *dispatcherv1.Operation) (*dispatcherv1.Result, error) {
	fail := func(err *apierr.Error) (*dispatcherv1.Result, error) {
		return &dispatcherv1.Result{Result: &dispatcherv1.Result_Error{Error: err.GRPCStatus().Proto()}}, nil
	}
	if op.GetRenew().GetLease() == "stale" || op.GetAck().GetLease() == "stale" {
		return fail(apierr.Aborted("STALE_EPOCH", "the lease is over"))
	}
	switch {
	case op.GetPush().GetQueue() == "full":
		return fail(apierr.ResourceExhausted("QUEUE_FULL", "the queue is full", 2_500_000_000))
	case op.GetPush() != nil:
		res, err := accept(op)
		for i, it := range op.GetPush().GetItems() {
			if it.GetIdempotencyKey() == "reused" {
				res.GetPush().Results[i] = &queuev1.PushResult{
					Status: queuev1.PushStatus_PUSH_STATUS_FAILED,
					Error:  &queuev1.ItemError{Code: "IDEMPOTENCY_KEY_REUSED", Message: "another body", Field: "idempotency_key"},
				}
			}
		}
		res.GetPush().Replayed = op.GetPush().GetIdempotencyKey() == "again"
		return res, err
	case op.GetPop().GetSettle().GetLease() == "stale":
		return &dispatcherv1.Result{Result: &dispatcherv1.Result_Pop{Pop: &queuev1.PopResponse{
			SettleError: &queuev1.ItemError{Code: "STALE_EPOCH", Message: "the lease is over"},
		}}}, nil
	case op.GetPop().GetSettle() != nil:
		return &dispatcherv1.Result{Result: &dispatcherv1.Result_Pop{Pop: &queuev1.PopResponse{RestAcked: 2}}}, nil
	case op.GetPop().GetQueue() == "orders":
		return &dispatcherv1.Result{Result: &dispatcherv1.Result_Pop{Pop: &queuev1.PopResponse{
			Lease: "lease-1", LeaseExpiresAt: timestamppb.New(t0()), LeaseDuration: durationpb.New(30_500_000_000),
			Deliveries: []*queuev1.Delivery{
				{
					MessageId: "m1", Partition: "p", Offset: 9007199254740993, Payload: []byte(`{ "n" : 9007199254740993, "n":1 }`),
					ContentType: "application/json", Headers: map[string]string{"b": "2", "a": "1\n"}, ClientId: "c", Attempt: 1, CreatedAt: timestamppb.New(t0()),
				},
				{MessageId: "m2", Partition: "p", Payload: []byte{0xff, 0}, ContentType: "application/octet-stream", Attempt: 2, CreatedAt: timestamppb.New(t0())},
			},
		}}}, nil
	case op.GetAck() != nil:
		return &dispatcherv1.Result{Result: &dispatcherv1.Result_Ack{Ack: &queuev1.AckResponse{RestAcked: 2, Results: []*queuev1.AckResult{
			{MessageId: "m1", Status: queuev1.AckStatus_ACK_STATUS_SETTLED},
			{MessageId: "m2", Status: queuev1.AckStatus_ACK_STATUS_REFUSED, Error: &queuev1.ItemError{Code: "STALE_EPOCH", Message: "the lease is over"}},
		}}}}, nil
	case op.GetRenew() != nil:
		return &dispatcherv1.Result{Result: &dispatcherv1.Result_Renew{Renew: &queuev1.RenewResponse{LeaseExpiresAt: timestamppb.New(t0())}}}, nil
	}
	return accept(op)
}

func scriptedControl(req, resp proto.Message) error {
	queue := &queuev1.Queue{
		Id: "1", Name: "orders", Options: &queuev1.QueueOptions{Lease: durationpb.New(30_000_000_000), MaxAttempts: proto.Int32(5)},
		ConfigVersion: 2, CreatedAt: timestamppb.New(t0()), Messages: 3, PushRate: 1.5,
	}
	switch resp := resp.(type) {
	case *queuev1.ConfigureQueueResponse:
		configured, _ := req.(*queuev1.ConfigureQueueRequest)
		queue.Name = configured.GetQueue() + " reset:" + strings.Join(configured.GetReset_(), ",")
		queue.Options = configured.GetOptions()
		resp.Queue = queue
	case *queuev1.ListQueuesResponse:
		resp.Queues, resp.NextPageToken = []*queuev1.Queue{queue}, "next"
	case *queuev1.GetQueueResponse:
		get, _ := req.(*queuev1.GetQueueRequest)
		if get.GetQueue() == "none" {
			return apierr.NotFound("QUEUE_NOT_FOUND", "there is no queue of that name").GRPCStatus().Err()
		}
		queue.Name = get.GetQueue()
		resp.Queue = queue
		resp.Groups = []*queuev1.Group{{Name: "default", Mode: queuev1.GroupMode_GROUP_MODE_ORDERED, Start: "earliest", CreatedAt: timestamppb.New(t0())}}
	case *queuev1.TransactResponse:
		return scriptedTransact(req, resp)
	case *queuev1.GetDeadLetterResponse:
		resp.DeadLetter = &queuev1.DeadLetter{Id: "d1", Queue: "orders", Payload: []byte(`[ 1e400 ]`), ContentType: "application/json", PayloadBytes: 9, FailedAt: timestamppb.New(t0())}
	case *queuev1.ListDeadLettersResponse:
		resp.DeadLetters = []*queuev1.DeadLetter{{Id: "d1", Queue: "orders", ContentType: "application/json", PayloadBytes: 9, FailedAt: timestamppb.New(t0())}}
	}
	return nil
}
