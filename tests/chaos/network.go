package chaos

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	toxiproxy "github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
)

// network is what lies between the hosts: a proxy in front of each dispatcher, through which the ingresses of all hosts reach it, one in front of each
// sidecar's mesh, and one in front of Redis.
type network struct {
	t testing.TB

	mu      sync.Mutex // guards proxies
	proxies []*toxiproxy.Proxy
}

// through is fleet.ProcessOptions.Through.
func (n *network) through(name, addr string) string {
	server := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
	p := toxiproxy.NewProxy(server, name, "127.0.0.1:0", addr)
	require.NoError(n.t, p.Start())
	n.t.Cleanup(p.Stop)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.proxies = append(n.proxies, p)
	return p.Listen
}

// named are the proxies with one of these names.
func (n *network) named(names ...string) []*toxiproxy.Proxy {
	n.mu.Lock()
	defer n.mu.Unlock()
	var list []*toxiproxy.Proxy
	for _, p := range n.proxies {
		if slices.Contains(names, p.Name) {
			list = append(list, p)
		}
	}
	return list
}

// mesh is the proxy to a host's sidecar.
func mesh(host int) string { return fmt.Sprintf("mesh %d", host+1) }

// of are the proxies that a fault of the network strikes: those to a host's dispatcher and sidecar, and the one to Redis.
func (n *network) of(host int) []*toxiproxy.Proxy {
	return n.named("redis", fmt.Sprintf("dispatcher %d", host+1), mesh(host))
}

// slow delays all bytes, each way, by up to a fifth of a second.
func (n *network) slow(host int) action {
	return func(ctx context.Context, span time.Duration) error {
		for _, p := range n.of(host) {
			for _, way := range []string{"upstream", "downstream"} {
				toxic := fmt.Sprintf(`{"name":%q,"type":"latency","stream":%q,"attributes":{"latency":100,"jitter":100}}`, way, way)
				if _, err := p.Toxics.AddToxicJson(strings.NewReader(toxic)); err != nil {
					return fmt.Errorf("slow %s: %w", p.Name, err)
				}
			}
		}
		hold(ctx, span)
		for _, p := range n.of(host) {
			p.Toxics.ResetToxics(ctx)
		}
		return nil
	}
}

// cut breaks every connection and refuses new ones.
func (n *network) cut(host int) action { return n.without(n.of(host)) }

// cutMesh is cut for the connections of peers to a host's sidecar alone: that host hears nothing by the mesh, and is heard.
func (n *network) cutMesh(host int) action { return n.without(n.named(mesh(host))) }

func (n *network) without(proxies []*toxiproxy.Proxy) action {
	return func(ctx context.Context, span time.Duration) error {
		for _, p := range proxies {
			p.Stop()
		}
		hold(ctx, span)
		for _, p := range proxies {
			if err := p.Start(); err != nil {
				return fmt.Errorf("mend %s: %w", p.Name, err)
			}
		}
		return nil
	}
}
