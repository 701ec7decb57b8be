package queue_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"postrider.dev/services/dispatcher/internal/domain/invalid"
	"postrider.dev/services/dispatcher/internal/domain/queue"
)

func TestLanesThatAQueueCannotHaveAreRefused(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]invalid.Error{
		`{"lanes":0}`:              {Code: invalid.OutOfRange, Field: "lanes"},
		`{"lanes":-1}`:             {Code: invalid.OutOfRange, Field: "lanes"},
		`{"lanes":11}`:             {Code: invalid.OutOfRange, Field: "lanes"},
		`{"lanes":5,"shards":13}`:  {Code: invalid.OutOfRange, Field: "lanes"},
		`{"lanes":10,"shards":64}`: {Code: invalid.OutOfRange, Field: "lanes"},
		`{"lanes":2,"shards":65}`:  {Code: invalid.OutOfRange, Field: "shards"},
		`{"lanes":"2"}`:            {Code: invalid.OptionType, Field: "lanes"},
		`{"lanes":1.5}`:            {Code: invalid.OptionType, Field: "lanes"},
	} {
		p, err := queue.ParsePatch([]byte(raw))
		if err == nil {
			_, err = queue.Create(p)
		}
		require.ErrorIs(t, err, &want, raw)
	}
	for _, raw := range []string{`{"lanes":10,"shards":6}`, `{"lanes":1,"shards":64}`, `{"lanes":8,"shards":8}`, `{"lanes":null}`} {
		_, err := queue.Create(patch(t, raw))
		require.NoError(t, err, raw)
	}
}

func TestLanesOfAQueueThatExistsAreFixed(t *testing.T) {
	t.Parallel()
	made, err := queue.Create(patch(t, `{"lanes":3}`))
	require.NoError(t, err)

	for _, raw := range []string{`{"lanes":2}`, `{"lanes":4}`, `{"lanes":null}`} {
		_, err := made.Merge(patch(t, raw))
		require.ErrorIs(t, err, &invalid.Error{Code: invalid.OptionFixed, Field: "lanes"}, raw)
	}
	_, err = queue.Options{}.Merge(patch(t, `{"lanes":2}`))
	require.ErrorIs(t, err, &invalid.Error{Code: invalid.OptionFixed, Field: "lanes"}, "one that was made before there were lanes has one")
	again, err := made.Merge(patch(t, `{"lanes":3,"lease":"1m"}`))
	require.NoError(t, err, "it may be repeated")
	require.Equal(t, 3, again.Resolve(queue.Defaults{}).Lanes)
	_, err = queue.Options{}.Merge(patch(t, `{"lanes":1}`))
	require.NoError(t, err)
}

func TestAPriorityNeedsALane(t *testing.T) {
	t.Parallel()
	for lanes := range 11 {
		c := queue.Config{Lanes: lanes}
		for priority := -2; priority < 12; priority++ {
			err := c.CheckPriority(priority)
			if priority >= 0 && priority < max(lanes, 1) {
				require.NoError(t, err)
			} else {
				require.ErrorIs(t, err, &invalid.Error{Code: invalid.LaneUnknown, Field: "priority"})
			}
		}
	}
}
