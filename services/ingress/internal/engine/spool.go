package engine

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	adminv1 "postrider.dev/proto/gen/postrider/admin/v1"
	dispatcherv1 "postrider.dev/proto/gen/postrider/private/dispatcher/v1"
)

// spoolTimeout bounds the question of one dispatcher.
const spoolTimeout = 2 * time.Second

// unreachable is the state of a spool whose dispatcher did not answer.
const unreachable = "unreachable"

// Spools asks every dispatcher that is known for its spool, the draining ones too. It needs no database.
func (x *Exchange) Spools(ctx context.Context) []*adminv1.Spool {
	x.mu.Lock()
	peers := slices.Clone(x.peers)
	x.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, spoolTimeout)
	defer cancel()
	out := make([]*adminv1.Spool, len(peers))
	var asked sync.WaitGroup
	for i, p := range peers {
		asked.Go(func() {
			resp, err := p.client.GetSpool(ctx, &dispatcherv1.GetSpoolRequest{})
			if err != nil {
				out[i] = &adminv1.Spool{Address: p.target.Addr, State: unreachable}
				return
			}
			out[i] = resp.GetSpool()
			out[i].Address = p.target.Addr
		})
	}
	asked.Wait()
	slices.SortFunc(out, func(a, b *adminv1.Spool) int {
		return cmp.Or(cmp.Compare(a.GetHost(), b.GetHost()), cmp.Compare(a.GetAddress(), b.GetAddress()))
	})
	return out
}
