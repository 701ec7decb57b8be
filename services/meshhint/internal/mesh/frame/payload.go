package frame

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// maxItems bounds a batch, so that a frame of sixteen million bytes does not become a hundred times that in memory.
const maxItems = 10_000

// Bounds of names, as the services keep them.
const (
	maxName   = 255
	maxTenant = 63
)

// message names messages that may be ready. An absent tenant is any tenant that has a queue of that name, not the default one.
type message struct {
	Queue     string  `json:"queue"`
	Partition *string `json:"partition,omitempty"`
	Tenant    *string `json:"tenant,omitempty"`
	Group     *string `json:"group,omitempty"`
}

type queue struct {
	Queue  string  `json:"queue"`
	Tenant *string `json:"tenant,omitempty"`
}

type registry struct {
	Kind string `json:"kind"`
	Key  string `json:"key,omitempty"`
}

// Batches of messages.
type (
	messages struct {
		Messages list `json:"messages"`
	}
	partitions struct {
		Partitions list `json:"partitions"`
	}
)

// list is a bounded array of messages.
type list struct {
	items   []message
	unknown bool // an item has a field that is not known here
}

var errTooMany = errors.New("too many items")

// MarshalJSON writes the array.
func (l list) MarshalJSON() ([]byte, error) { return json.Marshal(l.items) }

// UnmarshalJSON stops at the item that is one too many.
func (l *list) UnmarshalJSON(b []byte) error {
	*l = list{}
	dec := json.NewDecoder(bytes.NewReader(b))
	if opening, err := dec.Token(); err != nil || opening != json.Delim('[') {
		return errors.Join(errors.New("not an array"), err)
	}
	for dec.More() {
		if len(l.items) == maxItems {
			return fmt.Errorf("%w: at most %d", errTooMany, maxItems)
		}
		var raw json.RawMessage
		if err := dec.Decode(&raw); err != nil {
			return err
		}
		var m message
		unknown, err := unmarshal(raw, &m)
		if err != nil {
			return err
		}
		l.items = append(l.items, m)
		l.unknown = l.unknown || unknown
	}
	return nil
}

// check refuses names that no service would have.
func (m message) check() error {
	return errors.Join(name("queue", m.Queue), tenantName(m.Tenant), optional("partition", m.Partition), optional("group", m.Group))
}

func (q queue) check() error { return errors.Join(name("queue", q.Queue), tenantName(q.Tenant)) }

func (r registry) check() error { return errors.Join(name("kind", r.Kind), text("key", r.Key)) }

func name(what, value string) error {
	if value == "" {
		return fmt.Errorf("%s is missing", what)
	}
	return text(what, value)
}

func tenantName(value *string) error {
	if value == nil {
		return nil
	}
	if len(*value) > maxTenant {
		return fmt.Errorf("tenant has %d bytes, at most %d", len(*value), maxTenant)
	}
	return name("tenant", *value)
}

func optional(what string, value *string) error {
	if value == nil {
		return nil
	}
	return text(what, *value)
}

func text(what, value string) error {
	if len(value) > maxName || !utf8.ValidString(value) || strings.ContainsRune(value, 0) {
		return fmt.Errorf("%s is no name", what)
	}
	return nil
}

// unmarshal reads a payload. unknown says that it has fields which are not known here.
func unmarshal(payload []byte, into any) (unknown bool, err error) {
	strict := json.NewDecoder(bytes.NewReader(payload))
	strict.DisallowUnknownFields()
	if err := strict.Decode(into); err == nil {
		if _, err := strict.Token(); errors.Is(err, io.EOF) {
			return false, nil
		}
	}
	if err := json.Unmarshal(payload, into); err != nil {
		return false, err
	}
	return true, nil
}

// marshal writes a payload of this package's own types, which cannot fail.
func marshal(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		return []byte("{}")
	}
	return b
}
