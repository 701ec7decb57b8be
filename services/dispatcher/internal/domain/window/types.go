package window

import (
	"math"
	"time"

	"postrider.dev/services/dispatcher/internal/domain/lease"
	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/queue"
	"postrider.dev/services/dispatcher/internal/domain/seal"
	"postrider.dev/services/dispatcher/internal/domain/segment"
	"postrider.dev/services/dispatcher/internal/domain/settled"
	"postrider.dev/services/dispatcher/internal/domain/trace"
)

// Names from the other domain packages, so that users of the window need not import them one by one.
type (
	// Offset is a position in the shard's log.
	Offset = message.Offset
	// Version counts the committed changes of the group-shard.
	Version = lease.Version
	// Epoch names one lease of the group-shard.
	Epoch = lease.Epoch
	// GroupShardID names the group-shard.
	GroupShardID = lease.GroupShardID
	// Directory is the hashes and sizes of one segment.
	Directory = segment.Directory
)

// DBTime is an instant of the database's clock in microseconds since the Unix epoch. Zero means "no instant".
type DBTime int64

// Add returns the instant d later.
func (t DBTime) Add(d time.Duration) DBTime { return t + DBTime(d/time.Microsecond) }

// Time converts to a time.Time in UTC.
func (t DBTime) Time() time.Time { return time.UnixMicro(int64(t)).UTC() }

// DBTimeOf converts an instant read from the database.
func DBTimeOf(t time.Time) DBTime { return DBTime(t.UnixMicro()) }

// MaxOffset is beyond every offset; a Through item with it means "all that is still open".
const MaxOffset Offset = math.MaxInt64

// Bounds of one view, whatever the log holds.
const (
	MaxAdmitted       = 16_384  // listed messages over all keys
	MaxListed         = 1_024   // listed messages of one key; behind them one number, "more from here"
	MaxBlocked        = 65_536  // blocked keys (ordered) or waiting messages (shared); then the frontier stops
	MaxLeases         = 10_000  // open leases
	MaxLeasedMessages = 100_000 // messages in open leases
	MaxRemembered     = 8_192   // named partitions found empty and remembered as such
)

// Policy is what the group and its queue say about delivery. Mode and OnFailure are fixed when the group is created.
type Policy struct {
	Mode        queue.Mode
	OnFailure   queue.OnFailure
	MaxAttempts int
	Backoff     queue.Backoff
	Trace       bool          // changes carry what they do to each message (Change.Events)
	Delay       time.Duration // no message is handed out before it is that old, by the database's clock
}

// Snapshot is everything the database holds about one group-shard, read under its row lock or otherwise known to be of one version.
type Snapshot struct {
	Row     Row
	Chunks  []settled.Chunk // all chunk rows
	Leases  []LeaseRow      // all open leases
	Retries []RetryRow      // all exceptions

	// For Refresh only: the rows were not read, because the row says that none of them changed since the view's version.
	ChunksKept  bool
	RetriesKept bool
}

// Row is the hot row of a group-shard.
type Row struct {
	ID             GroupShardID
	Version        Version
	Shard          message.ShardID
	Hot            settled.Hot
	Low            Offset  // first unsettled offset
	UnsettledBelow int64   // unsettled offsets in chunk rows below the hot pair
	LeaseLow       Version // no open lease was granted by an older version, so a cold read starts here
	Sought         Version // that of the last seek, 0 = none: what was admitted before says nothing about what is unsettled again
	Losses         Losses
}

// LeaseRow is one open lease. Entries is opaque to the store (EncodeEntries).
type LeaseRow struct {
	Epoch     Epoch
	ExpiresAt DBTime
	Holder    string
	Entries   []byte
}

// RetryRow is what is remembered of a message that failed, or of a key whose messages travel alone. Where a message has no row, it
// has not failed.
type RetryRow struct {
	Offset        Offset
	PartitionHash uint64
	Failures      int // nacks and charged expiries
	Deliveries    int // hand-outs that ended in a failure or an expiry
	AvailableAt   DBTime
	AloneThrough  Offset // messages of the key from Offset through this one travel alone; -1 = none
	LastError     string
}

// Request is one wish laid before Plan: *Pop, *Settle, *SettleAt, *Delete, *Renew, *Release, *Reclaim, *Trim, *Seek or *Drop.
type Request interface{ request() }

// Pop asks for a lease over ready messages.
type Pop struct {
	MaxMessages   int           // at least 1
	MaxBytes      int64         // as message.WireBound counts; the first message is given whatever its size
	Started       bool          // another shard has given the first message: here each has to fit MaxBytes
	MaxPartitions int           // 0 = as many as MaxMessages
	Named         bool          // only the partition with hash Hash
	Hash          uint64        //
	Lease         time.Duration // how long it is leased, counted from the commit
	Holder        string        // consumer, for inspection
	// Skip lists offsets not to hand out: a named pop that met another name under the same hash gives them back and asks again. A
	// skipped message still holds what lies behind it in its partition (a collision blocks, it never reorders).
	Skip []Offset
}

// Verdict is what a consumer says about one message.
type Verdict uint8

// The verdicts.
const (
	Ack    Verdict = iota + 1 // done
	Nack                      // failed: again after a delay, or a dead letter if it was the last attempt. Through: see Item
	Reject                    // dead letter now
)

// rank orders two verdicts about one message: the lower one holds.
func (v Verdict) rank() int {
	switch v {
	case Ack:
		return 0
	case Reject:
		return 1
	case Nack:
	}
	return 2
}

// Item is the verdict about one message of a lease, or about all open ones up to it. In ordered mode a Through nack means the first open
// message of each partition; the others come back uncharged (a group that skips failures takes it of each message).
type Item struct {
	Offset   Offset
	Through  bool // the verdict holds for every message of the lease that no other item names and that is still open, up to and including Offset
	Keyed    bool // with Through: only messages of partition hash Hash
	Hash     uint64
	Verdict  Verdict
	HasDelay bool          // Delay replaces the backoff
	Delay    time.Duration //
	Reason   string        // of a nack or reject
}

// Settle gives verdicts about messages of one lease. Items take effect together, and their order means nothing: what is said about single
// messages comes first, in the order of the log, then what is said about all others. In a group that blocks, a nack that leaves its message
// with attempts stops its partition there: later messages of it in the lease come back uncharged, whatever is said about them (Returned).
// If an item about a single message is refused, the items about all others are, too: the caller means another message than it says, and
// that one is among the others.
type Settle struct {
	Epoch Epoch
	Items []Item
}

// SettleAt settles one message without a lease, addressed by offset (the caller found it by partition and client id, and vouches that
// it is in the log under that partition hash). If it is leased, it is taken out of that lease. Verdict is Ack or Reject.
type SettleAt struct {
	Offset  Offset
	Hash    uint64
	Verdict Verdict
	Reason  string
}

// Delete settles one message of the log because it is to be seen by nobody any more, whatever holds it: a lease loses it and goes on with what else it holds,
// and what failed is forgotten. It is SettleAt, but says nothing of the group's being in use. Whoever seeks or begins anew later MUST name it in Seek.Deleted.
type Delete struct {
	Offset Offset
	Hash   uint64
}

// Renew makes a lease last at least Lease from the commit on. It never shortens.
type Renew struct {
	Epoch Epoch
	Lease time.Duration
}

// Release gives messages of a lease back, uncharged and without a trace. No offsets means all of them. In ordered mode the later
// messages of the same partition in the lease come back too.
type Release struct {
	Epoch   Epoch
	Offsets []Offset
}

// Reclaim takes back up to Max expired leases (0 = MaxReclaim). A pop that is not filled does the same by itself.
type Reclaim struct{ Max int } // answers Nothing if none had expired

// MaxReclaim is how many expired leases one plan takes back when nothing else is said.
const MaxReclaim = 64

// Drop removes the group-shard: its state goes, its leases are fenced. Refused while anything is leased, unless Force. Lay it alone: a
// change that drops carries nothing else.
type Drop struct{ Force bool }

func (*Pop) request()      {}
func (*Settle) request()   {}
func (*SettleAt) request() {}
func (*Delete) request()   {}
func (*Renew) request()    {}
func (*Release) request()  {}
func (*Reclaim) request()  {}
func (*Trim) request()     {}
func (*Drop) request()     {}

// Result is what a request, or one item of it, comes to once the change is applied.
type Result uint8

// The results. Those marked R are refusals (R4): they hold only if the view was current, which the engine knows when the change of
// the same plan was applied, or when it planned from a view refreshed under the lock.
const (
	Done           Result = iota + 1 // granted, settled, renewed, released, reclaimed, dropped
	Retrying                         // nack: waits and comes again
	DeadLettered                     // nack of the last attempt, or reject
	AlreadySettled                   // R: its bit is set
	Stale                            // R: the lease is gone (STALE_EPOCH)
	Nothing                          // R: pop: no message is ready; reclaim: nothing expired
	Refused                          // R: see Stop; settle: a Through item beside one that was refused
	NotHeld                          // R: the lease is open and does not hold the message: it never did, or the message came back
	Returned                         // settle: came back uncharged, because a message before it in its partition failed in the same settle
)

// refusal says that the result is one of those marked R.
func (r Result) refusal() bool {
	switch r {
	case AlreadySettled, Stale, Nothing, Refused, NotHeld:
		return true
	case Done, Retrying, DeadLettered, Returned:
	}
	return false
}

// Stop says why a pop got nothing, or the frontier stands, although there are messages.
type Stop uint8

// The reasons.
const (
	NoStop          Stop = iota
	StopLeases           // MaxLeases or MaxLeasedMessages reached
	StopBlocked          // MaxBlocked reached: everything fails or is leased
	StopAdmitted         // MaxAdmitted ready messages are listed: take those first
	StopLeased           // drop: something is leased
	StopAlreadyGone      // the group-shard is dropped by this same plan
	StopNotAlone         // seek: there are other requests in the plan, and none of them is carried out
	StopWide             // seek of a partition: beyond MaxSeekChunks
)

// Message is one message handed out.
type Message struct {
	Offset   Offset
	Hash     uint64
	Size     uint32 // of its frame
	Attempt  int    // 1-based count of hand-outs that were not released
	Failures int
}

// Outcome answers the request of the same index.
type Outcome struct {
	Result  Result
	Refusal bool // the answer is a no and MUST be given only from a current view (R4)
	Stop    Stop
	// Again: the plan freed messages that this pop may get once the change is committed. Plan it again then, before parking it.
	Again bool

	// Pop: the lease and its messages in offset order. It ends Lease after the stamp of the commit.
	Epoch    Epoch
	Lease    time.Duration
	Messages []Message
	Told     Losses // what a pop that got something is told; Untold is 0 if there is nothing to tell

	// Settle: one result an item. Release, Reclaim: how many messages came back. Trim: how many were lost.
	// Seek: how many leases lost messages, and how many; From is the first unsettled message before (MaxOffset: a partition had none).
	Items  []ItemResult
	Count  int
	Leases int
	From   Offset
}

// ItemResult answers one item of a Settle.
type ItemResult struct {
	Result Result
	Count  int           // messages it applied to (Through may be several)
	Delay  time.Duration // Retrying: counted from the commit
}

// Stamp is what the store returns for an applied change: the one instant all rows of the change were written with.
type Stamp struct{ At DBTime }

// Change is every row change of one plan. The store applies it as one compare-and-set: nothing of it unless the row's version is From
// and the database's clock has passed NotBefore. Durations are added to the statement's own clock reading, the same for all rows.
type Change struct {
	ID        GroupShardID
	From, To  Version
	NotBefore DBTime // 0 = none
	Drop      bool   // delete the row and everything of the group-shard; the other fields are empty then
	Sought    bool   // a seek: sought_version becomes To
	Reset     bool   // with Sought: every chunk, lease and retry row goes, but for ChunkUpserts

	Hot            settled.Hot
	Low            Offset
	UnsettledBelow int64
	LeaseLow       Version
	Losses         Losses
	Active         bool // a consumer did something; a change by time or trimming alone says nothing of the group's being in use

	ChunkUpserts []settled.Chunk
	ChunkDeletes []settled.ChunkNo
	LeaseInserts []LeaseInsert
	LeaseUpdates []LeaseUpdate
	LeaseDeletes []Epoch
	RetryUpserts []RetryUpsert
	RetryDeletes []Offset
	DeadLetters  []DeadLetter
	Events       []trace.Event // with Policy.Trace, in their order

	// Private says that the queue is encrypted: no text of a producer or a consumer is written in clear, and Key seals the snapshots of dead letters.
	Private bool
	Key     *seal.Key

	effects effects
}

// Empty tells that there is nothing to write (and so nothing that proves the view current).
func (c *Change) Empty() bool { return c.To == c.From }

// LeaseInsert grants a lease: expires_at = clock + Lease.
type LeaseInsert struct {
	Epoch   Epoch
	Lease   time.Duration
	Holder  string
	Entries []byte
}

// LeaseUpdate changes an open lease: entries := Entries where not nil; expires_at := greatest(expires_at, clock + Extend) where
// Extend > 0.
type LeaseUpdate struct {
	Epoch   Epoch
	Entries []byte
	Extend  time.Duration
}

// RetryUpsert writes a whole retry row. available_at = AvailableAt where that is not zero (an instant the row had before), else
// clock + After.
type RetryUpsert struct {
	Offset        Offset
	PartitionHash uint64
	Failures      int
	Deliveries    int
	After         time.Duration
	AvailableAt   DBTime
	AloneThrough  Offset
	LastError     string
}

// Need names a directory the view wants next: the first segment at or after From (below To) that holds From, or, where Keyed, the
// first that holds a message with hash Hash.
type Need struct {
	From, To Offset
	Keyed    bool
	Hash     uint64
}

// KeyInfo is what the view knows of one partition hash.
type KeyInfo struct {
	Listed  int    // unsettled messages known and neither leased nor waiting
	Leased  int    // open lease entries
	Waiting int    // messages waiting for their retry
	Ready   bool   // a pop of this partition would be served
	RetryAt DBTime // earliest retry due, 0 = none
	Known   Offset // all its messages below this one are accounted for
}

// Draw returns a uniform number in [0,1). Plan uses it for the jitter of backoff only.
type Draw func() float64
