package queue

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"postrider.dev/services/dispatcher/internal/domain/invalid"
)

// ParsePatch reads a JSON object of options. null resets one; durations are texts such as "30s"; an unknown or repeated name is an
// error that names it.
func ParsePatch(raw []byte) (Patch, error) {
	var p Patch
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	if open, err := d.Token(); err != nil || open != json.Delim('{') {
		return Patch{}, invalid.New(invalid.OptionType, "options", "must be a JSON object")
	}
	seen := map[string]bool{}
	for d.More() {
		key, err := d.Token()
		name, ok := key.(string)
		if err != nil || !ok {
			return Patch{}, invalid.New(invalid.OptionType, "options", "is not well-formed JSON")
		}
		if seen[name] {
			return Patch{}, invalid.New(invalid.OptionType, name, "is given twice")
		}
		seen[name] = true
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return Patch{}, invalid.New(invalid.OptionType, name, "is not well-formed JSON")
		}
		if err := p.put(Option(name), value); err != nil {
			return Patch{}, err
		}
	}
	if _, err := d.Token(); err != nil {
		return Patch{}, invalid.New(invalid.OptionType, "options", "is not well-formed JSON")
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return Patch{}, invalid.New(invalid.OptionType, "options", "has something behind the object")
	}
	return p, nil
}

func (p *Patch) put(name Option, value json.RawMessage) error {
	var probe Options
	if !probe.reset(name) {
		return unknown(string(name))
	}
	if string(value) == "null" {
		p.Reset = append(p.Reset, name)
		return nil
	}
	var err error
	switch s := &p.Set; name {
	case OptLease:
		s.Lease, err = duration(name, value)
	case OptMaxAttempts:
		s.MaxAttempts, err = integer(name, value)
	case OptBackoffBase:
		s.BackoffBase, err = duration(name, value)
	case OptBackoffCap:
		s.BackoffCap, err = duration(name, value)
	case OptMaxMessageBytes:
		s.MaxMessageBytes, err = integer(name, value)
	case OptIdempotencyWindow:
		s.IdempotencyWindow, err = duration(name, value)
	case OptShards:
		s.Shards, err = integer(name, value)
	case OptLanes:
		s.Lanes, err = integer(name, value)
	case OptMaxGroups:
		s.MaxGroups, err = integer(name, value)
	case OptRetention:
		s.Retention, err = duration(name, value)
	case OptRetentionBytes:
		s.RetentionBytes, err = integer(name, value)
	case OptRetentionSettled:
		s.RetentionSettled, err = decoded[bool](name, value, "must be true or false")
	case OptExpireAfter:
		s.ExpireAfter, err = duration(name, value)
	case OptMaxQueueBytes:
		s.MaxQueueBytes, err = integer(name, value)
	case OptMaxQueueMessages:
		s.MaxQueueMessages, err = integer(name, value)
	case OptCompression:
		s.Compression, err = decoded[Compression](name, value, `must be "zstd" or "none"`)
	case OptEncryption:
		s.Encryption, err = decoded[bool](name, value, "must be true or false")
	case OptTrace:
		s.Trace, err = decoded[bool](name, value, "must be true or false")
	case OptDelay:
		s.Delay, err = duration(name, value)
	}
	return err
}

// MarshalJSON writes what was chosen, and nothing that is a default.
func (o Options) MarshalJSON() ([]byte, error) {
	out := map[Option]any{}
	for name, d := range map[Option]*time.Duration{
		OptLease: o.Lease, OptBackoffBase: o.BackoffBase, OptBackoffCap: o.BackoffCap, OptIdempotencyWindow: o.IdempotencyWindow,
		OptRetention: o.Retention, OptExpireAfter: o.ExpireAfter, OptDelay: o.Delay,
	} {
		if d != nil {
			out[name] = d.String()
		}
	}
	for name, n := range map[Option]*int{
		OptMaxAttempts: o.MaxAttempts, OptMaxMessageBytes: o.MaxMessageBytes, OptShards: o.Shards, OptLanes: o.Lanes, OptMaxGroups: o.MaxGroups,
		OptRetentionBytes: o.RetentionBytes, OptMaxQueueBytes: o.MaxQueueBytes, OptMaxQueueMessages: o.MaxQueueMessages,
	} {
		if n != nil {
			out[name] = *n
		}
	}
	if o.RetentionSettled != nil {
		out[OptRetentionSettled] = *o.RetentionSettled
	}
	if o.Compression != nil {
		out[OptCompression] = *o.Compression
	}
	if o.Encryption != nil {
		out[OptEncryption] = *o.Encryption
	}
	if o.Trace != nil {
		out[OptTrace] = *o.Trace
	}
	return json.Marshal(out)
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (o *Options) UnmarshalJSON(raw []byte) error {
	p, err := ParsePatch(raw)
	if err != nil {
		return fmt.Errorf("stored options: %w", err)
	}
	*o = p.Set
	return nil
}

func duration(name Option, raw json.RawMessage) (*time.Duration, error) {
	var s string
	if err := json.Unmarshal(raw, &s); err != nil {
		return nil, invalid.New(invalid.OptionType, string(name), `must be a duration such as "30s"`)
	}
	d, err := time.ParseDuration(s)
	if err != nil {
		return nil, invalid.New(invalid.OptionType, string(name), `must be a duration such as "30s"`)
	}
	return &d, nil
}

func integer(name Option, raw json.RawMessage) (*int, error) {
	return decoded[int](name, raw, "must be a whole number")
}

func decoded[T any](name Option, raw json.RawMessage, must string) (*T, error) {
	var v T
	if err := json.Unmarshal(raw, &v); err != nil {
		return nil, invalid.New(invalid.OptionType, string(name), "%s", must)
	}
	return &v, nil
}
