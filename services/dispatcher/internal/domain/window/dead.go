package window

import "postrider.dev/services/dispatcher/internal/domain/message"

// DeadLetter is a message that is out of attempts or was rejected. Plan names it; before the store applies the change the engine MUST
// fill ID and Snapshot from the segment (reading it before the transaction), or leave Snapshot nil if the message was trimmed.
type DeadLetter struct {
	Offset        Offset
	PartitionHash uint64
	Failures      int
	Deliveries    int
	Reason        DeadReason
	LastError     string

	ID       [16]byte
	Snapshot *message.Message
}

// DeadReason says how a message became a dead letter.
type DeadReason uint8

// The reasons.
const (
	DeadAttempts DeadReason = iota + 1 // a nack, and the attempts are used up
	DeadExpired                        // a lease ran out on a message that travelled alone, and the attempts are used up
	DeadRejected                       // a consumer said so
	DeadTrimmed                        // it waited for a retry, and the log was trimmed meanwhile
)
