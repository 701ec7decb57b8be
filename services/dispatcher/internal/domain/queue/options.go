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

// Option names one setting of a queue, as it is written on the wire and in the database.
type Option string

// The options. Each is enforced; there is no setting that does nothing.
const (
	OptLease             Option = "lease"
	OptMaxAttempts       Option = "max_attempts"
	OptBackoffBase       Option = "backoff"
	OptBackoffCap        Option = "backoff_max"
	OptMaxMessageBytes   Option = "max_message_bytes"
	OptIdempotencyWindow Option = "idempotency_window"
	OptShards            Option = "shards"
	OptMaxGroups         Option = "max_groups"
	OptRetention         Option = "retention"
	OptRetentionBytes    Option = "retention_bytes"
	OptRetentionSettled  Option = "retention_settled"
	OptExpireAfter       Option = "expire_after"
	OptMaxQueueBytes     Option = "max_queue_bytes"
	OptMaxQueueMessages  Option = "max_queue_messages"
	OptCompression       Option = "compression"
	OptEncryption        Option = "encryption"
)

// Bounds and defaults. Changing a default changes every queue that did not choose.
const (
	MinLease                 = time.Second
	DefaultLease             = 30 * time.Second
	MaxLease                 = 12 * time.Hour
	MinAttempts              = 1
	DefaultAttempts          = 5
	MaxAttempts              = 1_000
	DefaultBackoffBase       = time.Second
	MaxBackoffBase           = time.Hour
	DefaultBackoffCap        = 5 * time.Minute
	MaxBackoffCap            = 12 * time.Hour
	MinMessageBytes          = 1
	DefaultMessageBytes      = 1 << 20
	MaxMessageBytes          = NodeMessageBytes
	DefaultIdempotencyWindow = time.Hour
	MaxIdempotencyWindow     = 7 * 24 * time.Hour
	MinShards                = 1
	DefaultShards            = 1
	MaxShards                = 64 // in each lane, and in all of them together
	MinGroups                = 1
	DefaultGroups            = 100
	MaxGroups                = 10_000
	MaxDelay                 = 12 * time.Hour       // of a nack
	MaxDeliveryDelay         = 366 * 24 * time.Hour // of a message, from its acceptance on
	MinRetention             = time.Second          // but for 0, which is none
	MaxRetention             = 10 * 365 * 24 * time.Hour
	MinExpireAfter           = time.Second
	DefaultExpireAfter       = 7 * 24 * time.Hour
	MaxQueueSize             = 1 << 50 // of bytes kept or allowed, and of messages
)

// Defaults are the defaults that are a node's own; the others are the same everywhere.
type Defaults struct {
	Retention time.Duration // 0 = messages do not become too old
}

// Options are the settings somebody chose; nil means the default. This is what is stored, so that a default may change.
type Options struct {
	Lease             *time.Duration
	MaxAttempts       *int
	BackoffBase       *time.Duration
	BackoffCap        *time.Duration
	MaxMessageBytes   *int
	IdempotencyWindow *time.Duration
	Shards            *int
	Lanes             *int
	MaxGroups         *int
	Retention         *time.Duration
	RetentionBytes    *int
	RetentionSettled  *bool
	ExpireAfter       *time.Duration
	MaxQueueBytes     *int
	MaxQueueMessages  *int
	Compression       *Compression
	Encryption        *bool
}

// Patch is a change of options: what is set in Set, and what goes back to its default.
type Patch struct {
	Set   Options
	Reset []Option
}

// Resolve fills in the defaults, those of the node among them.
func (o Options) Resolve(d Defaults) Config {
	return Config{
		Lease:             or(o.Lease, DefaultLease),
		MaxAttempts:       or(o.MaxAttempts, DefaultAttempts),
		Backoff:           Backoff{Base: or(o.BackoffBase, DefaultBackoffBase), Cap: or(o.BackoffCap, DefaultBackoffCap)},
		MaxMessageBytes:   or(o.MaxMessageBytes, DefaultMessageBytes),
		IdempotencyWindow: or(o.IdempotencyWindow, DefaultIdempotencyWindow),
		Shards:            or(o.Shards, DefaultShards),
		Lanes:             or(o.Lanes, DefaultLanes),
		MaxGroups:         or(o.MaxGroups, DefaultGroups),
		Retention: Retention{
			Age: or(o.Retention, d.Retention), Bytes: or(o.RetentionBytes, 0), Settled: or(o.RetentionSettled, false),
			ExpireAfter: or(o.ExpireAfter, DefaultExpireAfter),
		},
		Limits:      Limits{Bytes: or(o.MaxQueueBytes, 0), Messages: or(o.MaxQueueMessages, 0)},
		Compression: or(o.Compression, CompressionZstd),
		Encryption:  or(o.Encryption, false),
	}
}

// Merge applies a patch to the options of an existing queue and checks the result; o is unchanged. An option that is fixed at
// creation may be repeated with its value, not changed.
func (o Options) Merge(p Patch) (Options, error) {
	next, err := o.merge(p)
	if err == nil {
		err = checkFixed(o.Resolve(Defaults{}), next.Resolve(Defaults{}))
	}
	if err != nil {
		return Options{}, err
	}
	return next, nil
}

// Create is Merge for a queue that does not exist yet: every option may be given.
func Create(p Patch) (Options, error) { return Options{}.merge(p) }

func (o Options) merge(p Patch) (Options, error) {
	for _, name := range p.Reset {
		if !o.reset(name) {
			return Options{}, unknown(string(name))
		}
	}
	o.Lease, o.MaxAttempts = first(p.Set.Lease, o.Lease), first(p.Set.MaxAttempts, o.MaxAttempts)
	o.BackoffBase, o.BackoffCap = first(p.Set.BackoffBase, o.BackoffBase), first(p.Set.BackoffCap, o.BackoffCap)
	o.MaxMessageBytes = first(p.Set.MaxMessageBytes, o.MaxMessageBytes)
	o.IdempotencyWindow = first(p.Set.IdempotencyWindow, o.IdempotencyWindow)
	o.Shards, o.Lanes = first(p.Set.Shards, o.Shards), first(p.Set.Lanes, o.Lanes)
	o.MaxGroups = first(p.Set.MaxGroups, o.MaxGroups)
	o.Retention, o.RetentionBytes = first(p.Set.Retention, o.Retention), first(p.Set.RetentionBytes, o.RetentionBytes)
	o.RetentionSettled, o.ExpireAfter = first(p.Set.RetentionSettled, o.RetentionSettled), first(p.Set.ExpireAfter, o.ExpireAfter)
	o.MaxQueueBytes, o.MaxQueueMessages = first(p.Set.MaxQueueBytes, o.MaxQueueBytes), first(p.Set.MaxQueueMessages, o.MaxQueueMessages)
	o.Compression, o.Encryption = first(p.Set.Compression, o.Compression), first(p.Set.Encryption, o.Encryption)
	return o, o.Resolve(Defaults{}).Validate()
}

func (o *Options) reset(name Option) bool {
	switch name {
	case OptLease:
		o.Lease = nil
	case OptMaxAttempts:
		o.MaxAttempts = nil
	case OptBackoffBase:
		o.BackoffBase = nil
	case OptBackoffCap:
		o.BackoffCap = nil
	case OptMaxMessageBytes:
		o.MaxMessageBytes = nil
	case OptIdempotencyWindow:
		o.IdempotencyWindow = nil
	case OptShards:
		o.Shards = nil
	case OptLanes:
		o.Lanes = nil
	case OptMaxGroups:
		o.MaxGroups = nil
	case OptRetention:
		o.Retention = nil
	case OptRetentionBytes:
		o.RetentionBytes = nil
	case OptRetentionSettled:
		o.RetentionSettled = nil
	case OptExpireAfter:
		o.ExpireAfter = nil
	case OptMaxQueueBytes:
		o.MaxQueueBytes = nil
	case OptMaxQueueMessages:
		o.MaxQueueMessages = nil
	case OptCompression:
		o.Compression = nil
	case OptEncryption:
		o.Encryption = nil
	default:
		return false
	}
	return true
}

// Validate reports the first option that is out of its bounds.
func (c Config) Validate() error {
	checks := []error{
		within(OptLease, c.Lease, MinLease, MaxLease),
		within(OptMaxAttempts, c.MaxAttempts, MinAttempts, MaxAttempts),
		within(OptBackoffBase, c.Backoff.Base, 0, MaxBackoffBase),
		within(OptBackoffCap, c.Backoff.Cap, c.Backoff.Base, MaxBackoffCap),
		within(OptMaxMessageBytes, c.MaxMessageBytes, MinMessageBytes, MaxMessageBytes),
		within(OptIdempotencyWindow, c.IdempotencyWindow, 0, MaxIdempotencyWindow),
		within(OptShards, c.Shards, MinShards, MaxShards),
		within(OptLanes, c.Lanes, MinLanes, MaxLanes),
		c.checkLanes(),
		within(OptMaxGroups, c.MaxGroups, MinGroups, MaxGroups),
		withinOrNone(OptRetention, c.Retention.Age, MinRetention, MaxRetention),
		within(OptRetentionBytes, c.Retention.Bytes, 0, MaxQueueSize),
		within(OptExpireAfter, c.Retention.ExpireAfter, MinExpireAfter, MaxRetention),
		within(OptMaxQueueBytes, c.Limits.Bytes, 0, MaxQueueSize),
		within(OptMaxQueueMessages, c.Limits.Messages, 0, MaxQueueSize),
		c.Compression.check(),
	}
	for _, err := range checks {
		if err != nil {
			return err
		}
	}
	return nil
}

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
	}
	return err
}

// MarshalJSON writes what was chosen, and nothing that is a default.
func (o Options) MarshalJSON() ([]byte, error) {
	out := map[Option]any{}
	for name, d := range map[Option]*time.Duration{
		OptLease: o.Lease, OptBackoffBase: o.BackoffBase, OptBackoffCap: o.BackoffCap, OptIdempotencyWindow: o.IdempotencyWindow,
		OptRetention: o.Retention, OptExpireAfter: o.ExpireAfter,
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

// withinOrNone lets 0 stand for "no limit".
func withinOrNone[T int | time.Duration](name Option, v, low, high T) error {
	if v == 0 {
		return nil
	}
	return within(name, v, low, high)
}

func within[T int | time.Duration](name Option, v, low, high T) error {
	if v < low || v > high {
		return invalid.New(invalid.OutOfRange, string(name), "is %v, must be %v to %v", v, low, high)
	}
	return nil
}

func unknown(name string) error { return invalid.New(invalid.OptionUnknown, name, "is not an option") }
