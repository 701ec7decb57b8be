package partition

import (
	"context"
	"flag"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"postrider.dev/pkg/pgtest"
	"postrider.dev/pkg/redisconn"
	"postrider.dev/pkg/redistest"
	"postrider.dev/tests/fleet"
)

// binaries are built once for all tests.
var binaries fleet.Binaries //nolint:gochecknoglobals // one build a test process

func TestMain(m *testing.M) {
	redisconn.SilenceDriver()
	flag.Parse()
	if err := flag.Set("test.parallel", "16"); err != nil { // the tests wait most of the time, each on a network of its own
		panic(err)
	}
	pgtest.Main(m, redistest.IgnoreProbe())
}

// start returns a world with clients at work, or skips the test, loudly, where the machine cannot cut networks.
func start(t *testing.T, o options) (*world, *load) {
	t.Helper()
	if err := unable(t.Context()); err != nil {
		t.Skipf("NO PARTITION IS TESTED: this machine has no network namespaces to cut: %v", err)
	}
	w := newWorld(t, &binaries, o)
	return w, w.work(t)
}

const (
	last = 2 // the host that is struck
	// soon is when others say that a host is away, and when its pushes go to its disk: 5 s of silence, and what a busy machine adds.
	soon = 15 * time.Second
	// back is when all is as before once the network is mended: docs/mesh.md.
	back = 15 * time.Second
	// prompt is what a wake takes less than, and a poll more often than not takes more than.
	prompt = 300 * time.Millisecond
)

// heals says that all is as before within back, and that nothing was lost.
func heals(t *testing.T, w *world, l *load) {
	t.Helper()
	healed := time.Now()
	w.within(back, "mended: the mesh is whole", w.meshed)
	w.within(back-time.Since(healed), "then: the directory is whole", w.directory)
	l.goesOn(back-time.Since(healed), 50)
	l.end()
	require.Less(t, max(w.wake(0, last), w.wake(last, 0)), prompt, "no wake crosses what was cut")
}

// cutOff says what is seen while nobody hears the last host, nor it them: the others work on, and it takes pushes.
func cutOff(t *testing.T, w *world, l *load) {
	t.Helper()
	w.within(soon, "cut: its host hears nobody", w.hears(last, 0, hosts-1))
	w.within(soon, "cut: host 1 misses it", w.hears(0, hosts-2, 1))
	w.within(soon, "cut: host 2 misses it", w.hears(1, hosts-2, 1))
	w.within(soon, "cut: the directory says so", w.listed(0, last))
	l.spools(soon)
	l.goesOn(soon, 50)
}

func TestAHostThatIsCutOffWhollyComesBackAndNothingIsLost(t *testing.T) {
	t.Parallel()
	w, l := start(t, options{})
	before, err := w.sessions(t.Context(), last)
	require.NoError(t, err)

	require.NoError(t, w.hub.ip(t.Context(), "link set "+portOf(last)+" down"))

	cutOff(t, w, l)
	require.NoError(t, w.hub.ip(t.Context(), "link set "+portOf(last)+" up"))
	heals(t, w, l)
	w.within(soon, "then: the sessions that it lost have ended", func(ctx context.Context) error {
		now, err := w.sessions(ctx, last)
		if err == nil && now > before+before/2 {
			err = fmt.Errorf("%d sessions, %d before", now, before)
		}
		return err
	})
}

func TestAHostThatCannotSendComesBackAndNothingIsLost(t *testing.T) {
	t.Parallel()
	w, l := start(t, options{})
	others := []string{shared, addressOf(0), addressOf(1)}

	for _, addr := range others {
		require.NoError(t, w.hosts[last].net.ip(t.Context(), "route add blackhole "+addr+"/32"))
	}

	cutOff(t, w, l)
	for _, addr := range others {
		require.NoError(t, w.hosts[last].net.ip(t.Context(), "route del blackhole "+addr+"/32"))
	}
	heals(t, w, l)
}

func TestAHostThatNobodyCanSendToComesBackAndNothingIsLost(t *testing.T) {
	t.Parallel()
	w, l := start(t, options{})
	others := []*namespace{w.hub, w.hosts[0].net, w.hosts[1].net}

	for _, n := range others {
		require.NoError(t, n.ip(t.Context(), "route add blackhole "+addressOf(last)+"/32"))
	}

	cutOff(t, w, l)
	for _, n := range others {
		require.NoError(t, n.ip(t.Context(), "route del blackhole "+addressOf(last)+"/32"))
	}
	heals(t, w, l)
}

func TestWhileAHostLosesThreePacketsOfTenWorkGoesOnAndNothingElseIsLost(t *testing.T) {
	t.Parallel()
	w, l := start(t, options{})
	drop := func(rule string) []string { return []string{rule + " numgen random mod 100 < 30 drop"} }

	require.NoError(t, w.hosts[last].net.filter(t.Context(), drop("iifname != lo"), nil))
	for _, n := range []*namespace{w.hub, w.hosts[0].net, w.hosts[1].net} {
		require.NoError(t, n.filter(t.Context(), drop("ip saddr "+addressOf(last)), nil))
	}

	l.goesOn(startPatience, 600)
	w.filters()
	heals(t, w, l)
}

func TestAfterAllConnectionsOfAHostWereResetItComesBackAndNothingIsLost(t *testing.T) {
	t.Parallel()
	w, l := start(t, options{})
	const reset = `"lo" meta l4proto tcp reject with tcp reset`

	require.NoError(t, w.hosts[last].net.filter(t.Context(), []string{"iifname != " + reset}, []string{"oifname != " + reset}))

	cutOff(t, w, l)
	require.NoError(t, w.hosts[last].net.filter(t.Context(), nil, nil))
	heals(t, w, l)
}

func TestWhileHostsHearEachOtherFiftyMillisecondsLateAllStayAliveAndWorkGoesOn(t *testing.T) {
	t.Parallel()
	w, l := start(t, options{slow: true})

	w.late.Store(int64(50 * time.Millisecond))

	l.goesOn(startPatience, 1000) // for some seconds
	w.within(soon, "late: the mesh is whole", w.meshed)
	w.within(soon, "late: the directory is whole", w.directory)
	l.end()
	require.Less(t, max(w.wake(0, last), w.wake(last, 0)), time.Second, "no more than some round trips")
	w.late.Store(0)
	require.Less(t, w.wake(0, last), prompt)
}

// meshCut cuts the sidecars off from one another, and nothing else.
func meshCut(t *testing.T, w *world, l *load) {
	t.Helper()
	w.filters("tcp dport "+meshPort+" drop", "tcp sport "+meshPort+" drop")
	for n := range w.hosts {
		w.within(soon, fmt.Sprintf("cut: host %d hears nobody", n+1), w.hears(n, 0, hosts-1))
	}
	w.within(soon, "cut: the directory is whole", w.directory)
	l.goesOn(soon, 300)
	require.Zero(t, l.buffered(), "nothing else changes")
	l.end()
}

func TestSidecarsThatAreCutOffFromEachOtherWakeThroughRedis(t *testing.T) {
	t.Parallel()
	w, l := start(t, options{})

	meshCut(t, w, l)

	require.Less(t, max(w.wake(0, last), w.wake(last, 0)), prompt)
	w.filters()
	w.within(back, "mended: the mesh is whole", w.meshed)
}

func TestSidecarsThatAreCutOffFromEachOtherWithoutRedisLeaveItToThePoll(t *testing.T) {
	t.Parallel()
	w, l := start(t, options{env: []string{"POSTRIDER_HINT_CARRIERS=tcp"}})
	require.Zero(t, l.buffered())

	meshCut(t, w, l)

	require.Less(t, max(w.wake(0, last), w.wake(last, 0)), 3*time.Second, "a shared poll comes each second")
	w.filters()
	w.within(back, "mended: the mesh is whole", w.meshed)
	require.Less(t, max(w.wake(0, last), w.wake(last, 0)), prompt)
}
