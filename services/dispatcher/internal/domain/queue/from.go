package queue

import (
	"strconv"

	"postrider.dev/services/dispatcher/internal/domain/invalid"
)

// From is where a look at the log begins.
type From struct {
	Latest bool  // the last messages there are
	Offset int64 // else this one; 0 is the earliest
}

// ParseFrom accepts "" and "earliest", "latest", or an offset in decimals.
func ParseFrom(field, text string) (From, error) {
	switch text {
	case "", string(Earliest):
		return From{}, nil
	case string(Latest):
		return From{Latest: true}, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || text[0] < '0' || text[0] > '9' {
		return From{}, invalid.New(invalid.EnumUnknown, field, "must be %q, %q or an offset", Earliest, Latest)
	}
	return From{Offset: n}, nil
}
