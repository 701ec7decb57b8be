package queue

import (
	"fmt"
	"strings"

	"postrider.dev/services/dispatcher/internal/domain/invalid"
)

// Place is a position in the log: where a group begins, or an offset in each shard.
type Place struct {
	Start

	Offsets []int64 // instead of Start, one for each shard
}

// ParsePlace reads a place: a text as ParseStart reads it, or offsets, and not both. Nothing at all is an error: a group is not moved by accident.
func ParsePlace(field, text string, offsets []int64) (Place, error) {
	switch {
	case text == "" && len(offsets) == 0:
		return Place{}, invalid.New(invalid.NameEmpty, field, "or offsets must be given")
	case text != "" && len(offsets) > 0:
		return Place{}, invalid.New(invalid.OutOfRange, field, "must not be given beside offsets")
	case text == "":
		for i, off := range offsets {
			if off < 0 {
				return Place{}, invalid.New(invalid.OutOfRange, fmt.Sprintf("offsets[%d]", i), "must not be negative")
			}
		}
		return Place{Offsets: offsets}, nil
	}
	start, err := ParseStart(text)
	if err != nil {
		return Place{}, invalid.New(invalid.EnumUnknown, field, "must be %q, %q or an RFC 3339 timestamp", Earliest, Latest)
	}
	return Place{Start: start}, nil
}

// String is for people.
func (p Place) String() string {
	if len(p.Offsets) > 0 {
		return strings.Trim(strings.ReplaceAll(fmt.Sprint(p.Offsets), " ", ","), "[]")
	}
	return p.Start.String()
}
