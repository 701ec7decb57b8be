package cli

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jedib0t/go-pretty/v6/table"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// printJSON prints v on one line.
func (g *globals) printJSON(v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode: %w", err)
	}
	_, err = fmt.Fprintln(g.Out, string(text))
	return err
}

// rawProto makes a message part of a JSON document, with the names of the REST surface.
func rawProto(m proto.Message) json.RawMessage {
	text, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
	if err != nil {
		return json.RawMessage(`null`) // cannot happen: what came over the wire is valid
	}
	return text
}

// printTable prints rows under a header, and says so when there are none.
func (g *globals) printTable(none string, header []string, rows [][]any) error {
	if len(rows) == 0 {
		_, err := fmt.Fprintln(g.Out, none)
		return err
	}
	t := table.NewWriter()
	t.SetStyle(table.StyleLight)
	t.Style().Options.DrawBorder = false
	t.Style().Options.SeparateColumns = false
	head := table.Row{}
	for _, h := range header {
		head = append(head, h)
	}
	t.AppendHeader(head)
	for _, r := range rows {
		t.AppendRow(table.Row(r))
	}
	_, err := fmt.Fprintln(g.Out, t.Render())
	return err
}

// payloadJSON shows a payload inside JSON: as it is when it is JSON, else as text, else as base64.
func payloadJSON(payload []byte) any {
	switch {
	case json.Valid(payload):
		return json.RawMessage(payload)
	case utf8.Valid(payload):
		return string(payload)
	default:
		return payload
	}
}

// brief shows the beginning of a payload on one line.
func brief(payload []byte, most int) string {
	s := strings.Join(strings.Fields(strings.ToValidUTF8(string(payload), "?")), " ")
	if r := []rune(s); len(r) > most {
		return string(r[:most-1]) + "…"
	}
	return s
}

func when(t time.Time) string {
	if t.IsZero() || t.Unix() == 0 {
		return "-"
	}
	return t.Local().Format("2006-01-02 15:04:05")
}

func bytesText(n int64) string {
	const unit = 1024
	switch {
	case n < unit:
		return fmt.Sprintf("%d B", n)
	case n < unit*unit:
		return fmt.Sprintf("%.1f KiB", float64(n)/unit)
	case n < unit*unit*unit:
		return fmt.Sprintf("%.1f MiB", float64(n)/unit/unit)
	default:
		return fmt.Sprintf("%.1f GiB", float64(n)/unit/unit/unit)
	}
}
