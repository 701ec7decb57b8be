package queue_test

import (
	"encoding/json"
	"fmt"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"postrider.dev/services/dispatcher/internal/domain/invalid"
	"postrider.dev/services/dispatcher/internal/domain/queue"
)

// choices is a value of each option that is not its default.
func choices() map[queue.Option]string {
	return map[queue.Option]string{
		queue.OptLease: `"45s"`, queue.OptMaxAttempts: `7`, queue.OptBackoffBase: `"2s"`, queue.OptBackoffCap: `"1m"`, queue.OptMaxMessageBytes: `1000`,
		queue.OptIdempotencyWindow: `"2h"`, queue.OptShards: `2`, queue.OptLanes: `3`, queue.OptMaxGroups: `9`, queue.OptRetention: `"1h"`,
		queue.OptRetentionBytes: `5000`, queue.OptRetentionSettled: `true`, queue.OptExpireAfter: `"1h"`, queue.OptMaxQueueBytes: `6000`,
		queue.OptMaxQueueMessages: `70`, queue.OptCompression: `"none"`, queue.OptEncryption: `true`, queue.OptTrace: `true`, queue.OptDelay: `"3s"`,
	}
}

// chosen names the fields of options that somebody chose.
func chosen(o queue.Options) map[string]any {
	out := map[string]any{}
	v := reflect.ValueOf(o)
	for i := range v.NumField() {
		if f := v.Field(i); !f.IsNil() {
			out[v.Type().Field(i).Name] = f.Elem().Interface()
		}
	}
	return out
}

func TestAChangeOfOneOptionLeavesEveryOtherAndNullTakesItAloneBack(t *testing.T) {
	t.Parallel()
	require.Len(t, choices(), reflect.TypeFor[queue.Options]().NumField(), "an option is missing here")
	all := queue.Options{}
	alone := map[queue.Option]map[string]any{}
	for name, value := range choices() {
		raw := fmt.Sprintf(`{%q:%s}`, name, value)
		one, err := queue.Create(patch(t, raw))
		require.NoError(t, err, raw)
		require.Len(t, chosen(one), 1, raw)
		require.NotEqual(t, queue.Options{}.Resolve(queue.Defaults{}), one.Resolve(queue.Defaults{}), "%s is its default, or has no effect", raw)
		stored, err := json.Marshal(one)
		require.NoError(t, err)
		var again queue.Options
		require.NoError(t, json.Unmarshal(stored, &again))
		require.Equal(t, one, again, "%s is not stored as it was chosen", raw)
		alone[name] = chosen(one)
		if name == queue.OptShards || name == queue.OptLanes || name == queue.OptEncryption { // only when it is created
			_, err := queue.Options{}.Merge(patch(t, raw))
			require.ErrorIs(t, err, &invalid.Error{Code: invalid.OptionFixed, Field: string(name)})
			continue
		}
		all, err = all.Merge(patch(t, raw))
		require.NoError(t, err, raw)
		for field, v := range alone[name] {
			require.Equal(t, v, chosen(all)[field], raw)
		}
	}
	want := chosen(all)
	require.Len(t, want, len(choices())-3, "what was chosen first is gone")

	for name := range alone {
		back, err := all.Merge(patch(t, fmt.Sprintf(`{%q:null}`, name)))
		require.NoError(t, err, name)
		left := chosen(all)
		for field := range alone[name] {
			delete(left, field)
		}
		require.Equal(t, left, chosen(back), name)
	}
}
