package catalog_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"postrider.dev/pkg/clock"
	"postrider.dev/services/dispatcher/internal/engine/catalog"
)

func TestRateIsTheMeanOfTheLastFullSeconds(t *testing.T) {
	t.Parallel()
	clk := clock.NewFake(time.Unix(1000, 0))
	rates := catalog.NewRates(clk)

	for range 20 {
		rates.Add(7, 100)
		clk.Advance(time.Second)
	}
	require.InDelta(t, 100.0, rates.PerSecond(7), 0.001)
	require.Zero(t, rates.PerSecond(8))

	clk.Advance(5 * time.Second)
	require.InDelta(t, 50.0, rates.PerSecond(7), 0.001)
	clk.Advance(time.Hour)
	require.Zero(t, rates.PerSecond(7))
}

func TestRateOfAYoungProcessCountsItsOwnSecondsOnly(t *testing.T) {
	t.Parallel()
	clk := clock.NewFake(time.Unix(1000, 0))
	rates := catalog.NewRates(clk)
	rates.Add(1, 30)
	require.Zero(t, rates.PerSecond(1), "no second is full yet")
	clk.Advance(time.Second)
	require.InDelta(t, 30.0, rates.PerSecond(1), 0.001)
	clk.Advance(time.Second)
	require.InDelta(t, 15.0, rates.PerSecond(1), 0.001)
}

func TestIdleQueuesMakeRoomForOthersRates(t *testing.T) {
	t.Parallel()
	clk := clock.NewFake(time.Unix(1000, 0))
	rates := catalog.NewRates(clk)
	for id := range int64(70_000) {
		rates.Add(id, 1)
	}
	clk.Advance(20 * time.Second)
	rates.Add(1_000_000, 40)
	clk.Advance(time.Second)
	require.InDelta(t, 4.0, rates.PerSecond(1_000_000), 0.001)
}
