package engine

import "time"

// Config bounds the engine's memory and paces it.
type Config struct {
	// RepollMin is the first shared re-poll after a miss; it doubles up to RepollMax.
	RepollMin, RepollMax time.Duration
	// ViewBytes bounds all views together, DirectoryBytes and BodyBytes the two halves of the segment cache.
	ViewBytes, DirectoryBytes, BodyBytes int64
	// QueuedBytes and QueuedRequests bound what waits for a commit.
	QueuedBytes    int64
	QueuedRequests int
	// ParkedPops bounds the pops that wait for messages.
	ParkedPops int
	// FlushBytes and FlushMessages bound one segment.
	FlushBytes    int64
	FlushMessages int
	// StatementTimeout bounds one statement or transaction as the engine waits for it; Patience is how long a commit is tried again.
	StatementTimeout, Patience time.Duration
}

// Defaults returns the bounds of DESIGN 16.
func Defaults() Config {
	return Config{
		RepollMin: 100 * time.Millisecond, RepollMax: time.Second,
		ViewBytes: 96 << 20, DirectoryBytes: 64 << 20, BodyBytes: 64 << 20,
		QueuedBytes: 128 << 20, QueuedRequests: 1 << 17, ParkedPops: 1 << 16,
		FlushBytes: 16 << 20, FlushMessages: 32_768,
		StatementTimeout: 10 * time.Second, Patience: 20 * time.Second,
	}
}
