package invariant

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Check is one invariant over a history.
type Check func(events []Event) []Violation

// Drained are the checks of a history at whose end every group has consumed everything.
func Drained() []Check {
	return []Check{NothingLost, NothingAckedReturns, OnePlaceEach, OneMessageEach, ContentIntact, OrderPerPartition, OrderPerPublisher, OneHolder, TenantsApart}
}

// All runs the checks and returns every violation.
func All(events []Event, checks ...Check) []Violation {
	var all []Violation
	for _, c := range checks {
		all = append(all, c(events)...)
	}
	return all
}

// NothingLost checks that every acknowledged push is, at the end, acked or a dead letter in every group that consumed its queue.
func NothingLost(events []Event) []Violation {
	l := sortOut(events)
	var out []Violation
	for _, p := range l.pushes {
		for g := range l.groups {
			key := [3]string{p.Queue, g[1], p.ID}
			if g[0] != p.Queue || len(l.acks[key]) > 0 || l.dead[key] {
				continue
			}
			slice := []Event{p}
			for _, d := range l.deliveries[key] {
				slice = append(slice, d)
			}
			out = append(out, Violation{"nothing lost", fmt.Sprintf("message %s is neither acked nor dead in group %s", p.ID, g[1]), slice})
		}
	}
	for _, p := range l.buffered {
		for g := range l.groups {
			if g[0] == p.Queue && !l.settled[[3]string{p.Queue, g[1], p.Content}] {
				out = append(out, Violation{"nothing lost", fmt.Sprintf("the buffered message %s is not acked in group %s", p.Content, g[1]), []Event{p}})
			}
		}
	}
	return out
}

// NothingAckedReturns checks that after an answered ack no pop that was sent later hands the message to that group, nor an attempt beyond the acked one.
func NothingAckedReturns(events []Event) []Violation {
	l := sortOut(events)
	var out []Violation
	for key, acks := range l.acks {
		a := slices.MinFunc(acks, func(x, y Ack) int { return cmp.Compare(x.Answered, y.Answered) })
		var acked int32
		for _, d := range l.deliveries[key] {
			if d.Lease == a.Lease {
				acked = d.Attempt
			}
		}
		for _, d := range l.deliveries[key] {
			if d.Sent > a.Answered || (acked > 0 && d.Attempt > acked) {
				out = append(out, Violation{"nothing acked returns", fmt.Sprintf("message %s came again to group %s", key[2], key[1]), []Event{a, d}})
			}
		}
	}
	return out
}

// OnePlaceEach checks that no two acknowledged pushes have the same place, and no message id has two offsets.
func OnePlaceEach(events []Event) []Violation {
	places := map[string]Push{}
	var out []Violation
	for _, e := range events {
		p, ok := e.(Push)
		if !ok {
			continue
		}
		if other, taken := places[p.ID]; taken && (other.Content != p.Content || other.Offset != p.Offset) {
			out = append(out, Violation{"one place each", "two pushes were told the id " + p.ID, []Event{other, p}})
		}
		places[p.ID] = p
	}
	return out
}

// OneMessageEach checks that what was pushed once is in the log once: no content has two message ids, among the answers of pushes and the deliveries.
func OneMessageEach(events []Event) []Violation {
	type content struct{ queue, content string }
	first := map[content]Event{}
	ids := map[content]string{}
	var out []Violation
	see := func(c content, id string, e Event) {
		if known, ok := ids[c]; !ok {
			ids[c], first[c] = id, e
		} else if known != id {
			out = append(out, Violation{"one message each", "the content " + c.content + " is in the log twice", []Event{first[c], e}})
		}
	}
	for _, e := range events {
		switch e := e.(type) {
		case Push:
			if e.Buffered {
				continue
			}
			see(content{e.Queue, e.Content}, e.ID, e)
		case Delivery:
			see(content{e.Queue, e.Content}, e.ID, e)
		}
	}
	return out
}

// ContentIntact checks that what is delivered under an id is what was pushed under it, in the same partition and at the same offset.
func ContentIntact(events []Event) []Violation {
	l := sortOut(events)
	var out []Violation
	for key, deliveries := range l.deliveries {
		p, known := l.pushes[key[2]]
		if !known {
			continue // pushed, but the answer was lost on its way
		}
		for _, d := range deliveries {
			if d.Content != p.Content || d.Digest != p.Digest || d.Partition != p.Partition || d.Offset != p.Offset {
				out = append(out, Violation{"content intact", "message " + p.ID + " came back as something else", []Event{p, d}})
			}
		}
	}
	return out
}

// TenantsApart checks that no tenant is handed what another's publisher made. Publishers have one tenant each; their contents begin with their name.
func TenantsApart(events []Event) []Violation {
	publishers := map[string]Push{}
	for _, e := range events {
		if p, ok := e.(Push); ok {
			publishers[p.Publisher] = p
		}
	}
	var out []Violation
	for _, e := range events {
		d, ok := e.(Delivery)
		if !ok {
			continue
		}
		publisher, _, _ := strings.Cut(d.Content, "/")
		if p, known := publishers[publisher]; known && p.Tenant != d.Tenant {
			out = append(out, Violation{"tenants apart", fmt.Sprintf("tenant %q was handed a message of %q", d.Tenant, p.Tenant), []Event{p, d}})
		}
	}
	return out
}

// OrderPerPartition checks, for ordered groups, that when a message is handed out, everything before it in its partition is settled, or in the same lease.
func OrderPerPartition(events []Event) []Violation {
	l := sortOut(events)
	var out []Violation
	for key, pushes := range l.byPartition {
		slices.SortFunc(pushes, func(x, y Push) int { return cmp.Compare(x.Offset, y.Offset) })
		for g := range l.groups {
			if g[0] == key[0] && !l.shared[g] {
				out = append(out, l.partitionOrder(g[1], pushes)...)
			}
		}
	}
	return out
}

// partitionOrder checks one partition, its pushes sorted by offset, in one group. It compares each message with the one right before it: if that
// one was settled in time, and every one before in turn, all were.
func (l *log) partitionOrder(group string, pushes []Push) []Violation {
	var out []Violation
	for i := 1; i < len(pushes); i++ {
		before, p := pushes[i-1], pushes[i]
		keyBefore := [3]string{p.Queue, group, before.ID}
		for _, d := range l.deliveries[[3]string{p.Queue, group, p.ID}] {
			if l.settledBy(keyBefore, d.Answered) || l.dead[keyBefore] || l.sameLease(keyBefore, d.Lease) {
				continue
			}
			slice := []Event{before, p, d}
			for _, e := range l.deliveries[keyBefore] {
				slice = append(slice, e)
			}
			out = append(out, Violation{"order per partition", fmt.Sprintf("%s overtook %s in group %s", p.ID, before.ID, group), slice})
		}
	}
	return out
}

// settledBy reports whether an accepted ack of the message was on its way before the instant.
func (l *log) settledBy(key [3]string, at Instant) bool {
	return slices.ContainsFunc(l.acks[key], func(a Ack) bool { return a.Sent <= at })
}

func (l *log) sameLease(key [3]string, lease string) bool {
	return slices.ContainsFunc(l.deliveries[key], func(d Delivery) bool { return d.Lease == lease })
}

// OrderPerPublisher checks that of two messages of one publisher in one partition the one whose push was answered before the other's was sent has the
// lower offset.
func OrderPerPublisher(events []Event) []Violation {
	type line struct{ queue, partition, publisher string }
	lines := map[line][]Push{}
	for _, e := range events {
		if p, ok := e.(Push); ok && !p.Buffered {
			key := line{p.Queue, p.Partition, p.Publisher}
			lines[key] = append(lines[key], p)
		}
	}
	var out []Violation
	for _, pushes := range lines {
		slices.SortFunc(pushes, func(x, y Push) int { return cmp.Compare(x.Seq, y.Seq) })
		for i := 1; i < len(pushes); i++ {
			a, b := pushes[i-1], pushes[i]
			if a.Answered <= b.Sent && a.Offset >= b.Offset {
				out = append(out, Violation{"order per publisher", "the later message has the lower offset", []Event{a, b}})
			}
		}
	}
	return out
}

// OneHolder checks, for ordered groups, that while a lease could still ack a message of a partition, no other lease got a message of that partition.
func OneHolder(events []Event) []Violation {
	type holder struct{ queue, group, partition, lease string }
	type span struct {
		first Delivery
		last  *Ack
	}
	l := sortOut(events)
	spans := map[holder]*span{}
	for key, deliveries := range l.deliveries {
		for _, d := range deliveries {
			if d.Shared {
				continue
			}
			h := holder{d.Queue, d.Group, d.Partition, d.Lease}
			s := spans[h]
			if s == nil {
				s = &span{first: d}
				spans[h] = s
			}
			for _, a := range l.acks[key] {
				if a.Lease == d.Lease && (s.last == nil || a.Sent > s.last.Sent) {
					s.last = &a
				}
			}
		}
	}
	byPartition := map[[3]string][]*span{}
	for h, s := range spans {
		key := [3]string{h.queue, h.group, h.partition}
		byPartition[key] = append(byPartition[key], s)
	}
	var out []Violation
	for _, list := range byPartition {
		slices.SortFunc(list, func(x, y *span) int { return cmp.Compare(x.first.Answered, y.first.Answered) })
		for i := 1; i < len(list); i++ {
			a, b := list[i-1], list[i]
			if a.last != nil && b.first.Sent > a.first.Answered && b.first.Answered < a.last.Sent {
				out = append(out, Violation{"one holder", "a partition was handed out while its lease was alive", []Event{a.first, b.first, *a.last}})
			}
		}
	}
	return out
}
