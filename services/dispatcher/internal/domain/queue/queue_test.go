package queue_test

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"postrider.dev/services/dispatcher/internal/domain/invalid"
	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/queue"
)

func TestDefaultsAreThoseOfTheDesign(t *testing.T) {
	t.Parallel()
	require.Equal(t, queue.Config{
		Lease: 30 * time.Second, MaxAttempts: 5, Backoff: queue.Backoff{Base: time.Second, Cap: 5 * time.Minute},
		MaxMessageBytes: 1 << 20, IdempotencyWindow: time.Hour, Shards: 1, Lanes: 1, MaxGroups: 100,
		Retention:   queue.Retention{ExpireAfter: 7 * 24 * time.Hour},
		Compression: queue.CompressionZstd,
	}, queue.Options{}.Resolve(queue.Defaults{}))
	require.NoError(t, queue.Options{}.Resolve(queue.Defaults{}).Validate())
}

func patch(t *testing.T, raw string) queue.Patch {
	t.Helper()
	p, err := queue.ParsePatch([]byte(raw))
	require.NoError(t, err)
	return p
}

func TestMergeChangesWhatIsNamedAndNullRestoresTheDefault(t *testing.T) {
	t.Parallel()
	first, err := queue.Create(patch(t, `{"lease":"1m","max_attempts":3,"shards":4,"idempotency_window":"0s"}`))
	require.NoError(t, err)
	second, err := first.Merge(patch(t, `{"lease":null,"backoff":"2s"}`))
	require.NoError(t, err)

	c := second.Resolve(queue.Defaults{})
	require.Equal(t, 30*time.Second, c.Lease)
	require.Equal(t, 3, c.MaxAttempts)
	require.Equal(t, 4, c.Shards)
	require.Equal(t, 2*time.Second, c.Backoff.Base)
	require.Zero(t, c.IdempotencyWindow)
	require.Equal(t, time.Minute, first.Resolve(queue.Defaults{}).Lease, "the options merged from are unchanged")
}

func TestOptionsAreStoredAsChosen(t *testing.T) {
	t.Parallel()
	o, err := queue.Create(patch(t, `{"lease":"90s","max_groups":7,"max_message_bytes":16777216,"backoff_max":"1h","max_attempts":1,"shards":64,"idempotency_window":"168h","backoff":"1ms"}`))
	require.NoError(t, err)

	raw, err := json.Marshal(o)
	require.NoError(t, err)
	var again queue.Options
	require.NoError(t, json.Unmarshal(raw, &again))

	require.Equal(t, o, again)
	empty, err := json.Marshal(queue.Options{})
	require.NoError(t, err)
	require.JSONEq(t, `{}`, string(empty))
}

func TestBadOptionsAreNamed(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]invalid.Error{
		`{"colour":"7d"}`:                       {Code: invalid.OptionUnknown, Field: "colour"},
		`{"leese":null}`:                        {Code: invalid.OptionUnknown, Field: "leese"},
		`{"Lease":"30s"}`:                       {Code: invalid.OptionUnknown, Field: "Lease"},
		`{"lease":30}`:                          {Code: invalid.OptionType, Field: "lease"},
		`{"lease":"soon"}`:                      {Code: invalid.OptionType, Field: "lease"},
		`{"lease":true}`:                        {Code: invalid.OptionType, Field: "lease"},
		`{"lease":"999ms"}`:                     {Code: invalid.OutOfRange, Field: "lease"},
		`{"lease":"12h0m1s"}`:                   {Code: invalid.OutOfRange, Field: "lease"},
		`{"lease":"-1s"}`:                       {Code: invalid.OutOfRange, Field: "lease"},
		`{"lease":"30s","lease":"40s"}`:         {Code: invalid.OptionType, Field: "lease"},
		`{"max_attempts":0}`:                    {Code: invalid.OutOfRange, Field: "max_attempts"},
		`{"max_attempts":1.5}`:                  {Code: invalid.OptionType, Field: "max_attempts"},
		`{"max_attempts":"5"}`:                  {Code: invalid.OptionType, Field: "max_attempts"},
		`{"max_attempts":99999999999999999999}`: {Code: invalid.OptionType, Field: "max_attempts"},
		`{"max_attempts":1001}`:                 {Code: invalid.OutOfRange, Field: "max_attempts"},
		`{"backoff":"-1s"}`:                     {Code: invalid.OutOfRange, Field: "backoff"},
		`{"backoff":"2h"}`:                      {Code: invalid.OutOfRange, Field: "backoff"},
		`{"backoff_max":"13h"}`:                 {Code: invalid.OutOfRange, Field: "backoff_max"},
		`{"backoff_max":"500ms"}`:               {Code: invalid.OutOfRange, Field: "backoff_max"},
		`{"backoff":"10m"}`:                     {Code: invalid.OutOfRange, Field: "backoff_max"},
		`{"max_message_bytes":16777217}`:        {Code: invalid.OutOfRange, Field: "max_message_bytes"},
		`{"max_message_bytes":0}`:               {Code: invalid.OutOfRange, Field: "max_message_bytes"},
		`{"idempotency_window":"168h1s"}`:       {Code: invalid.OutOfRange, Field: "idempotency_window"},
		`{"shards":0}`:                          {Code: invalid.OutOfRange, Field: "shards"},
		`{"shards":65}`:                         {Code: invalid.OutOfRange, Field: "shards"},
		`{"retention":"500ms"}`:                 {Code: invalid.OutOfRange, Field: "retention"},
		`{"retention":7}`:                       {Code: invalid.OptionType, Field: "retention"},
		`{"retention_bytes":-1}`:                {Code: invalid.OutOfRange, Field: "retention_bytes"},
		`{"retention_settled":1}`:               {Code: invalid.OptionType, Field: "retention_settled"},
		`{"expire_after":"0s"}`:                 {Code: invalid.OutOfRange, Field: "expire_after"},
		`{"max_queue_bytes":1125899906842625}`:  {Code: invalid.OutOfRange, Field: "max_queue_bytes"},
		`{"max_queue_messages":"5"}`:            {Code: invalid.OptionType, Field: "max_queue_messages"},
		`{"max_groups":0}`:                      {Code: invalid.OutOfRange, Field: "max_groups"},
		`[]`:                                    {Code: invalid.OptionType, Field: "options"},
		`null`:                                  {Code: invalid.OptionType, Field: "options"},
		``:                                      {Code: invalid.OptionType, Field: "options"},
		`{"lease":"30s"`:                        {Code: invalid.OptionType, Field: "options"},
		`{"compression":"gzip"}`:                {Code: invalid.EnumUnknown, Field: "compression"},
		`{"compression":3}`:                     {Code: invalid.OptionType, Field: "compression"},
		`{"delay":"-1ms"}`:                      {Code: invalid.OutOfRange, Field: "delay"},
		`{"delay":"15m0.001s"}`:                 {Code: invalid.OutOfRange, Field: "delay"},
		`{"delay":1}`:                           {Code: invalid.OptionType, Field: "delay"},
		`{"delay":"soon"}`:                      {Code: invalid.OptionType, Field: "delay"},
		`{"delay":true}`:                        {Code: invalid.OptionType, Field: "delay"},
		`{"delay":"1s","delay":"2s"}`:           {Code: invalid.OptionType, Field: "delay"},
		`{"encryption":"yes"}`:                  {Code: invalid.OptionType, Field: "encryption"},
		`{"trace":"yes"}`:                       {Code: invalid.OptionType, Field: "trace"},
		`{"trace":1}`:                           {Code: invalid.OptionType, Field: "trace"},
		`{"lease":"30s"} {}`:                    {Code: invalid.OptionType, Field: "options"},
	} {
		p, err := queue.ParsePatch([]byte(raw))
		if err == nil {
			_, err = queue.Create(p)
		}
		require.ErrorIs(t, err, &want, "%s", raw)
	}
}

func TestEncryptionIsFixedAtCreation(t *testing.T) {
	t.Parallel()
	o, err := queue.Create(patch(t, `{"encryption":true,"compression":"none"}`))
	require.NoError(t, err)
	stored, err := json.Marshal(o)
	require.NoError(t, err)
	require.JSONEq(t, `{"encryption":true,"compression":"none"}`, string(stored))

	next, same := o.Merge(patch(t, `{"encryption":true,"compression":null}`))
	_, off := o.Merge(patch(t, `{"encryption":false}`))
	_, reset := o.Merge(patch(t, `{"encryption":null}`))

	require.NoError(t, same)
	require.Equal(t, queue.CompressionZstd, next.Resolve(queue.Defaults{}).Compression)
	require.ErrorIs(t, off, &invalid.Error{Code: invalid.OptionFixed, Field: "encryption"})
	require.ErrorIs(t, reset, &invalid.Error{Code: invalid.OptionFixed, Field: "encryption"})
}

func TestShardsAreFixedAtCreation(t *testing.T) {
	t.Parallel()
	o, err := queue.Create(patch(t, `{"shards":4}`))
	require.NoError(t, err)

	_, same := o.Merge(patch(t, `{"shards":4,"lease":"10s"}`))
	_, other := o.Merge(patch(t, `{"shards":8}`))
	_, reset := o.Merge(patch(t, `{"shards":null}`))

	require.NoError(t, same)
	require.ErrorIs(t, other, &invalid.Error{Code: invalid.OptionFixed, Field: "shards"})
	require.ErrorIs(t, reset, &invalid.Error{Code: invalid.OptionFixed, Field: "shards"})
}

func TestBadNamesAreRefused(t *testing.T) {
	t.Parallel()
	for name, code := range map[string]invalid.Code{
		"": invalid.NameEmpty, strings.Repeat("x", 256): invalid.NameTooLong, strings.Repeat("é", 128): invalid.NameTooLong,
		"a\x00b": invalid.NameHasNUL, "\xff": invalid.NameNotUTF8, "a\xc3": invalid.NameNotUTF8, "\xed\xa0\x80": invalid.NameNotUTF8,
	} {
		require.ErrorIs(t, queue.CheckName("queue", name), &invalid.Error{Code: code, Field: "queue"}, "%q", name)
	}
	for _, name := range []string{"a", strings.Repeat("x", 255), "é/ü 日本", " ", "\u0001"} {
		require.NoError(t, queue.CheckName("queue", name))
	}
	require.NoError(t, queue.CheckOptionalName("client_id", ""))
}

func TestBadMessagesAreRefused(t *testing.T) {
	t.Parallel()
	c := queue.Options{}.Resolve(queue.Defaults{})
	c.MaxMessageBytes = 100
	many := make([]message.Header, 65)
	for i := range many {
		many[i] = message.Header{Name: strings.Repeat("h", i+1)}
	}
	for name, x := range map[string]struct {
		m    message.Message
		want invalid.Error
	}{
		"no partition":     {message.Message{}, invalid.Error{Code: invalid.NameEmpty, Field: "partition"}},
		"bad client id":    {message.Message{Partition: "p", ClientID: "\x00"}, invalid.Error{Code: invalid.NameHasNUL, Field: "client_id"}},
		"bad content type": {message.Message{Partition: "p", ContentType: "\xff"}, invalid.Error{Code: invalid.NameNotUTF8, Field: "content_type"}},
		"large payload":    {message.Message{Partition: "p", Payload: make([]byte, 101)}, invalid.Error{Code: invalid.MessageTooLarge, Field: "payload"}},
		"headers count": {
			message.Message{Partition: "p", Headers: []message.Header{{Name: "h", Value: "v"}}, Payload: make([]byte, 99)},
			invalid.Error{Code: invalid.MessageTooLarge, Field: "payload"},
		},
		"many headers": {message.Message{Partition: "p", Headers: many}, invalid.Error{Code: invalid.TooManyHeaders, Field: "headers"}},
		"large headers": {
			message.Message{Partition: "p", Headers: []message.Header{{Name: "h", Value: strings.Repeat("v", 8<<10)}}},
			invalid.Error{Code: invalid.HeadersTooLarge, Field: "headers"},
		},
		"empty header name": {message.Message{Partition: "p", Headers: []message.Header{{}}}, invalid.Error{Code: invalid.NameEmpty, Field: "headers.name"}},
		"repeated header":   {message.Message{Partition: "p", Headers: []message.Header{{Name: "a"}, {Name: "a"}}}, invalid.Error{Code: invalid.HeaderRepeated, Field: "headers.name"}},
		"bad header value":  {message.Message{Partition: "p", Headers: []message.Header{{Name: "a", Value: "\xff"}}}, invalid.Error{Code: invalid.TextInvalid, Field: "headers.value"}},
	} {
		require.ErrorIs(t, c.CheckMessage(&x.m), &x.want, name)
	}
	require.NoError(t, c.CheckMessage(&message.Message{Partition: "p", Headers: []message.Header{{Name: "h", Value: "v"}}, Payload: make([]byte, 98)}))
}

func TestReasonIsMadeStorable(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		raw := string(rapid.SliceOfN(rapid.Byte(), 0, 3000).Draw(t, "reason"))

		got := queue.CleanReason(raw)

		require.LessOrEqual(t, len(got), queue.MaxReasonBytes)
		require.NotContains(t, got, "\x00")
		require.Equal(t, got, strings.ToValidUTF8(got, "?"))
	})
	require.Equal(t, strings.Repeat("é", 512), queue.CleanReason(strings.Repeat("é", 600)))
	require.Equal(t, "fine", queue.CleanReason("fine"))
}

func TestGroupSettingsAreParsedStrictly(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]queue.Start{
		"": {Kind: queue.Earliest}, "earliest": {Kind: queue.Earliest}, "latest": {Kind: queue.Latest},
		"2026-01-02T03:04:05+01:00": {Kind: queue.AtTime, Time: time.Date(2026, 1, 2, 2, 4, 5, 0, time.UTC)},
	} {
		got, err := queue.ParseStart(text)
		require.NoError(t, err)
		require.Equal(t, want, got)
		again, err := queue.ParseStart(got.String())
		require.NoError(t, err)
		require.Equal(t, got, again)
	}
	for _, text := range []string{"Earliest", "beginning", "2026-01-02", "0", "now", "timestamp"} {
		_, err := queue.ParseStart(text)
		require.ErrorIs(t, err, &invalid.Error{Code: invalid.EnumUnknown, Field: "start"}, text)
	}
}

func TestExistingGroupIsNotUsedUnderOtherSettings(t *testing.T) {
	t.Parallel()
	g := queue.Group{Name: "g", Mode: queue.Ordered, OnFailure: queue.Block, Start: queue.Start{Kind: queue.Earliest}}

	require.NoError(t, g.CheckSame(queue.Group{}))
	require.NoError(t, g.CheckSame(g))
	for field, asked := range map[string]queue.Group{
		"mode": {Mode: queue.Shared}, "on_failure": {OnFailure: queue.Skip}, "start": {Start: queue.Start{Kind: queue.Latest}},
	} {
		require.ErrorIs(t, g.CheckSame(asked), &invalid.Error{Code: invalid.GroupMismatch, Field: field})
	}
}

func TestBackoffHasFullJitterBelowADoublingCeiling(t *testing.T) {
	t.Parallel()
	b := queue.Backoff{Base: time.Second, Cap: 5 * time.Minute}
	almost := math.Nextafter(1, 0)

	for failures, ceiling := range map[int]time.Duration{
		1: time.Second, 2: 2 * time.Second, 5: 16 * time.Second, 9: 256 * time.Second, 10: 5 * time.Minute, 1000: 5 * time.Minute, 0: time.Second,
	} {
		require.Zero(t, b.Next(failures, 0))
		require.Equal(t, ceiling/2, b.Next(failures, 0.5))
		require.Less(t, b.Next(failures, almost), ceiling+time.Microsecond)
	}
	require.Zero(t, queue.Backoff{Cap: time.Hour}.Next(3, almost), "no base is no wait")
	require.Equal(t, time.Second, queue.Backoff{Base: 2 * time.Second, Cap: 2 * time.Second}.Next(50, 0.5))
}

func FuzzParsePatch(f *testing.F) {
	f.Add([]byte(`{"lease":"30s","max_attempts":null}`))
	f.Add([]byte(`{"a":{"b":[1,2,{"c":null}]}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		p, err := queue.ParsePatch(raw)
		if err != nil {
			return
		}
		o, err := queue.Create(p)
		if err != nil {
			return
		}
		require.NoError(t, o.Resolve(queue.Defaults{}).Validate())
		text, err := json.Marshal(o)
		require.NoError(t, err)
		var again queue.Options
		require.NoError(t, json.Unmarshal(text, &again))
		require.Equal(t, o, again)
	})
}
