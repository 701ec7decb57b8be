package cli_test

import (
	"encoding/json"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"postrider.dev/stack/internal/cli"
)

func TestModesAreShownAndSetWithTheirReasonAndWhoDidIt(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	for _, mode := range []string{"maintenance", "pop_maintenance"} {
		require.Equal(t, []string{mode, "off"}, columns(t, s.must("admin", "modes"), mode))

		set := columns(t, s.must("admin", "mode", "set", mode, "on", "--reason", "upgrade"), mode)
		require.Equal(t, []string{mode, "on", "upgrade"}, set[:3])
		require.Greater(t, len(set), 4, "when and by whom")
		require.Equal(t, set[:3], columns(t, s.must("admin", "modes"), mode)[:3])
		var asJSON map[string]any
		for line := range strings.SplitSeq(strings.TrimSpace(s.must("admin", "modes", "-o", "json")), "\n") {
			if m := fields(t, line); m["mode"] == mode {
				asJSON = m
			}
		}
		require.Equal(t, true, asJSON["enabled"])
		require.Equal(t, "upgrade", asJSON["reason"])

		require.Equal(t, "off", columns(t, s.must("admin", "mode", "set", mode, "off"), mode)[1])
		require.Equal(t, "off", columns(t, s.must("admin", "modes"), mode)[1])
	}
}

func TestAModeThatIsNoneOrNeitherOnNorOffChangesNothing(t *testing.T) {
	t.Parallel()
	s := newShell(t)

	for _, args := range [][]string{{"maintenance", "perhaps"}, {"maintenance", "ON"}, {"maintenance"}, {"maintenance", "on", "off"}} {
		_, _, err := s.run(append([]string{"admin", "mode", "set"}, args...)...)
		require.Error(t, err, args)
	}
	_, _, err := s.run("admin", "mode", "set", "maintenance", "perhaps")
	require.ErrorIs(t, err, cli.ErrUsage)
	_, _, err = s.run("admin", "mode", "set", "siesta", "on")
	require.ErrorContains(t, err, "ENUM_UNKNOWN")
	_, _, err = s.run("admin", "mode", "set", "maintenance", "on", "--reason", strings.Repeat("x", 256))
	require.ErrorContains(t, err, "TEXT_TOO_LONG")

	require.Equal(t, []string{"maintenance", "off"}, columns(t, s.must("admin", "modes"), "maintenance"))
}

func TestInPopMaintenanceAPopIsToldWhyItGetsNothing(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	s.must("push", "orders", "x")
	s.must("admin", "mode", "set", "pop_maintenance", "on", "--reason", "moving")

	require.Eventually(t, func() bool { return s.must("pop", "orders", "-p", "none") != "nothing ready\n" }, upPatience, 50*time.Millisecond, "it has been read")
	require.Equal(t, "nothing is handed out, pops are in maintenance: moving\n", s.must("pop", "orders"))
	require.JSONEq(t, `{"lease":null,"deliveries":[],"pop_maintenance":{"reason":"moving"}}`, s.must("pop", "orders", "-o", "json"))
	s.must("admin", "mode", "set", "pop_maintenance", "off")
	require.Eventually(t, func() bool { return strings.Contains(s.must("pop", "orders", "-w", "10s"), "postrider ack orders") }, upPatience, 50*time.Millisecond)
}

// must returns what a command printed that has to succeed, at the first host.
func (r *running) must(key string, args ...string) string {
	r.t.Helper()
	args = append(args, "--key", key, "--addr", "127.0.0.1:"+strconv.Itoa(r.port+1))
	out, err := program(r.t.Context(), nil, args...).CombinedOutput()
	require.NoError(r.t, err, "%s", out)
	return string(out)
}

func TestUpBuffersPushesInMaintenanceAndShowsItsSpool(t *testing.T) {
	t.Parallel()
	r := startUp(t, upFolder(t), nil)
	key := r.await("key")
	r.await("ready in")
	run := func(args ...string) string { return r.must(key, args...) }
	run("push", "orders", "before")
	require.Contains(t, run("admin", "spool"), "idle")
	require.Contains(t, run("admin", "mesh"), "has no mesh: no_peers") // a lone host
	require.Contains(t, run("admin", "mesh", "-o", "json"), `"no_peers"`)
	run("admin", "mode", "set", "maintenance", "on", "--reason", "upgrade")

	pushed := run("push", "orders", "meanwhile")
	require.Contains(t, pushed, "buffered")
	var spool map[string]any
	require.NoError(t, json.Unmarshal([]byte(run("admin", "spool", "-o", "json")), &spool))
	require.Equal(t, []any{"buffering", "maintenance", "1"}, []any{spool["state"], spool["reason"], spool["records"]})

	run("admin", "mode", "set", "maintenance", "off")
	require.Eventually(t, func() bool { return strings.Contains(run("admin", "spool"), "idle") }, upPatience, 100*time.Millisecond)
	popped := run("pop", "orders", "-n", "5", "-w", "10s")
	require.Contains(t, popped, "before")
	require.Contains(t, popped, "meanwhile")
}

func TestUpKeepsSevenDaysOfQueuesThatDoNotChooseAndSaysSo(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		environ []string
		shown   string
	}{
		"unless told": {nil, "retention 168h"}, "or what it is told": {[]string{"POSTRIDER_DEFAULT_RETENTION=48h"}, "retention 48h"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := startUp(t, upFolder(t), c.environ)
			key := r.await("key")
			r.await("ready in")
			run := func(args ...string) string { return r.must(key, args...) }

			run("push", "orders", "x")
			run("queue", "configure", "chosen", "--retention", "1h")

			require.Contains(t, run("queue", "show", "orders"), c.shown)
			require.Contains(t, run("queue", "show", "chosen"), "retention 1h")
			require.Equal(t, c.environ == nil, strings.Contains(r.text(), "retention 168h: queues that do not choose drop what is older"))
		})
	}
}
