package partition

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	postrider "postrider.dev/sdk"
	"postrider.dev/tests/fleet"
)

const (
	startPatience = 60 * time.Second
	// askPatience bounds one question: a host that is cut off may have no answer.
	askPatience = 3 * time.Second
)

// within waits until a public fact holds, tells how long that took, and fails when it takes longer than the bound.
func (w *world) within(bound time.Duration, what string, fact func(context.Context) error) {
	w.t.Helper()
	took, err := await(w.t.Context(), bound, fact)
	if err != nil {
		w.t.Fatalf("%s: not so within %s: %v", what, bound, err)
	}
	w.t.Logf("%s after %.1f s", what, took.Seconds())
}

func ask(ctx context.Context, fact func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, askPatience)
	defer cancel()
	return fact(ctx)
}

// hears says that a host counts so many peers as alive and as dead.
func (w *world) hears(n, alive, dead int) func(context.Context) error {
	return func(ctx context.Context) error {
		m, err := w.hosts[n].client.Mesh(ctx)
		if err != nil {
			return err
		}
		if int(m.GetPeersAlive()) != alive || int(m.GetPeersDead()) != dead {
			return fmt.Errorf("host %d hears %d and misses %d, not %d and %d", n+1, m.GetPeersAlive(), m.GetPeersDead(), alive, dead)
		}
		return nil
	}
}

// connected says that a host is connected to so many peers.
func (w *world) connected(n, others int) func(context.Context) error {
	return func(ctx context.Context) error {
		m, err := w.hosts[n].client.Mesh(ctx)
		if err != nil {
			return err
		}
		up := 0
		for _, p := range m.GetPeers() {
			if p.GetConnected() {
				up++
			}
		}
		if up != others {
			return fmt.Errorf("host %d is connected to %d peers, not to %d: %v", n+1, up, others, m.GetPeers())
		}
		return nil
	}
}

// listed says that the node directory, as host n shows it, has all five services of the others' hosts online and those of host away dead; away < 0: none.
func (w *world) listed(n, away int) func(context.Context) error {
	return func(ctx context.Context) error {
		var list struct {
			Nodes []struct{ Host, Service, State string }
		}
		if err := w.get(ctx, w.hosts[n].http+"/v1/admin/nodes", &list); err != nil {
			return err
		}
		states := map[string]map[string]int{}
		for _, node := range list.Nodes {
			if states[node.Host] == nil {
				states[node.Host] = map[string]int{}
			}
			states[node.Host][node.State]++
		}
		for i := range w.hosts {
			want := map[string]int{"online": services}
			if i == away {
				want = map[string]int{"dead": services}
			}
			if got := states[fmt.Sprintf("host-%d", i+1)]; fmt.Sprint(got) != fmt.Sprint(want) {
				return fmt.Errorf("host %d shows those of host %d as %v, not %v", n+1, i+1, got, want)
			}
		}
		return nil
	}
}

// services are the nodes of a host.
const services = 5

// get asks the REST API.
func (w *world) get(ctx context.Context, url string, into any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+fleet.AdminKey)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close() //nolint:errcheck // read to its end
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", resp.Status, body)
	}
	if err != nil || into == nil {
		return err
	}
	return json.Unmarshal(body, into)
}

// whole says that every host is connected to both others, hears both, and lists all nodes as online.
func (w *world) whole(ctx context.Context) error {
	for _, fact := range []func(context.Context) error{w.meshed, w.directory} {
		if err := fact(ctx); err != nil {
			return err
		}
	}
	return nil
}

// meshed says that every host is connected to both others and hears both.
func (w *world) meshed(ctx context.Context) error {
	for n := range w.hosts {
		if err := errors.Join(w.hears(n, hosts-1, 0)(ctx), w.connected(n, hosts-1)(ctx)); err != nil {
			return err
		}
	}
	return nil
}

// directory says that every host lists all nodes as online.
func (w *world) directory(ctx context.Context) error {
	for n := range w.hosts {
		if err := w.listed(n, -1)(ctx); err != nil {
			return err
		}
	}
	return nil
}

// sessions counts a host's sessions at the database.
func (w *world) sessions(ctx context.Context, n int) (count int, err error) {
	conn, err := pgx.Connect(ctx, w.server.DSN("postgres"))
	if err != nil {
		return 0, err
	}
	defer conn.Close(ctx) //nolint:errcheck // the question is answered
	err = conn.QueryRow(ctx, "SELECT count(*) FROM pg_stat_activity WHERE client_addr = $1::inet", addressOf(n)).Scan(&count)
	return count, err
}

// parked says how many pops wait, on all hosts together.
func (w *world) parked(ctx context.Context) (count int, err error) {
	for _, h := range w.hosts {
		n, err := parkedAt(ctx, h.process.Admin)
		if err != nil {
			return 0, err
		}
		count += n
	}
	return count, nil
}

func parkedAt(ctx context.Context, admin string) (int, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+admin+"/metrics", nil)
	if err != nil {
		return 0, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close() //nolint:errcheck // read to its end
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err
	}
	for line := range strings.SplitSeq(string(body), "\n") {
		if value, ok := strings.CutPrefix(line, "postrider_dispatcher_parked_pops "); ok {
			return strconv.Atoi(value)
		}
	}
	return 0, errors.New("no count of parked pops")
}

// wake is how long a pop that is parked on one host takes to be served from the beginning of a push on another: the best of some. Nothing else may be
// popped meanwhile.
func (w *world) wake(from, to int) time.Duration {
	w.t.Helper()
	const queue = "wakes"
	best := time.Hour
	for range 3 {
		type answer struct {
			lease *postrider.Lease
			err   error
			at    time.Time
		}
		done := make(chan answer, 1)
		go func() { // sends once; received below
			lease, err := w.hosts[to].client.Pop(w.t.Context(), queue, postrider.PopOptions{Group: "g", Wait: 30 * time.Second})
			done <- answer{lease, err, time.Now()}
		}()
		w.quietly(startPatience, func(ctx context.Context) error {
			n, err := w.parked(ctx)
			if err == nil && n != 1 {
				err = fmt.Errorf("%d pops are parked", n)
			}
			return err
		})
		sent := time.Now()
		_, err := w.hosts[from].client.PushCommitted(w.t.Context(), queue, postrider.Message{Partition: "p", Payload: []byte("up")})
		require.NoError(w.t, err)
		a := <-done
		require.NoError(w.t, a.err)
		require.NotNil(w.t, a.lease, "the parked pop was never served")
		_, err = a.lease.Ack(w.t.Context())
		require.NoError(w.t, err)
		best = min(best, a.at.Sub(sent))
	}
	w.t.Logf("a push on host %d served a pop on host %d after %d ms, at best of three", from+1, to+1, best.Milliseconds())
	return best
}

// quietly is within without a word.
func (w *world) quietly(bound time.Duration, fact func(context.Context) error) {
	w.t.Helper()
	if _, err := await(w.t.Context(), bound, fact); err != nil {
		w.t.Fatalf("not so within %s: %v", bound, err)
	}
}

// await waits until a fact holds, and says how long that took, or why it did not hold within the bound.
func await(ctx context.Context, bound time.Duration, fact func(context.Context) error) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	began := time.Now()
	for why := error(nil); ; {
		err := ask(ctx, fact)
		if err == nil {
			return time.Since(began), nil
		}
		if why == nil || ctx.Err() == nil { // a question that the bound cut off says nothing
			why = err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return 0, why
		}
	}
}
