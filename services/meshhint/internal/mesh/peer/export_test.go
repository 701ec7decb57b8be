package peer

import (
	"errors"
	"time"
)

// Pauses are those of a Sender that fails n times.
func Pauses(n int) (out []time.Duration) {
	s := NewSender(Address{}, Options{}, nil)
	for range n {
		out = append(out, s.pause(errors.New("no connection")))
	}
	return out
}
