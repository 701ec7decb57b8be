package wire_test

import (
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	adminv1 "postrider.dev/proto/gen/postrider/admin/v1"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/ingress/internal/domain/jsonscan"
	"postrider.dev/services/ingress/internal/server/wire"
)

func TestWhatProtojsonWritesIsReadAlike(t *testing.T) {
	t.Parallel()
	for _, m := range []proto.Message{
		&queuev1.PopRequest{
			Group: "g", Batch: 3, Wait: durationpb.New(1500 * time.Millisecond), GroupOptions: &queuev1.GroupOptions{Mode: queuev1.GroupMode_GROUP_MODE_SHARED, Start: "latest"},
			Settle: &queuev1.AckRequest{Lease: "l", AckRest: true, Settlements: []*queuev1.Settlement{{MessageId: "m", Action: queuev1.AckAction_ACK_ACTION_NACK, Delay: durationpb.New(0), Reason: "\"é\n"}}},
		},
		&queuev1.ConfigureQueueRequest{Options: &queuev1.QueueOptions{MaxAttempts: proto.Int32(3), Lease: durationpb.New(time.Hour)}, Reset_: []string{"backoff"}},
		&adminv1.CreateAPIKeyRequest{Name: "n", Role: adminv1.Role_ROLE_ADMIN, ExpiresAt: timestamppb.New(time.Unix(1_900_000_000, 123_000_000))},
		&queuev1.Shard{Id: "1", Head: 1<<62 + 1, Tail: -5},
	} {
		for _, proto3 := range []bool{true, false} {
			body, err := (protojson.MarshalOptions{UseProtoNames: proto3}).Marshal(m)
			require.NoError(t, err)
			got := m.ProtoReflect().New().Interface()
			require.NoError(t, wire.Decoder{}.Decode(body, got), "%s", body)
			require.True(t, proto.Equal(m, got), "%v\n%v", m, got)
		}
	}
}

func TestWhatIsWrittenProtojsonReadsAlike(t *testing.T) {
	t.Parallel()
	for _, m := range []proto.Message{
		&queuev1.GetQueueResponse{
			Queue:  &queuev1.Queue{Name: "q\u2028\"\x01", PushRate: 0.1, Options: &queuev1.QueueOptions{Lease: durationpb.New(-1500 * time.Microsecond)}, CreatedAt: timestamppb.New(time.Unix(1, 1))},
			Shards: []*queuev1.Shard{{Head: 1 << 60}}, Groups: []*queuev1.Group{{Mode: queuev1.GroupMode(7)}},
		},
		&queuev1.PopResponse{Deliveries: []*queuev1.Delivery{}, Settled: []*queuev1.AckResult{{Status: queuev1.AckStatus_ACK_STATUS_RETURNED}}},
		&adminv1.ListNodesResponse{Nodes: []*adminv1.Node{{Addresses: map[string]string{"b": "1", "a": "\x7f"}}}},
	} {
		body := wire.Append(nil, m)
		got := m.ProtoReflect().New().Interface()
		require.NoError(t, protojson.Unmarshal(body, got), "%s", body)
		require.True(t, proto.Equal(m, got), "%v\n%v", m, got)
	}
}

func TestPayloadsAreWrittenByTheirType(t *testing.T) {
	t.Parallel()
	for payload, want := range map[string]string{
		`{ "a":1e400 }`: `"payload":{ "a":1e400 },`,
		`not json`:      `"payload_base64":"bm90IGpzb24=",`,
		``:              `"payload_base64":"",`,
	} {
		got := string(wire.Append(nil, &queuev1.Delivery{Payload: []byte(payload), ContentType: "application/vnd.x+json; charset=utf-8"}))
		require.Contains(t, got, want)
		require.True(t, json.Valid([]byte(got)))
	}
	require.Contains(t, string(wire.Append(nil, &queuev1.Delivery{Payload: []byte(`1`), ContentType: "text/plain"})), `"payload_base64":"MQ=="`)
}

func TestFieldsAtFaultAreNamedWithTheirPlace(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]jsonscan.Error{
		`{"settle":{"settlements":[{},{"delay":"x"}]}}`: {Code: jsonscan.CodeDuration, Field: "settle.settlements[1].delay", Offset: 38},
		`{"group_options":{"mode":"fast"}}`:             {Code: wire.CodeEnum, Field: "group_options.mode", Offset: 25},
		`{"group_options":{"mode":1}}`:                  {Code: jsonscan.CodeWrongType, Field: "group_options.mode", Offset: 25},
		`{"group_options":[]}`:                          {Code: jsonscan.CodeWrongType, Field: "group_options", Offset: 17},
		`{"batch":2147483648}`:                          {Code: jsonscan.CodeOutOfRange, Field: "batch", Offset: 9},
		`{"a":{"b":1}}`:                                 {Code: jsonscan.CodeUnknownField, Field: "a", Offset: 5},
		`{"batch":1`:                                    {Code: jsonscan.CodeTruncated, Offset: 10},
	} {
		err := wire.Decoder{}.Decode([]byte(body), &queuev1.PopRequest{})
		got, ok := errors.AsType[*jsonscan.Error](err)
		require.True(t, ok, "%s: %v", body, err)
		got.Detail = ""
		require.Equal(t, want, *got, body)
	}
}

func FuzzDecodeAgreesWithProtojson(f *testing.F) {
	f.Add([]byte(`{"group":"g","batch":3,"wait":"1.5s","groupOptions":{"mode":"GROUP_MODE_SHARED"},"settle":{"ackRest":true,"settlements":[{"delay":"0s"}]}}`))
	f.Add([]byte(`{"lease":null,"batch":"7","max_bytes":1e3}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		got := &queuev1.PopRequest{}
		if len(body) == 0 || (wire.Decoder{}).Decode(body, got) != nil {
			return
		}
		want := &queuev1.PopRequest{}
		err := protojson.Unmarshal(body, want)
		if err == nil {
			require.True(t, proto.Equal(want, got), "%s\n%v\n%v", body, want, got)
		}
		require.True(t, json.Valid(body))
	})
}

func FuzzAppendStringIsJSON(f *testing.F) {
	f.Add("a\"\\\x00\u2028\xff")
	f.Fuzz(func(t *testing.T, s string) {
		var got string
		require.NoError(t, json.Unmarshal(wire.AppendString(nil, s), &got))
		want, err := json.Marshal(s)
		require.NoError(t, err)
		var back string
		require.NoError(t, json.Unmarshal(want, &back))
		require.Equal(t, back, got)
	})
}
