package frame_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	meshv1 "postrider.dev/proto/gen/postrider/private/mesh/v1"
	"postrider.dev/services/meshhint/internal/mesh/frame"
)

func TestTheLengthCountsTheTagAndThePayload(t *testing.T) {
	t.Parallel()

	wire := frame.Frame{Tag: frame.RegistryChanged, Payload: []byte(`{"kind":"nodes"}`)}.Append(nil)

	require.Equal(t, append([]byte{0, 0, 0, 17, 12}, `{"kind":"nodes"}`...), wire)
}

func TestAnySequenceOfFramesComesBackAsItWasWritten(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		frames := rapid.SliceOf(rapid.Custom(func(t *rapid.T) frame.Frame {
			return frame.Frame{Tag: frame.Tag(rapid.Byte().Draw(t, "tag")), Payload: rapid.SliceOf(rapid.Byte()).Draw(t, "payload")}
		})).Draw(t, "frames")
		var wire []byte
		for _, f := range frames {
			wire = f.Append(wire)
		}

		in := bytes.NewReader(wire)
		for _, want := range frames {
			got, err := frame.Read(in, frame.MaxLength)
			if err != nil || got.Tag != want.Tag || !bytes.Equal(got.Payload, want.Payload) {
				t.Fatalf("%v: got %v, not %v", err, got, want)
			}
		}
		if _, err := frame.Read(in, frame.MaxLength); !errors.Is(err, io.EOF) {
			t.Fatalf("after the last frame: %v", err)
		}
	})
}

// counting knows what was asked for: all of it, and the most at once.
type counting struct {
	r          io.Reader
	asked, max int
}

func (c *counting) Read(b []byte) (int, error) {
	c.asked += len(b)
	c.max = max(c.max, len(b))
	return c.r.Read(b)
}

func TestALengthThatCannotBeIsRefusedBeforeItIsAllocated(t *testing.T) {
	t.Parallel()
	for length, want := range map[uint32]error{0: frame.ErrNoTag, frame.MaxLength + 1: frame.ErrTooLong, 1<<32 - 1: frame.ErrTooLong} {
		in := &counting{r: io.MultiReader(bytes.NewReader(binary.BigEndian.AppendUint32(nil, length)), strings.NewReader("rest"))}

		_, err := frame.Read(in, frame.MaxLength)

		require.ErrorIs(t, err, want, "%d", length)
		require.Equal(t, 4, in.asked, "more than the length was read")
	}
}

func TestWhatIsAllocatedGrowsWithWhatCameAndNotWithWhatWasAnnounced(t *testing.T) {
	t.Parallel()
	in := &counting{r: bytes.NewReader(append(binary.BigEndian.AppendUint32(nil, frame.MaxLength), make([]byte, 1000)...))}

	_, err := frame.Read(in, frame.MaxLength)

	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	require.LessOrEqual(t, in.max, 128<<10)
}

func TestACutOffFrameIsToldFromTheEnd(t *testing.T) {
	t.Parallel()
	wire := frame.Frame{Tag: 1, Payload: bytes.Repeat([]byte("x"), 100_000)}.Append(nil)
	for _, n := range []int{1, 4, 5, 70_000, len(wire) - 1} {
		_, err := frame.Read(bytes.NewReader(wire[:n]), frame.MaxLength)
		require.ErrorIs(t, err, io.ErrUnexpectedEOF, "%d bytes", n)
	}
	_, err := frame.Read(bytes.NewReader(nil), frame.MaxLength)
	require.Equal(t, io.EOF, err)
}

func wake(tenant *string, queue string, partitions ...string) *meshv1.Hint {
	return &meshv1.Hint{Kind: &meshv1.Hint_MessageAvailable{
		MessageAvailable: &meshv1.MessageAvailable{Tenant: tenant, Queue: queue, Partitions: partitions},
	}}
}

func changed(tenant *string, queue string, deleted bool) *meshv1.Hint {
	return &meshv1.Hint{Kind: &meshv1.Hint_QueueConfigChanged{
		QueueConfigChanged: &meshv1.QueueConfigChanged{Tenant: tenant, Queue: queue, Deleted: deleted},
	}}
}

func registry(kind, key string) *meshv1.Hint {
	return &meshv1.Hint{Kind: &meshv1.Hint_RegistryChanged{RegistryChanged: &meshv1.RegistryChanged{Registry: kind, Key: key}}}
}

func mode(name string) *meshv1.Hint {
	return &meshv1.Hint{Kind: &meshv1.Hint_ModesChanged{ModesChanged: &meshv1.ModesChanged{Mode: name}}}
}

func everything() *meshv1.Hint {
	return &meshv1.Hint{Kind: &meshv1.Hint_EverythingChanged{EverythingChanged: &meshv1.EverythingChanged{}}}
}

func TestEachHintHasItsFrame(t *testing.T) {
	t.Parallel()
	ten := new("acme")
	for name, c := range map[string]struct {
		hints []*meshv1.Hint
		want  []string
	}{
		"a wake":               {[]*meshv1.Hint{wake(ten, "q")}, []string{`1 {"queue":"q","tenant":"acme"}`}},
		"without a tenant":     {[]*meshv1.Hint{wake(nil, "q")}, []string{`1 {"queue":"q"}`}},
		"wakes":                {[]*meshv1.Hint{wake(ten, "q"), wake(ten, "r")}, []string{`2 {"messages":[{"queue":"q","tenant":"acme"},{"queue":"r","tenant":"acme"}]}`}},
		"said twice":           {[]*meshv1.Hint{wake(ten, "q"), wake(ten, "q")}, []string{`1 {"queue":"q","tenant":"acme"}`}},
		"marks":                {[]*meshv1.Hint{wake(ten, "q", "p", "", "p")}, []string{`5 {"partitions":[{"queue":"q","partition":"p","tenant":"acme"},{"queue":"q","partition":"","tenant":"acme"}]}`}},
		"configuration":        {[]*meshv1.Hint{changed(ten, "q", false)}, []string{`10 {"queue":"q","tenant":"acme"}`}},
		"deletion":             {[]*meshv1.Hint{changed(nil, "q", true)}, []string{`11 {"queue":"q"}`}},
		"registry":             {[]*meshv1.Hint{registry("api_keys", "k"), registry("nodes", "")}, []string{`12 {"kind":"api_keys","key":"k"}`, `12 {"kind":"nodes"}`}},
		"everything":           {[]*meshv1.Hint{everything()}, []string{`13 {}`}},
		"maintenance":          {[]*meshv1.Hint{mode("maintenance")}, []string{`40 {}`}},
		"pop maintenance":      {[]*meshv1.Hint{mode("pop_maintenance")}, []string{`41 {}`}},
		"any mode":             {[]*meshv1.Hint{mode("")}, []string{`40 {}`, `41 {}`}},
		"a hint of the future": {[]*meshv1.Hint{{}}, nil},
	} {
		var got []string
		for _, f := range frame.Encode(c.hints) {
			got = append(got, fmt.Sprintf("%d %s", f.Tag, f.Payload))
		}
		require.Equal(t, c.want, got, name)
	}
}

// facts are what hints say, whatever their order and however they are grouped.
func facts(hints []*meshv1.Hint) []string {
	var out []string
	for _, h := range hints {
		a := h.GetMessageAvailable()
		if a == nil || len(a.GetPartitions()) == 0 {
			out = append(out, fmt.Sprintf("%q", mustMarshal(h)))
			continue
		}
		for _, p := range a.GetPartitions() {
			out = append(out, fmt.Sprintf("%q", mustMarshal(wake(a.Tenant, a.GetQueue(), p))))
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func mustMarshal(m proto.Message) []byte {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		panic(err)
	}
	return b
}

func anyHint() *rapid.Generator[*meshv1.Hint] {
	names := []string{"q", "orders", "ä", "\x01\"{}", "\u2028<>&", strings.Repeat("n", 255)}
	name, text := rapid.SampledFrom(names), rapid.SampledFrom(append(names, ""))
	tenants := rapid.SampledFrom([]*string{nil, new("default"), new("acme")})
	return rapid.Custom(func(t *rapid.T) *meshv1.Hint {
		tenant := tenants.Draw(t, "tenant")
		switch rapid.IntRange(0, 4).Draw(t, "kind") {
		case 0:
			return wake(tenant, name.Draw(t, "queue"), rapid.SliceOfN(text, 0, 5).Draw(t, "partitions")...)
		case 1:
			return changed(tenant, name.Draw(t, "queue"), rapid.Bool().Draw(t, "deleted"))
		case 2:
			return registry(name.Draw(t, "kind"), text.Draw(t, "key"))
		case 3:
			return mode(rapid.SampledFrom([]string{"maintenance", "pop_maintenance"}).Draw(t, "mode"))
		}
		return everything()
	})
}

func TestHintsComeBackFromTheirFrames(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		hints := rapid.SliceOf(anyHint()).Draw(t, "hints")

		var back []*meshv1.Hint
		for _, f := range frame.Encode(hints) {
			got, ignored := frame.Decode(f)
			if len(ignored) > 0 {
				t.Fatalf("%s: ignored %v", f.Payload, ignored)
			}
			back = append(back, got...)
		}

		if want, got := facts(hints), facts(back); !slices.Equal(want, got) {
			t.Fatalf("got %v, not %v", got, want)
		}
	})
}

func TestAThousandPushesOfAPartitionAreOneMark(t *testing.T) {
	t.Parallel()
	var hints []*meshv1.Hint
	for range 1000 {
		hints = append(hints, wake(new("acme"), "q", "p"))
	}

	frames := frame.Encode(hints)

	require.Len(t, frames, 1)
	require.JSONEq(t, `{"partitions":[{"queue":"q","partition":"p","tenant":"acme"}]}`, string(frames[0].Payload))
}

func TestABatchOfAnyNamesStaysBelowTheBound(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("\x01", 250) // six bytes each in JSON
	var hints []*meshv1.Hint
	for i := range 2001 {
		hints = append(hints, wake(new(strings.Repeat("t", 63)), long, fmt.Sprintf("%s%05d", long, i)))
	}

	frames := frame.Encode(hints)

	items := 0
	for _, f := range frames {
		require.Less(t, len(f.Payload), frame.MaxLength)
		got, ignored := frame.Decode(f)
		require.Empty(t, ignored)
		items += len(got[0].GetMessageAvailable().GetPartitions())
	}
	require.Equal(t, 2001, items)
}

func TestWhatIsNotKnownIsIgnoredAndTold(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		tag     frame.Tag
		payload string
		hints   int
		ignored []frame.Ignored
	}{
		"a later tag":          {99, `{}`, 0, []frame.Ignored{frame.UnknownTag}},
		"replication":          {50, `{"x":1}`, 0, []frame.Ignored{frame.UnknownTag}},
		"a late hello":         {frame.Hello, `{}`, 0, []frame.Ignored{frame.UnknownTag}},
		"a later field":        {frame.MessageAvailable, `{"queue":"q","colour":"red"}`, 1, []frame.Ignored{frame.UnknownField}},
		"a field in an item":   {frame.MessageAvailableBatch, `{"messages":[{"queue":"q","colour":"red"}]}`, 1, []frame.Ignored{frame.UnknownField}},
		"a group":              {frame.HotlistDirtyBatch, `{"partitions":[{"queue":"q","partition":"p","group":"g"}]}`, 1, nil},
		"a heartbeat":          {frame.Heartbeat, `anything`, 0, nil},
		"no JSON":              {frame.MessageAvailable, `queue`, 0, []frame.Ignored{frame.BadPayload}},
		"nothing":              {frame.QueueConfigSet, ``, 0, []frame.Ignored{frame.BadPayload}},
		"an array":             {frame.RegistryChanged, `[]`, 0, []frame.Ignored{frame.BadPayload}},
		"messages of a number": {frame.MessageAvailableBatch, `{"messages":7}`, 0, []frame.Ignored{frame.BadPayload}},
		"too many":             {frame.MessageAvailableBatch, `{"messages":[` + strings.Repeat(`{"queue":"q"},`, 10_000) + `{"queue":"q"}]}`, 0, []frame.Ignored{frame.BadPayload}},
		"no queue":             {frame.MessageAvailable, `{}`, 0, []frame.Ignored{frame.BadName}},
		"an empty tenant":      {frame.QueueConfigSet, `{"queue":"q","tenant":""}`, 0, []frame.Ignored{frame.BadName}},
		"a long name":          {frame.QueueConfigDelete, `{"queue":"` + strings.Repeat("q", 256) + `"}`, 0, []frame.Ignored{frame.BadName}},
		"a NUL":                {frame.RegistryChanged, `{"kind":"k","key":"\u0000"}`, 0, []frame.Ignored{frame.BadName}},
		"one bad item of two":  {frame.MessageAvailableBatch, `{"messages":[{"queue":""},{"queue":"q"}]}`, 1, []frame.Ignored{frame.BadName}},
	} {
		hints, ignored := frame.Decode(frame.Frame{Tag: c.tag, Payload: []byte(c.payload)})
		require.Len(t, hints, c.hints, name)
		require.Equal(t, c.ignored, ignored, name)
	}
}

func TestAnAbsentTenantIsNotTheDefaultTenant(t *testing.T) {
	t.Parallel()

	absent, _ := frame.Decode(frame.Frame{Tag: frame.MessageAvailable, Payload: []byte(`{"queue":"q"}`)})
	given, _ := frame.Decode(frame.Frame{Tag: frame.MessageAvailable, Payload: []byte(`{"queue":"q","tenant":"default"}`)})

	require.Nil(t, absent[0].GetMessageAvailable().Tenant)
	require.Equal(t, "default", given[0].GetMessageAvailable().GetTenant())
}

func FuzzRead(f *testing.F) {
	f.Add(frame.Frame{Tag: frame.MessageAvailable, Payload: []byte(`{"queue":"q"}`)}.Append(nil))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 1})
	f.Add([]byte{0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, wire []byte) {
		in := bytes.NewReader(wire)
		for {
			got, err := frame.Read(in, frame.MaxLength)
			if err != nil {
				return
			}
			again, err := frame.Read(bytes.NewReader(got.Append(nil)), frame.MaxLength)
			if err != nil || again.Tag != got.Tag || !bytes.Equal(again.Payload, got.Payload) {
				t.Fatalf("%v does not come back: %v, %v", got, again, err)
			}
		}
	})
}

func FuzzDecode(f *testing.F) {
	f.Add(byte(1), []byte(`{"queue":"q","tenant":"t","partition":"p"}`))
	f.Add(byte(2), []byte(`{"messages":[{"queue":"q"}]}`))
	f.Add(byte(5), []byte(`{"partitions":[{"queue":"q","partition":"p","tenant":"t","group":"g"}]}`))
	f.Add(byte(10), []byte(`{"queue":"q"}`))
	f.Add(byte(12), []byte(`{"kind":"nodes","key":"k"}`))
	f.Add(byte(40), []byte(`{}`))
	f.Fuzz(func(t *testing.T, tag byte, payload []byte) {
		hints, _ := frame.Decode(frame.Frame{Tag: frame.Tag(tag), Payload: payload})
		var back []*meshv1.Hint
		for _, again := range frame.Encode(hints) {
			got, ignored := frame.Decode(again)
			if len(ignored) > 0 {
				t.Fatalf("%s: ignored %v", again.Payload, ignored)
			}
			back = append(back, got...)
		}
		if !slices.Equal(facts(hints), facts(back)) {
			t.Fatalf("%q says %v, and then %v", payload, facts(hints), facts(back))
		}
	})
}
