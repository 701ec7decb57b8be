package jsonscan_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"postrider.dev/services/ingress/internal/domain/jsonscan"
)

func TestPayloadBytesAreKeptExactly(t *testing.T) {
	t.Parallel()
	for _, payload := range []string{
		`9007199254740993`, `-0`, `1e400`, `"\u0000"`, `"\ud800"`, `{"a":1,"a":2}`, `{ "a" :	[ 1 , 2 ] }`, "[\r\n1]", `"é😀"`, `null`, `""`,
		`"` + strings.Repeat("x", 1<<20) + `"`, strings.Repeat("[", 128) + strings.Repeat("]", 128),
	} {
		body := `{"items":[{"partition":"p","payload":` + payload + ` , "client_id":"c"}]}`

		push, err := jsonscan.ParsePush([]byte(body), 10)

		require.NoError(t, err)
		require.Len(t, push.Items, 1)
		require.Nil(t, push.Items[0].Err)
		require.Equal(t, payload, string(push.Items[0].Payload))
	}
}

func TestEnvelopeFaultsAreNamed(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]jsonscan.Error{
		`{"items":[{"payload":1,"prio":2}]}`:         {Code: jsonscan.CodeUnknownField, Field: "items[0].prio"},
		`{"items":[{"payload":1,"payload":2}]}`:      {Code: jsonscan.CodeDuplicate, Field: "items[0].payload"},
		`{"items":[{"payload":1,"\u0070ayload":2}]}`: {Code: jsonscan.CodeDuplicate, Field: "items[0].payload"},
		`{"items":{}}`:  {Code: jsonscan.CodeWrongType, Field: "items"},
		`{"items":[1]}`: {Code: jsonscan.CodeWrongType, Field: "items[0]"},
		`{"items":[{"payload":1,"partition":7}]}`:        {Code: jsonscan.CodeWrongType, Field: "items[0].partition"},
		`{"items":[{"payload":1,"headers":{"a":1}}]}`:    {Code: jsonscan.CodeWrongType, Field: "items[0].headers.a"},
		`{"items":[{"payload":1,"partition":"\ud800"}]}`: {Code: jsonscan.CodeInvalidUTF8, Field: "items[0].partition"},
		`{"items":[],"payload":1}`:                       {Code: jsonscan.CodeConflict, Field: "payload"},
		`{}`:                                             {Code: jsonscan.CodeMissing, Field: "items"},
		`[]`:                                             {Code: jsonscan.CodeWrongType},
		`{"items":[{"payload":{"a":1]}]}`:                {Code: jsonscan.CodeInvalidJSON},
		"\ufeff{}":                                       {Code: jsonscan.CodeInvalidJSON},
		"{\"payload\":\"a\x01\"}":                        {Code: jsonscan.CodeInvalidJSON},
		"{\"payload\":\"\xff\"}":                         {Code: jsonscan.CodeInvalidUTF8},
		`{"payload":1} x`:                                {Code: jsonscan.CodeInvalidJSON},
		`{"payload":01}`:                                 {Code: jsonscan.CodeInvalidJSON},
		`{"payload":"`:                                   {Code: jsonscan.CodeTruncated},
		``:                                               {Code: jsonscan.CodeTruncated},
		`{"items":[{"payload":1},{"payload":1},{"payload":1}]}`: {Code: jsonscan.CodeTooMany, Field: "items"},
	} {
		_, err := jsonscan.ParsePush([]byte(body), 2)

		got, ok := errors.AsType[*jsonscan.Error](err)
		require.True(t, ok, "%q: %v", body, err)
		require.Equal(t, want.Code, got.Code, "%q", body)
		require.Equal(t, want.Field, got.Field, "%q", body)
	}
}

func TestOneBadItemLeavesTheOthersGood(t *testing.T) {
	t.Parallel()
	deep := strings.Repeat("[", 129) + strings.Repeat("]", 129)
	body := `{"items":[{"payload":1},{"payload":` + deep + `},{"payload_base64":"!"},{"partition":"p"},{"payload":1,"payload_base64":""},{"payload":1,"deliver_at":"soon"},{"payload":1,"delay":"1"},{"payload_base64":"aGk="}]}`

	push, err := jsonscan.ParsePush([]byte(body), 10)

	require.NoError(t, err)
	codes := make([]string, 0, len(push.Items))
	for _, it := range push.Items {
		if it.Err == nil {
			codes = append(codes, "")
			continue
		}
		codes = append(codes, it.Err.Code)
	}
	require.Equal(t, []string{"", jsonscan.CodeTooDeep, jsonscan.CodeInvalidBase64, jsonscan.CodeMissing, jsonscan.CodeConflict, jsonscan.CodeTime, jsonscan.CodeDuration, ""}, codes)
	require.Equal(t, "hi", string(push.Items[7].Payload))
}

func TestTheShortFormIsOneItem(t *testing.T) {
	t.Parallel()
	push, err := jsonscan.ParsePush([]byte(`{"payload":{"a":1},"partition":"p","headers":{"h":"v"},"idempotency_key":"k","resent":true,"priority":9}`), 10)
	require.NoError(t, err)
	require.True(t, push.Resent)
	require.Empty(t, push.IdempotencyKey)
	require.Equal(t, []jsonscan.Item{{Partition: "p", IdempotencyKey: "k", Headers: map[string]string{"h": "v"}, Payload: []byte(`{"a":1}`), JSON: true, Priority: 9}}, push.Items)
}

func FuzzValidAgreesWithEncodingJSON(f *testing.F) {
	for _, seed := range []string{`{"a":[1,-0,1e5,"x\u00e9\n",true,false,null]}`, `[1,]`, `{"a"}`, `"\ud83d\ude00"`, `01`, `1.`, `-`, `[[[`, "\"\x7f\"", ` {} `, "\"12345678\x1f\"", `"1234567\"x"`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		err := jsonscan.Valid(body)
		if e, ok := errors.AsType[*jsonscan.Error](err); ok {
			require.LessOrEqual(t, e.Offset, len(body))
			if e.Code == jsonscan.CodeInvalidUTF8 || e.Code == jsonscan.CodeTooDeep {
				return // stricter than encoding/json, on purpose
			}
		}
		require.Equal(t, json.Valid(body), err == nil, "%q: %v", body, err)
	})
}

func FuzzTextAgreesWithEncodingJSON(f *testing.F) {
	for _, seed := range []string{`"abc"`, `"\ud83d\ude00"`, `"\ud83d"`, `"\ud83dx"`, `"\ud83d\u0041"`, `"\\\/\b\f\n\r\t\""`, `"\u0000"`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		s, err := jsonscan.New(body)
		if err != nil {
			return
		}
		text, err := s.Text("f")
		if err != nil || s.End() != nil {
			return
		}
		var want string
		require.NoError(t, json.Unmarshal(body, &want))
		require.Equal(t, want, text)
	})
}

func FuzzParsePush(f *testing.F) {
	f.Add([]byte(`{"items":[{"partition":"p","payload":{"a":1},"headers":{"h":"v"},"client_id":"c","idempotency_key":"k","content_type":"application/json"}]}`))
	f.Add([]byte(`{"payload_base64":"aGk="}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		push, err := jsonscan.ParsePush(body, 4)
		if err != nil {
			return
		}
		require.True(t, json.Valid(body))
		require.LessOrEqual(t, len(push.Items), 4)
		for _, it := range push.Items {
			if it.JSON {
				require.True(t, json.Valid(it.Payload))
				require.True(t, bytes.Contains(body, it.Payload))
			}
		}
	})
}

func BenchmarkParsePush(b *testing.B) {
	item := `{"partition":"p-17","payload":{"event":"push","repository":{"id":186853002,"node_id":"MDEwOlJlcG9zaXRvcnkxODY4NTMwMDI=","name":"Hello-World","private":false},"commits":[],"forced":true,"note":"caf\u00e9 and more text that goes on for a while to look like text"},"headers":{"event":"push"}}`
	body := []byte(`{"items":[` + strings.Repeat(item+",", 99) + item + `]}`)
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := jsonscan.ParsePush(body, 1000); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkValid(b *testing.B) {
	body := []byte(`[` + strings.Repeat(`{"event":"push","repository":{"id":186853002,"node_id":"MDEwOlJlcG9zaXRvcnkxODY4NTMwMDI=","name":"Hello-World","private":false},"commits":[],"forced":true},`, 99) + `1]`)
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		if err := jsonscan.Valid(body); err != nil {
			b.Fatal(err)
		}
	}
}
