package queue

import (
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
	OptTrace             Option = "trace"
	OptDelay             Option = "delay"
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
	MaxQueueDelay            = 15 * time.Minute // of every message of a queue
	MaxQueueSize             = 1 << 50          // of bytes kept or allowed, and of messages
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
	Trace             *bool
	Delay             *time.Duration
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
		Trace:       or(o.Trace, false),
		Delay:       or(o.Delay, 0),
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
	o.Trace = first(p.Set.Trace, o.Trace)
	o.Delay = first(p.Set.Delay, o.Delay)
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
	case OptTrace:
		o.Trace = nil
	case OptDelay:
		o.Delay = nil
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
		within(OptDelay, c.Delay, 0, MaxQueueDelay),
	}
	for _, err := range checks {
		if err != nil {
			return err
		}
	}
	return nil
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
