// Package queue holds the settings of queues and groups, their bounds and defaults, and the rules for names.
package queue

import (
	"time"

	"postrider.dev/services/dispatcher/internal/domain/invalid"
)

// Config is what a queue does, every option resolved.
type Config struct {
	Lease             time.Duration // how long a pop leases where it does not say
	MaxAttempts       int           // failures after which a message is a dead letter
	Backoff           Backoff
	MaxMessageBytes   int           // of payload and headers together
	IdempotencyWindow time.Duration // how long a key is remembered; 0 = keys are not remembered
	Shards            int           // of each lane; fixed when the queue is created
	Lanes             int           // fixed when the queue is created
	MaxGroups         int
	Retention         Retention
	Limits            Limits
	Compression       Compression   // of segments written from now on
	Encryption        bool          // of everything that is kept; fixed when the queue is created
	Trace             bool          // what becomes of each message is recorded, and kept for TraceKept
	Delay             time.Duration // no message is handed out before it is that old
}

// TraceKept is how long the trace events of a queue are kept.
const TraceKept = 24 * time.Hour

// Retention says what the log does not keep. Age and Bytes wait for no group.
type Retention struct {
	Age         time.Duration // 0 = messages do not become too old
	Bytes       int           // stored bytes kept, over all shards; 0 = no bound
	Settled     bool          // what every group has settled goes
	ExpireAfter time.Duration // Settled does not wait for a group that left messages alone for that long
}

// Any says whether anything ever goes.
func (r Retention) Any() bool { return r.Age > 0 || r.Bytes > 0 || r.Settled }

// Limits say when a push is refused; 0 is no limit.
type Limits struct {
	Bytes    int // stored, over all shards
	Messages int // pending: unsettled in a group, or in the log where there is no group
}

// Any says whether a push may be refused.
func (l Limits) Any() bool { return l.Bytes > 0 || l.Messages > 0 }

// Share is what one of several shards has of a bound over all of them; 0 stays no bound.
func Share(bound, shards int) int64 {
	return int64((bound + shards - 1) / shards)
}

// Compression says how segments are compressed.
type Compression string

// The compressions.
const (
	CompressionZstd Compression = "zstd" // where it saves something
	CompressionNone Compression = "none"
)

func (c Compression) check() error {
	if c != CompressionZstd && c != CompressionNone {
		return invalid.New(invalid.EnumUnknown, string(OptCompression), `must be "zstd" or "none"`)
	}
	return nil
}

// Backoff is the wait between attempts: full jitter below a ceiling that doubles from Base to Cap.
type Backoff struct {
	Base time.Duration
	Cap  time.Duration
}

// Mode says how consumers of a group share a partition.
type Mode string

// The modes.
const (
	Ordered Mode = "ordered" // one live lease per partition, strict order
	Shared  Mode = "shared"  // many leases inside a partition, settled in any order
)

// OnFailure says what a failed message does to its partition in ordered mode.
type OnFailure string

// The policies.
const (
	Block OnFailure = "block" // the partition waits for it
	Skip  OnFailure = "skip"  // later messages go on
)

// StartKind says where a new group begins.
type StartKind string

// The kinds.
const (
	Earliest StartKind = "earliest"
	Latest   StartKind = "latest"
	AtTime   StartKind = "timestamp"
)

// Start is where a group begins; Time is set for AtTime only.
type Start struct {
	Kind StartKind
	Time time.Time
}

// Group is a consumer group's fixed settings.
type Group struct {
	Name      string
	Mode      Mode
	OnFailure OnFailure
	Start     Start
}
