package frame

import (
	"fmt"
	"strings"

	meshv1 "postrider.dev/proto/gen/postrider/private/mesh/v1"
)

// batch is how many items one frame of a batch has; with names of any length it stays below MaxLength.
const batch = 2000

// Modes as the fleet names them.
const (
	maintenance    = "maintenance"
	popMaintenance = "pop_maintenance"
)

// Encode turns hints into frames. What several hints say alike is said once.
//
// Hints that name a queue become wakes (MESSAGE_AVAILABLE, alone or in a batch), those that name partitions become marks (HOTLIST_DIRTY_BATCH).
func Encode(hints []*meshv1.Hint) []Frame {
	e := &encoder{seen: make(map[string]struct{}, len(hints))}
	for _, h := range hints {
		e.add(h)
	}
	return e.frames()
}

type encoder struct {
	seen   map[string]struct{}
	wakes  []message
	marks  []message
	others []Frame
}

func (e *encoder) add(h *meshv1.Hint) {
	switch k := h.GetKind().(type) {
	case *meshv1.Hint_MessageAvailable:
		e.messages(k.MessageAvailable)
	case *meshv1.Hint_QueueConfigChanged:
		tag := QueueConfigSet
		if k.QueueConfigChanged.GetDeleted() {
			tag = QueueConfigDelete
		}
		e.other(tag, queue{Queue: k.QueueConfigChanged.GetQueue(), Tenant: k.QueueConfigChanged.Tenant})
	case *meshv1.Hint_RegistryChanged:
		e.other(RegistryChanged, registry{Kind: k.RegistryChanged.GetRegistry(), Key: k.RegistryChanged.GetKey()})
	case *meshv1.Hint_ModesChanged:
		if k.ModesChanged.GetMode() != popMaintenance {
			e.other(MaintenanceChanged, struct{}{})
		}
		if k.ModesChanged.GetMode() != maintenance {
			e.other(PopMaintenanceChanged, struct{}{})
		}
	case *meshv1.Hint_EverythingChanged:
		e.other(EverythingChanged, struct{}{})
	}
}

func (e *encoder) messages(a *meshv1.MessageAvailable) {
	if len(a.GetPartitions()) == 0 {
		if e.first("w", a.Tenant, a.GetQueue()) {
			e.wakes = append(e.wakes, message{Queue: a.GetQueue(), Tenant: a.Tenant})
		}
		return
	}
	for _, p := range a.GetPartitions() {
		if e.first("m", a.Tenant, a.GetQueue(), p) {
			e.marks = append(e.marks, message{Queue: a.GetQueue(), Partition: &p, Tenant: a.Tenant})
		}
	}
}

// first reports whether this was not said before. Names have no NUL; no tenant has a name that begins with one.
func (e *encoder) first(kind string, tenant *string, names ...string) bool {
	t := "\x00"
	if tenant != nil {
		t = *tenant
	}
	key := kind + "\x00" + t + "\x00" + strings.Join(names, "\x00")
	if _, ok := e.seen[key]; ok {
		return false
	}
	e.seen[key] = struct{}{}
	return true
}

func (e *encoder) other(tag Tag, payload any) {
	f := Frame{Tag: tag, Payload: marshal(payload)}
	if e.first(string([]byte{'o', byte(tag)}), nil, string(f.Payload)) {
		e.others = append(e.others, f)
	}
}

func (e *encoder) frames() []Frame {
	frames := e.others
	if len(e.wakes) == 1 {
		frames = append(frames, Frame{Tag: MessageAvailable, Payload: marshal(e.wakes[0])})
	} else {
		for part := range chunks(e.wakes) {
			frames = append(frames, Frame{Tag: MessageAvailableBatch, Payload: marshal(messages{list{items: part}})})
		}
	}
	for part := range chunks(e.marks) {
		frames = append(frames, Frame{Tag: HotlistDirtyBatch, Payload: marshal(partitions{list{items: part}})})
	}
	return frames
}

func chunks(l []message) func(yield func([]message) bool) {
	return func(yield func([]message) bool) {
		for len(l) > 0 {
			n := min(batch, len(l))
			if !yield(l[:n]) {
				return
			}
			l = l[n:]
		}
	}
}

// Ignored says why something in a frame was not taken.
type Ignored string

// The reasons.
const (
	UnknownTag   Ignored = "tag"     // a newer sidecar's frame
	UnknownField Ignored = "field"   // a newer sidecar's field; the rest of the frame was taken
	BadPayload   Ignored = "payload" // no JSON object, or too many items
	BadName      Ignored = "name"    // an item that names what cannot be
)

// Decode turns a frame into hints. It never fails: what cannot be taken is ignored and told, as often as it occurs.
func Decode(f Frame) (hints []*meshv1.Hint, ignored []Ignored) {
	d := &decoder{}
	d.decode(f)
	return d.hints, d.ignored
}

type decoder struct {
	hints   []*meshv1.Hint
	ignored []Ignored
}

func (d *decoder) decode(f Frame) {
	switch f.Tag {
	case Heartbeat:
	case MessageAvailable:
		var m message
		if d.payload(f, &m) {
			d.messages([]message{m})
		}
	case MessageAvailableBatch:
		var m messages
		if d.payload(f, &m) {
			d.list(m.Messages)
		}
	case HotlistDirtyBatch:
		var p partitions
		if d.payload(f, &p) {
			d.list(p.Partitions)
		}
	case QueueConfigSet, QueueConfigDelete:
		var q queue
		if d.payload(f, &q) && d.good(q.check()) {
			d.add(&meshv1.Hint{Kind: &meshv1.Hint_QueueConfigChanged{QueueConfigChanged: &meshv1.QueueConfigChanged{
				Tenant: q.Tenant, Queue: q.Queue, Deleted: f.Tag == QueueConfigDelete,
			}}})
		}
	case RegistryChanged:
		var r registry
		if d.payload(f, &r) && d.good(r.check()) {
			d.add(&meshv1.Hint{Kind: &meshv1.Hint_RegistryChanged{RegistryChanged: &meshv1.RegistryChanged{Registry: r.Kind, Key: r.Key}}})
		}
	case EverythingChanged:
		d.add(&meshv1.Hint{Kind: &meshv1.Hint_EverythingChanged{EverythingChanged: &meshv1.EverythingChanged{}}})
	case MaintenanceChanged:
		d.mode(maintenance)
	case PopMaintenanceChanged:
		d.mode(popMaintenance)
	default: // Hello and Challenge too: their place is before all others
		d.ignored = append(d.ignored, UnknownTag)
	}
}

func (d *decoder) add(h *meshv1.Hint) { d.hints = append(d.hints, h) }

func (d *decoder) mode(name string) {
	d.add(&meshv1.Hint{Kind: &meshv1.Hint_ModesChanged{ModesChanged: &meshv1.ModesChanged{Mode: name}}})
}

func (d *decoder) payload(f Frame, into any) bool {
	unknown, err := unmarshal(f.Payload, into)
	if unknown {
		d.ignored = append(d.ignored, UnknownField)
	}
	if err != nil {
		d.ignored = append(d.ignored, BadPayload)
	}
	return err == nil
}

func (d *decoder) good(err error) bool {
	if err != nil {
		d.ignored = append(d.ignored, BadName)
	}
	return err == nil
}

func (d *decoder) list(l list) {
	if l.unknown {
		d.ignored = append(d.ignored, UnknownField)
	}
	d.messages(l.items)
}

// messages makes one hint a queue of items with partitions, and one of each without.
func (d *decoder) messages(items []message) {
	together := make(map[string]*meshv1.MessageAvailable, len(items))
	for _, m := range items {
		if !d.good(m.check()) {
			continue
		}
		if m.Partition == nil {
			d.add(available(&meshv1.MessageAvailable{Tenant: m.Tenant, Queue: m.Queue}))
			continue
		}
		key := m.Queue
		if m.Tenant != nil {
			key = fmt.Sprintf("%s\x00%s", m.Queue, *m.Tenant)
		}
		a := together[key]
		if a == nil {
			a = &meshv1.MessageAvailable{Tenant: m.Tenant, Queue: m.Queue}
			together[key] = a
			d.add(available(a))
		}
		a.Partitions = append(a.Partitions, *m.Partition)
	}
}

func available(a *meshv1.MessageAvailable) *meshv1.Hint {
	return &meshv1.Hint{Kind: &meshv1.Hint_MessageAvailable{MessageAvailable: a}}
}
