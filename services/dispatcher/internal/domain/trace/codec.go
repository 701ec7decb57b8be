package trace

import (
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"postrider.dev/services/dispatcher/internal/domain/message"
)

// ErrCorrupt says that stored events are not what Pages wrote.
var ErrCorrupt = errors.New("corrupt trace events")

// Row is the events of one change on one page, in their order.
type Row struct {
	Page  int64 // WholeShard for events that are about more than a page
	Bytes []byte
}

// WholeShard is the page of events that are about more than a page.
const WholeShard int64 = -1

// Rows makes the rows of a change's events. Neighbours that differ in nothing but the offset share one head.
func Rows(events []Event) []Row {
	var rows []Row
	heads := map[int64]*open{}
	for i := range events {
		e := &events[i]
		page := Page(e.Offset)
		if e.Kind.OfAll() {
			page = WholeShard
		}
		o := heads[page]
		if o == nil {
			o = &open{row: len(rows)}
			heads[page] = o
			rows = append(rows, Row{Page: page})
		}
		rows[o.row].Bytes = o.append(rows[o.row].Bytes, e)
	}
	for _, o := range heads {
		rows[o.row].Bytes = o.close(rows[o.row].Bytes)
	}
	return rows
}

// open is a row in the making: the head that is shared by the offsets gathered.
type open struct {
	row     int
	head    Event
	offsets []byte
}

func (o *open) append(dst []byte, e *Event) []byte {
	if e.Kind.OfAll() {
		return appendHead(dst, e)
	}
	head := *e
	head.Offset = 0
	if len(o.offsets) > 0 && head != o.head {
		dst = o.close(dst)
	}
	o.head = head
	o.offsets = append(o.offsets, byte(e.Offset%PageLen))
	return dst
}

func (o *open) close(dst []byte) []byte {
	if len(o.offsets) == 0 {
		return dst
	}
	dst = appendHead(dst, &o.head)
	dst = binary.AppendUvarint(dst, uint64(len(o.offsets)))
	dst = append(dst, o.offsets...)
	o.offsets = o.offsets[:0]
	return dst
}

func appendHead(dst []byte, e *Event) []byte {
	dst = append(dst, byte(e.Kind))
	if e.Kind.OfAll() {
		dst = binary.AppendUvarint(dst, uint64(e.Offset))
		return binary.BigEndian.AppendUint64(dst, e.Hash)
	}
	dst = binary.AppendUvarint(dst, e.Epoch)
	dst = binary.AppendUvarint(dst, uint64(e.Attempt))
	dst = binary.AppendUvarint(dst, uint64(e.After/time.Microsecond))
	text := cut(e.Text)
	dst = binary.AppendUvarint(dst, uint64(len(text)))
	return append(dst, text...)
}

// cut keeps the beginning of a long text, whole characters of it.
func cut(text string) string {
	if len(text) <= MaxText {
		return text
	}
	n := MaxText
	for n > 0 && !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n]
}

// Of returns the events of a row that are about the message at an offset of the row's page, or about all messages.
func Of(row []byte, at message.Offset) ([]Event, error) {
	r := reader{b: row}
	var found []Event
	for len(r.b) > 0 {
		e := r.head()
		if e.Kind.OfAll() {
			found = append(found, e)
			continue
		}
		n := int(min(r.uvarint(), PageLen*1024))
		if offsets := r.take(n); slices.Contains(offsets, byte(at%PageLen)) {
			e.Offset = at
			found = append(found, e)
		}
		if r.bad {
			break
		}
	}
	if r.bad {
		return nil, ErrCorrupt
	}
	return found, nil
}

// reader takes a row apart; bad says that it is not one.
type reader struct {
	b   []byte
	bad bool
}

func (r *reader) head() Event {
	var e Event
	if kind := r.take(1); len(kind) == 1 {
		e.Kind = Kind(kind[0])
	}
	if e.Kind == 0 || e.Kind > lastKind {
		r.fail()
		return e
	}
	if e.Kind.OfAll() {
		e.Offset = message.Offset(r.uvarint())
		if hash := r.take(8); len(hash) == 8 {
			e.Hash = binary.BigEndian.Uint64(hash)
		}
		return e
	}
	e.Epoch = r.uvarint()
	e.Attempt = int(r.uvarint())
	e.After = time.Duration(r.uvarint()) * time.Microsecond
	e.Text = strings.ToValidUTF8(string(r.take(int(min(r.uvarint(), MaxText+1)))), "")
	return e
}

func (r *reader) uvarint() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.fail()
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *reader) take(n int) []byte {
	if n > len(r.b) {
		r.fail()
		return nil
	}
	taken := r.b[:n]
	r.b = r.b[n:]
	return taken
}

func (r *reader) fail() { r.b, r.bad = nil, true }
