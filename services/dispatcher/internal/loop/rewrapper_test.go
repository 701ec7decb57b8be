package loop_test

import (
	"context"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"postrider.dev/pkg/clock"
	"postrider.dev/services/dispatcher/internal/loop"
	"postrider.dev/services/dispatcher/internal/store"
)

// wrapped are keys by id, and the master of each.
type wrapped map[int32]string

func (w wrapped) RewrapKeys(_ context.Context, after int32, most int) (out store.Rewrapped, _ error) {
	for id := after + 1; id <= int32(len(w)) && int(id-after) <= most; id++ {
		if w[id] == "old" {
			w[id] = "new"
			out.Keys++
		}
		out.Last = id
	}
	return out, nil
}

func (w wrapped) KeysOfOtherMasters(context.Context) (map[string]int, error) {
	out := map[string]int{}
	for _, master := range w {
		if master != "new" {
			out[master]++
		}
	}
	return out, nil
}

func TestTheRewrapperGoesThroughAllKeysAndTellsHowManyAreLeft(t *testing.T) {
	t.Parallel()
	w := wrapped{}
	for id := range int32(1001) {
		w[id+1] = "old"
	}
	w[500] = "lost"
	seen, logs := observer.New(zap.InfoLevel)
	reg := prometheus.NewRegistry()
	r := loop.NewRewrapper(w, clock.NewFake(time.Unix(0, 0)), zap.New(seen), reg)
	left := func() float64 {
		families, err := reg.Gather()
		require.NoError(t, err)
		return families[0].GetMetric()[0].GetGauge().GetValue()
	}

	require.NoError(t, r.Round(t.Context()))
	require.InDelta(t, 1, left(), 0)
	require.NoError(t, r.Round(t.Context()))
	require.Equal(t, 1, logs.FilterMessageSnippet("not the first here").Len(), "told once")
	w[500] = "new"
	require.NoError(t, r.Round(t.Context()))
	require.InDelta(t, 0, left(), 0)
	require.Equal(t, 1, logs.FilterMessageSnippet("all keys of encrypted queues").Len())
}
