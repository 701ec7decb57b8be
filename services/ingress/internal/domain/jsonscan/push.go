package jsonscan

import (
	"encoding/base64"
	"fmt"
	"strconv"
	"time"
)

// Item is one message of a push body.
type Item struct {
	Partition      string
	ContentType    string
	ClientID       string
	IdempotencyKey string
	Headers        map[string]string
	// Payload points into the body when JSON is set, and is the decoded payload_base64 otherwise.
	Payload []byte
	// DeliverAt and Delay are nil where the item does not say.
	DeliverAt *time.Time
	Delay     *time.Duration
	Priority  int32
	// JSON tells that the payload was given as `payload`.
	JSON bool
	// Err is set when the item alone is at fault: the others are good. It is nil for a structural fault, which fails the whole body.
	Err *Error
}

// Push is the body of a push request.
type Push struct {
	Items          []Item
	IdempotencyKey string
	Origin         string
	Resent         bool
	Require        string // as it was written; empty: nothing
}

// ParsePush reads a push body: {"items":[...]}, or the fields of one item directly. More than maxItems items end the scan at once, so that a body
// cannot make more objects than a request may hold.
func ParsePush(body []byte, maxItems int) (*Push, error) {
	s, err := New(body)
	if err != nil {
		return nil, err
	}
	p := &pushParser{scan: s, max: maxItems, it: itemParser{scan: s}, lone: itemParser{scan: s}}
	p.readItem = p.it.field
	if err := s.Fields(p.field); err != nil {
		return nil, err
	}
	if err := s.End(); err != nil {
		return nil, err
	}
	return p.result(len(body))
}

type pushParser struct {
	scan     *Scanner
	max      int
	out      Push
	it       itemParser // the item being read
	readItem func(string) error
	lone     itemParser // the short form: fields of the only item beside no items
	short    string     // a field of the short form that was seen
	items    bool
}

func (p *pushParser) field(name string) error {
	switch name {
	case "items":
		p.items = true
		return p.scan.Elements("items", p.item)
	case "idempotency_key":
		text, err := p.scan.Text(name)
		p.out.IdempotencyKey = text
		return err
	case "origin":
		text, err := p.scan.Text(name)
		p.out.Origin = text
		return err
	case "resent":
		again, err := p.scan.Bool(name)
		p.out.Resent = again
		return err
	}
	if name == "require" {
		text, err := p.scan.Text(name)
		p.out.Require = text
		return err
	}
	p.short = name
	return p.lone.field(name)
}

func (p *pushParser) item(i int) error {
	if i == p.max {
		return Fail(CodeTooMany, p.scan.pos, "items", fmt.Sprintf("more than %d items in one request", p.max))
	}
	p.it.reset()
	start := p.scan.pos
	if err := p.scan.Fields(p.readItem); err != nil {
		return Under(itemPath(i), err)
	}
	p.it.finish(start)
	if p.it.Err != nil {
		p.it.Err.Field = itemPath(i) + "." + p.it.Err.Field
	}
	p.out.Items = append(p.out.Items, p.it.Item)
	return nil
}

func itemPath(i int) string { return "items[" + strconv.Itoa(i) + "]" }

func (p *pushParser) result(end int) (*Push, error) {
	switch {
	case p.items && p.short != "":
		return nil, Fail(CodeConflict, end, p.short, "fields of a single item cannot stand beside items")
	case !p.items && p.short == "":
		return nil, Fail(CodeMissing, end, "items", "items, or payload for a single message, is needed")
	case !p.items:
		p.lone.IdempotencyKey, p.out.IdempotencyKey = p.out.IdempotencyKey, ""
		p.lone.finish(0)
		p.out.Items = append(p.out.Items, p.lone.Item)
	}
	return &p.out, nil
}

type itemParser struct {
	Item
	scan      *Scanner
	base64    bool
	base64Err bool
	timeErr   bool
	spanErr   bool
	depth     int
}

func (it *itemParser) reset() { *it = itemParser{scan: it.scan} }

func (it *itemParser) field(name string) (err error) {
	s := it.scan
	switch name {
	case "payload":
		it.JSON = true
		it.Payload, it.depth, err = s.Raw()
	case "payload_base64":
		it.base64 = true
		err = it.decode(name)
	case "partition":
		it.Partition, err = s.Text(name)
	case "content_type":
		it.ContentType, err = s.Text(name)
	case "client_id":
		it.ClientID, err = s.Text(name)
	case "idempotency_key":
		it.IdempotencyKey, err = s.Text(name)
	case "deliver_at":
		err = it.time(name)
	case "delay":
		err = it.span(name)
	case "priority":
		var n int64
		n, err = s.Int(name, 32)
		it.Priority = int32(n)
	case "headers":
		err = Under(name, it.headers())
	default:
		return Fail(CodeUnknownField, s.pos, name, "no such field")
	}
	return err
}

func (it *itemParser) decode(field string) error {
	text, err := it.scan.Text(field)
	if err != nil {
		return err
	}
	decoded, wrong := base64.StdEncoding.Strict().DecodeString(text)
	it.base64Err = wrong != nil // the item's fault alone; see finish
	if !it.JSON {
		it.Payload = decoded
	}
	return nil
}

// time reads an instant; one that is none is the item's fault alone.
func (it *itemParser) time(field string) error {
	text, err := it.scan.Text(field)
	if err != nil {
		return err
	}
	at, wrong := time.Parse(time.RFC3339Nano, text)
	it.DeliverAt, it.timeErr = &at, wrong != nil
	return nil
}

// span is time for a duration.
func (it *itemParser) span(field string) error {
	text, err := it.scan.Text(field)
	if err != nil {
		return err
	}
	d, wrong := time.ParseDuration(text)
	it.Delay, it.spanErr = &d, wrong != nil
	return nil
}

func (it *itemParser) headers() error {
	it.Headers = make(map[string]string, 4)
	return it.scan.Fields(func(name string) (err error) {
		it.Headers[name], err = it.scan.Text(name)
		return err
	})
}

// finish finds what is wrong with the item as a whole.
func (it *itemParser) finish(at int) {
	fault := func(code, field, detail string) {
		it.Err = &Error{Code: code, Offset: at, Field: field, Detail: detail}
	}
	switch {
	case it.JSON && it.base64:
		fault(CodeConflict, "payload_base64", "payload and payload_base64 exclude each other")
	case !it.JSON && !it.base64:
		fault(CodeMissing, "payload", "payload or payload_base64 is needed")
	case it.base64Err:
		fault(CodeInvalidBase64, "payload_base64", "not base64 in the standard alphabet with padding")
	case it.timeErr:
		fault(CodeTime, "deliver_at", `not an RFC 3339 time such as "2030-01-02T15:04:05Z"`)
	case it.spanErr:
		fault(CodeDuration, "delay", `not a duration such as "30s" or "1.5s"`)
	case it.depth > MaxDepth:
		fault(CodeTooDeep, "payload", fmt.Sprintf("nested deeper than %d levels", MaxDepth))
	}
}

// ReadItem reads one message where it stands in another body.
func ReadItem(s *Scanner) (Item, error) {
	it := itemParser{scan: s}
	start := s.pos
	if err := s.Fields(it.field); err != nil {
		return Item{}, err
	}
	it.finish(start)
	return it.Item, nil
}
