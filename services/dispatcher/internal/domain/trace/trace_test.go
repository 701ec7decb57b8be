package trace_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/trace"
)

func anyEvent() *rapid.Generator[trace.Event] {
	return rapid.Custom(func(t *rapid.T) trace.Event {
		e := trace.Event{Kind: trace.Kind(rapid.IntRange(2, 12).Draw(t, "kind")), Offset: message.Offset(rapid.IntRange(0, 1200).Draw(t, "offset"))}
		if e.Kind.OfAll() {
			e.Hash = rapid.Uint64().Draw(t, "hash")
			return e
		}
		e.Epoch = rapid.SampledFrom([]uint64{0, 65536, 1 << 60}).Draw(t, "epoch")
		e.Attempt = rapid.SampledFrom([]int{0, 1, 7, 1 << 20}).Draw(t, "attempt")
		e.After = rapid.SampledFrom([]time.Duration{0, time.Microsecond, 12 * time.Hour}).Draw(t, "after")
		e.Text = rapid.SampledFrom([]string{"", "boom", "worker@host"}).Draw(t, "text")
		return e
	})
}

func TestEventsComeBackByOffsetInTheirOrder(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		events := rapid.SliceOf(anyEvent()).Draw(t, "events")
		rows := trace.Rows(events)
		pages := map[int64][]byte{}
		for _, r := range rows {
			require.NotContains(t, pages, r.Page, "one row a page")
			pages[r.Page] = r.Bytes
		}

		for at := range message.Offset(1201) {
			var want, all []trace.Event
			for _, e := range events {
				switch {
				case e.Kind.OfAll():
					all = append(all, e)
				case e.Offset == at:
					want = append(want, e)
				}
			}
			got, err := trace.Of(pages[trace.Page(at)], at)
			require.NoError(t, err)
			require.Equal(t, want, got)
			got, err = trace.Of(pages[trace.WholeShard], at)
			require.NoError(t, err)
			require.Equal(t, all, got)
		}
	})
}

func TestALeaseOfAHundredMessagesIsOneHeadAndAByteForEach(t *testing.T) {
	t.Parallel()
	var events []trace.Event
	for at := range message.Offset(100) {
		events = append(events, trace.Event{Kind: trace.Acked, Offset: 512 + at, Epoch: 70_000})
	}
	rows := trace.Rows(events)
	require.Len(t, rows, 1)
	require.Less(t, len(rows[0].Bytes), 115)
}

func TestALongReasonIsCutBetweenCharacters(t *testing.T) {
	t.Parallel()
	rows := trace.Rows([]trace.Event{{Kind: trace.Nacked, Text: strings.Repeat("é", 4000)}})
	got, err := trace.Of(rows[0].Bytes, 0)
	require.NoError(t, err)
	require.Equal(t, strings.Repeat("é", trace.MaxText/2), got[0].Text)
}

func FuzzStoredEventsNeverPanic(f *testing.F) {
	f.Add(trace.Rows([]trace.Event{{Kind: trace.Nacked, Offset: 3, Text: "x"}, {Kind: trace.Acked, Offset: 3, Epoch: 9}})[0].Bytes)
	f.Add(trace.Rows([]trace.Event{{Kind: trace.Sought, Offset: 3}})[0].Bytes)
	f.Add([]byte{5, 0xff})
	f.Fuzz(func(t *testing.T, row []byte) {
		events, err := trace.Of(row, 3)
		if err == nil && len(events) > len(row) {
			t.Fatalf("%d events of %d bytes", len(events), len(row))
		}
	})
}
