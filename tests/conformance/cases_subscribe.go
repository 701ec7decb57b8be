package conformance

import (
	"testing"

	"github.com/stretchr/testify/require"

	adminv1 "postrider.dev/proto/gen/postrider/admin/v1"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
)

// told are the payloads of events that are messages.
func told(events []*queuev1.SubscribeEvent) []string {
	var out []string
	for _, e := range events {
		out = append(out, string(e.GetMessage().GetPayload()))
	}
	return out
}

func subscribeResumes(t *testing.T, k kit) {
	queue := k.name("told")
	push(t, k, queue, item("a", `{"n": 1}`), item("b", "[2,\n 2]"))
	push(t, k, queue, item("a", "3"))

	all, err := k.Subscribe(t.Context(), &queuev1.SubscribeRequest{Queue: queue, From: "earliest"}, 3)
	require.NoError(t, err)
	require.Equal(t, []string{`{"n": 1}`, "[2,\n 2]", "3"}, told(all), "byte for byte, in order")
	require.Equal(t, "b", all[1].GetMessage().GetPartition())
	require.EqualValues(t, 1, all[1].GetMessage().GetOffset())
	require.Equal(t, "application/json", all[1].GetMessage().GetContentType())

	behind, err := k.Subscribe(t.Context(), &queuev1.SubscribeRequest{Queue: queue, Resume: all[0].GetResume()}, 2)
	require.NoError(t, err)
	require.Equal(t, []string{"[2,\n 2]", "3"}, told(behind))
	last, err := k.Subscribe(t.Context(), &queuev1.SubscribeRequest{Queue: queue, From: "2"}, 1)
	require.NoError(t, err)
	require.Equal(t, []string{"3"}, told(last))
}

func subscribeFilters(t *testing.T, k kit) {
	queue := k.name("told")
	kind := func(partition, payload, value string) *queuev1.PushItem {
		it := item(partition, payload)
		it.Headers = map[string]string{"kind": value}
		return it
	}
	push(t, k, queue, kind("a", "1", "x"), kind("b", "2", "x"), kind("c", "3", "x"), kind("a", "4", "y"))
	_, err := k.Push(t.Context(), &queuev1.PushRequest{Queue: queue, Origin: "me", Items: []*queuev1.PushItem{kind("a", "5", "x")}})
	require.NoError(t, err)
	push(t, k, queue, kind("a", "6", "x"))

	got, err := k.Subscribe(t.Context(), &queuev1.SubscribeRequest{
		Queue: queue, From: "earliest", Partitions: []string{"a", "b"}, Headers: map[string]string{"kind": "x"}, SkipOrigin: "me",
	}, 3)

	require.NoError(t, err)
	require.Equal(t, []string{"1", "2", "6"}, told(got))
}

func subscribeRefusals(t *testing.T, k kit) {
	queue := k.name("told")
	push(t, k, queue, item("a", "1"))
	some, err := k.Subscribe(t.Context(), &queuev1.SubscribeRequest{Queue: queue, From: "earliest"}, 1)
	require.NoError(t, err)
	for want, req := range map[string]*queuev1.SubscribeRequest{
		"INVALID_START":      {Queue: queue, From: "yesterday"},
		"TOKEN_MALFORMED":    {Queue: queue, Resume: "nonsense"},
		"CONFLICTING_FIELDS": {Queue: queue, Resume: some[0].GetResume(), From: "0"},
		"RESUME_POINT_GONE":  {Queue: k.name("other"), Resume: some[0].GetResume()},
	} {
		if want == "RESUME_POINT_GONE" {
			push(t, k, req.GetQueue(), item("a", "1"))
		}
		_, err := k.Subscribe(t.Context(), req, 1)
		require.Equal(t, want, Code(err), "%v", err)
	}
	for _, from := range []string{"9", "0,0"} {
		_, err := k.Subscribe(t.Context(), &queuev1.SubscribeRequest{Queue: queue, From: from}, 1)
		require.Equal(t, "INVALID_START", Code(err), "%s: %v", from, err)
	}
	key, err := k.CreateAPIKey(t.Context(), &adminv1.CreateAPIKeyRequest{Name: "reader", Role: adminv1.Role_ROLE_READ})
	require.NoError(t, err)
	_, err = k.with(key.GetSecret()).Subscribe(t.Context(), &queuev1.SubscribeRequest{Queue: k.name("none")}, 1)
	require.Equal(t, "QUEUE_NOT_FOUND", Code(err), "who may only read makes no queue")
}
