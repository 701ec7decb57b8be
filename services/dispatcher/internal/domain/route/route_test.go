package route_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"postrider.dev/services/dispatcher/internal/domain/route"
)

var (
	here  = route.Node{ID: "n1", Host: "here"}   //nolint:gochecknoglobals // a constant
	there = route.Record{NodeID: "n2", Epoch: 7} //nolint:gochecknoglobals // a constant
)

func TestAHostWithAConsumerClaimsWhatNobodyNeedsMore(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		facts  route.Facts
		claims bool
	}{
		"nobody holds it":                        {route.Facts{}, true},
		"it holds it":                            {route.Facts{Record: route.Record{NodeID: "n1", Epoch: 3}, Host: "here"}, false},
		"it holds it, and the directory is late": {route.Facts{Record: route.Record{NodeID: "n1", Epoch: 3}}, false},
		"the holder is not online":               {route.Facts{Record: there}, true},
		"the holder is of the same host":         {route.Facts{Record: there, Host: "here"}, false},
		"the holder's host has no consumer":      {route.Facts{Record: there, Host: "there"}, true},
		"the holder's host has a consumer":       {route.Facts{Record: there, Host: "there", Consumed: true}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, c.claims, c.facts.Claims(here))
			require.Equal(t, route.Record{NodeID: "n1", Epoch: c.facts.Record.Epoch + 1}, c.facts.Next(here))
		})
	}
}

// world is the simplest there can be: a registry of one queue, who is online, which hosts have consumers.
type world struct {
	record    route.Record
	online    map[string]bool // by node
	consumers map[string]int  // by host
}

func (w *world) nodes() []route.Node {
	var out []route.Node
	for host := range 3 {
		for node := range 2 {
			out = append(out, route.Node{ID: fmt.Sprintf("n%d%d", host, node), Host: fmt.Sprintf("h%d", host)})
		}
	}
	return out
}

func (w *world) facts() route.Facts {
	f := route.Facts{Record: w.record}
	for _, n := range w.nodes() {
		if n.ID == w.record.NodeID && w.online[n.ID] {
			f.Host, f.Consumed = n.Host, w.consumers[n.Host] > 0
		}
	}
	return f
}

// try is what a store does: compare and set.
func (w *world) try(f route.Facts, self route.Node) (claimed bool) {
	if !f.Claims(self) || w.record.Epoch != f.Record.Epoch {
		return false
	}
	w.record = f.Next(self)
	return true
}

// round lets every node of a host that has consumers look and decide, on facts of now.
func (w *world) round() (claims int) {
	for _, n := range w.nodes() {
		if w.online[n.ID] && w.consumers[n.Host] > 0 && w.try(w.facts(), n) {
			claims++
		}
	}
	return claims
}

func TestWhateverHappensTheRouteSettlesAtAHostWithConsumersAndStaysThere(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := &world{online: map[string]bool{}, consumers: map[string]int{}}
		nodes := w.nodes()
		var late []func()
		pick := func(label string) route.Node { return rapid.SampledFrom(nodes).Draw(t, label) }
		t.Repeat(map[string]func(*rapid.T){
			"start":  func(*rapid.T) { w.online[pick("node").ID] = true },
			"die":    func(*rapid.T) { w.online[pick("node").ID] = false },
			"attach": func(*rapid.T) { w.consumers[pick("host").Host]++ },
			"detach": func(*rapid.T) { w.consumers[pick("host").Host] = 0 },
			"look": func(*rapid.T) { // decides now, and writes when much may have changed
				n, f := pick("node"), w.facts()
				late = append(late, func() {
					before := w.record
					if w.try(f, n) {
						require.Equal(t, f.Record, before, "what was decided on an old record is not written")
						require.Equal(t, before.Epoch+1, w.record.Epoch)
					} else {
						require.Equal(t, before, w.record)
					}
				})
			},
			"write": func(*rapid.T) {
				for _, fn := range late {
					fn()
				}
				late = nil
			},
			"": func(t *rapid.T) {
				kept, held := w.record, w.facts()
				claims := w.round()
				require.LessOrEqual(t, claims, 1, "who comes second finds it held")
				if held.Consumed {
					require.Equal(t, kept, w.record, "the first host that has consumers keeps it")
				}
				if now := w.facts(); claims > 0 {
					require.True(t, now.Consumed)
				}
				require.Zero(t, w.round(), "and then it rests")
			},
		})
	})
}
