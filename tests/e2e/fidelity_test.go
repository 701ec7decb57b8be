package e2e

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"postrider.dev/tests/conformance"
	"postrider.dev/tests/fleet"
)

func TestRESTAndGRPCAnswerAlikeOnTwoHosts(t *testing.T) {
	t.Parallel()
	f := twoHosts(t)
	conformance.Run(t, conformance.Target{BaseURL: f.Hosts[0].HTTP, GRPC: f.Hosts[1].GRPC, Key: fleet.AdminKey})
}

func TestAJSONPayloadComesBackByteForByteOnTheOtherHost(t *testing.T) {
	t.Parallel()
	f := twoHosts(t)
	nested := strings.Repeat(`[`, 64) + strings.Repeat(`]`, 64)
	payloads := []string{
		`9007199254740993`, `-9007199254740993`, `1e400`, `-0`, `0.10`, `"\u0000"`, `"\ud800"`, `"\udc00\ud800x"`, `{"a":1,"a":2}`, `{"b":1,"a":2}`, nested,
		`"` + strings.Repeat("é", 1<<19-1) + `"`, "{\t\"a\" :\r\n [ 1 ,\n2 ]  }", `"\u00e9é\ud83d\ude00😀"`, "\"\u2028<&>\"", `"<\u003c\/"`, `null`, `""`, `[]`,
	}
	for _, p := range payloads { // one request each: a megabyte and its neighbours are no batch
		pushed := send(t, f.Hosts[0], fleet.AdminKey, http.MethodPost, "/v1/queues/json/messages", `{"items":[{"partition":"p","payload":`+p+`}]}`)
		require.Equal(t, http.StatusCreated, pushed.Status, pushed.Body)
	}

	for _, want := range payloads {
		popped := send(t, f.Hosts[1], fleet.AdminKey, http.MethodPost, "/v1/queues/json/pop", `{"wait":"20s"}`)
		require.Equal(t, http.StatusOK, popped.Status, popped.Body)
		var got struct {
			Lease      string `json:"lease"`
			Deliveries []struct {
				Payload     json.RawMessage `json:"payload"`
				ContentType string          `json:"content_type"`
			} `json:"deliveries"`
		}
		popped.into(t, &got)
		require.Len(t, got.Deliveries, 1)
		require.Equal(t, want, string(got.Deliveries[0].Payload))
		acked := send(t, f.Hosts[0], fleet.AdminKey, http.MethodPost, "/v1/queues/json/ack", `{"lease":"`+got.Lease+`","ack_rest":true}`)
		require.Equal(t, http.StatusOK, acked.Status, acked.Body)
	}
}

func TestWhatIsNoJSONIsRefusedBeforeItEntersABatch(t *testing.T) {
	t.Parallel()
	h := fleet.Start(t, fleet.Options{}).Hosts[0]
	for name, body := range map[string]string{
		"raw control character": "{\"payload\":\"a\x01\"}",
		"invalid UTF-8":         "{\"payload\":\"\xff\"}",
		"truncated":             `{"payload":{"a":`,
		"trailing text":         `{"payload":1} x`,
		"129 levels":            `{"payload":` + strings.Repeat("[", 129) + strings.Repeat("]", 129) + `}`,
		"a bare word":           `{"payload":nope}`,
	} {
		got := send(t, h, fleet.AdminKey, http.MethodPost, "/v1/queues/q/messages", body)
		require.Equal(t, http.StatusBadRequest, got.Status, "%s: %s", name, got.Body)
		require.NotEmpty(t, got.code(), name)
	}
	require.Equal(t, http.StatusNotFound, send(t, h, fleet.AdminKey, http.MethodGet, "/v1/queues/q", "").Status, "nothing was made")
}

func TestAReplayedRequestAnswersTheSameOnTheOtherHost(t *testing.T) {
	t.Parallel()
	f := twoHosts(t)
	const path, body = "/v1/queues/orders/messages", `{"items":[{"partition":"p","payload":1},{"partition":"q","payload":2}]}`
	first := send(t, f.Hosts[0], fleet.AdminKey, http.MethodPost, path, body, "Idempotency-Key", "whole")
	require.Equal(t, http.StatusCreated, first.Status, first.Body)
	require.Empty(t, first.Header.Get("Idempotency-Replayed"))

	again := send(t, f.Hosts[1], fleet.AdminKey, http.MethodPost, path, body, "Idempotency-Key", "whole")
	other := send(t, f.Hosts[1], fleet.AdminKey, http.MethodPost, path, `{"payload":3}`, "Idempotency-Key", "whole")

	require.Equal(t, "true", again.Header.Get("Idempotency-Replayed"))
	require.Equal(t, results(t, first), results(t, again))
	require.Equal(t, http.StatusUnprocessableEntity, other.Status, other.Body)
	require.Equal(t, "IDEMPOTENCY_KEY_REUSED", other.code())
	queue, err := f.Client(t).Queue(t.Context(), "orders")
	require.NoError(t, err)
	require.EqualValues(t, 2, queue.GetShards()[0].GetHead(), "pushed once")
}

// results are the fates of a push, as they were written.
func results(t *testing.T, a answer) string {
	t.Helper()
	var body struct {
		Results json.RawMessage `json:"results"`
	}
	a.into(t, &body)
	return string(body.Results)
}

func TestTheTraceOfAPushTravelsWithItsMessages(t *testing.T) {
	t.Parallel()
	f := twoHosts(t)
	const trace, own = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "00-11111111111111111111111111111111-2222222222222222-01"
	pushed := send(t, f.Hosts[0], fleet.AdminKey, http.MethodPost, "/v1/queues/traced/messages",
		`{"items":[{"payload":1},{"payload":2,"headers":{"traceparent":"`+own+`"}}]}`, "traceparent", trace)
	require.Equal(t, http.StatusCreated, pushed.Status, pushed.Body)

	var popped struct {
		Deliveries []struct {
			Headers map[string]string `json:"headers"`
		} `json:"deliveries"`
	}
	send(t, f.Hosts[1], fleet.AdminKey, http.MethodPost, "/v1/queues/traced/pop", `{"batch":2,"wait":"20s"}`).into(t, &popped)

	require.Len(t, popped.Deliveries, 2)
	require.Equal(t, trace[:36], popped.Deliveries[0].Headers["traceparent"][:36], "the same trace")
	require.Equal(t, own, popped.Deliveries[1].Headers["traceparent"], "a message's own is left alone")
}
