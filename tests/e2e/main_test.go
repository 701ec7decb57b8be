// Package e2e tells the stories of Postrider on two hosts: what a client does on one is seen on the other. Each test is named for its promise.
//
// The suite runs as it is and without hints: with POSTRIDER_HINT_CARRIERS=none, with HINT_FAULTS=drop and with HINT_FAULTS=mangle, see package hintfault.
// Only latency may change.
package e2e

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"postrider.dev/pkg/pgtest"
	"postrider.dev/pkg/redisconn"
	"postrider.dev/pkg/redistest"
	postrider "postrider.dev/sdk"
	"postrider.dev/tests/fleet"
	"postrider.dev/tests/hammer"
	"postrider.dev/tests/hintfault"
	"postrider.dev/tests/invariant"
)

// binaries are built once for the tests that need processes.
var binaries fleet.Binaries //nolint:gochecknoglobals // one build a test process

func TestMain(m *testing.M) {
	redisconn.SilenceDriver()
	pgtest.Main(m, redistest.IgnoreProbe())
}

// patience bounds what must happen soon; under -race on a busy machine soon is relative.
const patience = 60 * time.Second

// hintsOff reports whether this run has no carrier for hints between hosts.
func hintsOff() bool { return os.Getenv("POSTRIDER_HINT_CARRIERS") == "none" }

// hintsLost reports whether a hint between hosts may be lost in this run, so that no test may rely on one.
func hintsLost() bool { return hintsOff() || hintfault.FromEnv() != hintfault.None }

// hints names what becomes of hints in this run.
func hints() string {
	switch {
	case hintsOff():
		return "off"
	case hintsLost():
		return hintfault.FromEnv()
	}
	return "on"
}

// twoHosts starts two hosts over one database and one real Redis.
func twoHosts(t *testing.T) *fleet.Fleet {
	t.Helper()
	return fleet.Start(t, fleet.Options{Hosts: 2, RedisURL: redistest.Start(t).URL()})
}

// partitions names n partitions.
func partitions(n int) []string {
	list := make([]string, n)
	for i := range list {
		list[i] = fmt.Sprintf("partition-%d", i)
	}
	return list
}

// mustPush pushes one message.
func mustPush(t *testing.T, c *postrider.Client, queue, partition, payload string) {
	t.Helper()
	results, err := c.Push(t.Context(), queue, postrider.Message{Partition: partition, Payload: []byte(payload)})
	require.NoError(t, err)
	require.NoError(t, results[0].Err)
}

// mustPop pops and fails when nothing is ready in time.
func mustPop(t *testing.T, c *postrider.Client, queue string, o postrider.PopOptions) *postrider.Lease {
	t.Helper()
	if o.Wait == 0 {
		o.Wait = 20 * time.Second
	}
	lease, err := c.Pop(t.Context(), queue, o)
	require.NoError(t, err)
	require.NotNil(t, lease, "nothing was ready in %s", o.Wait)
	return lease
}

// payloads are the deliveries of a lease as text.
func payloads(l *postrider.Lease) []string {
	if l == nil {
		return nil
	}
	out := make([]string, len(l.Deliveries))
	for i, d := range l.Deliveries {
		out[i] = string(d.Payload)
	}
	return out
}

// eventually waits for a public fact and reports the last reason why it does not hold.
func eventually(t *testing.T, fact func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := fact()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("still not so after %s: %v", patience, err)
		}
	}
}

// noViolation fails with each violation of a drained history.
func noViolation(t *testing.T, r *hammer.Recorder) {
	t.Helper()
	for i, v := range invariant.All(r.Events(), invariant.Drained()...) {
		if i == 5 {
			t.Error("and more")
			break
		}
		t.Error(v.String())
	}
}

// metric reads one sample from a host's admin listener; 0 when it is not there yet.
func metric(t *testing.T, h *fleet.Host, sample string) float64 {
	t.Helper()
	return metricAt(t, h.Admin, sample)
}

// metricAt reads one sample from an admin listener; 0 when it is not there yet.
func metricAt(t *testing.T, admin, sample string) float64 {
	t.Helper()
	body := get(t, "http://"+admin+"/metrics")
	for line := range strings.SplitSeq(body, "\n") {
		if value, ok := strings.CutPrefix(line, sample+" "); ok {
			v, err := strconv.ParseFloat(value, 64)
			require.NoError(t, err)
			return v
		}
	}
	return 0
}

func get(t *testing.T, url string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	require.NoError(t, err)
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close() //nolint:errcheck // read to its end
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, resp.StatusCode, "%s: %s", url, body)
	return string(body)
}
