package store

import (
	"fmt"
	"time"

	"postrider.dev/services/dispatcher/internal/domain/queue"
)

// startText is how a start is stored and shown: "earliest", "latest", or an instant in RFC 3339 with microseconds, which is what the database keeps.
func startText(s queue.Start) string {
	if s.Kind == queue.AtTime {
		return s.Time.UTC().Format("2006-01-02T15:04:05.999999Z07:00")
	}
	return string(s.Kind)
}

// parseStoredStart reads what startText wrote.
func parseStoredStart(text string) (queue.Start, error) {
	switch kind := queue.StartKind(text); kind {
	case queue.Earliest, queue.Latest:
		return queue.Start{Kind: kind}, nil
	}
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return queue.Start{}, fmt.Errorf("stored start of a group: %w", err)
	}
	return queue.Start{Kind: queue.AtTime, Time: t}, nil
}
