package conformance

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
)

func orderedRoundTrip(t *testing.T, k kit) {
	q := k.name("order")
	push(t, k, q, item("p", `1`), item("p", `2`), item("p", `3`))

	got := pop(t, k, q, 10)

	require.Equal(t, []string{"1", "2", "3"}, payloadsOf(got))
	require.NotNil(t, got.GetLeaseExpiresAt())
	for _, d := range got.GetDeliveries() {
		require.Equal(t, "p", d.GetPartition())
		require.EqualValues(t, 1, d.GetAttempt())
		require.NotNil(t, d.GetCreatedAt())
	}
	ackAll(t, k, q, got)
	again, err := k.Pop(t.Context(), &queuev1.PopRequest{Queue: q})
	require.NoError(t, err)
	require.Empty(t, again.GetDeliveries())
}

func payloadFidelity(t *testing.T, k kit) {
	payloads := []string{
		`9007199254740993`, `-9223372036854775809`, `1e400`, `-0`, `0.1e-7`, `"\u0000"`, `"\ud800"`, `"\udc00\ud800"`, `{"a":1,"a":2}`,
		`{ "a" :	[ 1 ,2 ]  }`, "[\r\n  1\r\n]", `"é\u00e9😀\ud83d\ude00"`, `null`, `true`, `""`, `{}`, `[]`, `"\/\b\f\n\r\t\"\\"`,
		`{"":{"":""}}`, "\"\x7f\u2028\ufeff\"", deep(64), deep(128), `"` + strings.Repeat("x", 1<<20-2) + `"`,
	}
	q := k.name("bytes")
	for _, p := range payloads {
		push(t, k, q, item("p", p))
	}

	for _, want := range payloads {
		got := pop(t, k, q, 1)
		require.Len(t, got.GetDeliveries(), 1)
		require.Equal(t, want, string(got.GetDeliveries()[0].GetPayload()))
		require.Equal(t, "application/json", got.GetDeliveries()[0].GetContentType())
		ackAll(t, k, q, got)
	}
}

func binaryPayload(t *testing.T, k kit) {
	q := k.name("binary")
	body := []byte{0, 1, 0xff, '"', '\\', 0x80}
	push(t, k, q, &queuev1.PushItem{Payload: body, Headers: map[string]string{"event": "push", "née": "é\"\n"}, ClientId: "c-1"},
		&queuev1.PushItem{Payload: nil, ContentType: "text/plain; charset=utf-8"})

	got := pop(t, k, q, 2)

	require.Len(t, got.GetDeliveries(), 2)
	first := got.GetDeliveries()[0]
	require.Equal(t, body, first.GetPayload())
	require.Equal(t, "application/octet-stream", first.GetContentType())
	require.Equal(t, "default", first.GetPartition())
	require.Equal(t, map[string]string{"event": "push", "née": "é\"\n"}, first.GetHeaders())
	require.Equal(t, "c-1", first.GetClientId())
	require.Empty(t, got.GetDeliveries()[1].GetPayload())
	require.Equal(t, "text/plain; charset=utf-8", got.GetDeliveries()[1].GetContentType())
}

func badItemAlone(t *testing.T, k kit) {
	q := k.name("neighbours")
	resp, err := k.Push(t.Context(), &queuev1.PushRequest{Queue: q, Items: []*queuev1.PushItem{
		item("p", `1`), item(strings.Repeat("x", 256), `2`), item("p", deep(129)), item("nul\x00", `3`), item("p", `4`),
	}})
	require.NoError(t, err)

	var codes []string
	for _, r := range resp.GetResults() {
		codes = append(codes, r.GetError().GetCode())
	}
	require.Empty(t, codes[0])
	require.Equal(t, "NAME_TOO_LONG", codes[1])
	require.Contains(t, []string{"JSON_TOO_DEEP", "PAYLOAD_NOT_JSON"}, codes[2])
	require.Equal(t, "NAME_HAS_NUL", codes[3])
	require.Empty(t, codes[4])
	require.Equal(t, []string{"1", "4"}, payloadsOf(pop(t, k, q, 10)))
}

func nothingGood(t *testing.T, k kit) {
	q := k.name("refused")
	resp, err := k.Push(t.Context(), &queuev1.PushRequest{Queue: q, Items: []*queuev1.PushItem{item(strings.Repeat("x", 256), `1`)}})
	require.NoError(t, err)
	require.Equal(t, queuev1.PushStatus_PUSH_STATUS_FAILED, resp.GetResults()[0].GetStatus())
	require.Equal(t, "items[0].partition", resp.GetResults()[0].GetError().GetField())
}

func idempotencyKey(t *testing.T, k kit) {
	q := k.name("keyed")
	keyed := func(payload string) *queuev1.PushItem {
		it := item("p", payload)
		it.IdempotencyKey = "once"
		return it
	}
	first := push(t, k, q, keyed(`1`)).GetResults()[0]

	again, err := k.Push(t.Context(), &queuev1.PushRequest{Queue: q, Items: []*queuev1.PushItem{keyed(`1`), keyed(`2`)}})

	require.NoError(t, err)
	require.Equal(t, queuev1.PushStatus_PUSH_STATUS_DUPLICATE, again.GetResults()[0].GetStatus())
	require.Equal(t, first.GetMessageId(), again.GetResults()[0].GetMessageId())
	require.Equal(t, queuev1.PushStatus_PUSH_STATUS_FAILED, again.GetResults()[1].GetStatus())
	require.Equal(t, "IDEMPOTENCY_KEY_REUSED", again.GetResults()[1].GetError().GetCode())
	require.Equal(t, []string{"1"}, payloadsOf(pop(t, k, q, 10)))
}

func requestKey(t *testing.T, k kit) {
	q := k.name("requestkey")
	req := &queuev1.PushRequest{Queue: q, IdempotencyKey: "all", Items: []*queuev1.PushItem{item("p", `1`), item("p", `2`)}}
	first, err := k.Push(t.Context(), req)
	require.NoError(t, err)
	require.False(t, first.GetReplayed())

	again, err := k.Push(t.Context(), req)

	require.NoError(t, err)
	require.True(t, again.GetReplayed())
	require.Equal(t, first.GetResults()[1].GetMessageId(), again.GetResults()[1].GetMessageId())
	require.Len(t, pop(t, k, q, 10).GetDeliveries(), 2)
}

func emptyPop(t *testing.T, k kit) {
	resp, err := k.Pop(t.Context(), &queuev1.PopRequest{Queue: k.name("empty"), Wait: durationpb.New(20 * time.Millisecond)})
	require.NoError(t, err)
	require.Empty(t, resp.GetDeliveries())
	require.Empty(t, resp.GetLease())
}

func waitingPop(t *testing.T, k kit) {
	q := k.name("waiting")
	type outcome struct {
		resp *queuev1.PopResponse
		err  error
	}
	popped := make(chan outcome, 1)
	go func() {
		resp, err := k.Pop(t.Context(), &queuev1.PopRequest{Queue: q, Wait: durationpb.New(20 * time.Second)})
		popped <- outcome{resp, err}
	}()

	push(t, k, q, item("p", `1`))

	got := <-popped
	require.NoError(t, got.err)
	require.Equal(t, []string{"1"}, payloadsOf(got.resp))
}
