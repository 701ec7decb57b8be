package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	postrider "postrider.dev/sdk"
)

// Trial is a fixed piece of work that yields one value a round.
type Trial struct {
	Name string
	Run  func(ctx context.Context, round int) (float64, error)
}

const (
	drainName  = "drain of 200,000 partitions of one message, 4 consumers"
	drainCount = 200_000
	stuckName  = "pop p50 beside a stuck partition with 50,000 messages, to calm"
	stuckCount = 50_000
	stuckPops  = 200
)

// Trials are those through the API.
func Trials(pool []*postrider.Client) []Trial {
	return []Trial{
		{Name: drainName, Run: func(ctx context.Context, round int) (float64, error) {
			return drain(ctx, pool, fmt.Sprintf("bench-wide-%d", round))
		}},
		{Name: stuckName, Run: func(ctx context.Context, round int) (float64, error) {
			return besideStuck(ctx, pool[0], fmt.Sprintf("bench-calm-%d", round), fmt.Sprintf("bench-stuck-%d", round))
		}},
	}
}

// fill pushes count messages in full requests.
func fill(ctx context.Context, c *postrider.Client, queue string, count int, partition func(i int) string) error {
	const request = 1000
	for from := 0; from < count; from += request {
		list := make([]postrider.Message, min(request, count-from))
		for i := range list {
			list[i] = postrider.Message{Partition: partition(from + i), Payload: Payload(PayloadBytes)}
		}
		results, err := c.Push(ctx, queue, list...)
		if err := errors.Join(err, firstError(results)); err != nil {
			return fmt.Errorf("fill %s: %w", queue, err)
		}
	}
	return nil
}

// drain pops and acks one message of each of very many partitions, and returns the seconds that took.
func drain(ctx context.Context, pool []*postrider.Client, queue string) (float64, error) {
	if err := fill(ctx, pool[0], queue, drainCount, func(i int) string { return fmt.Sprintf("key-%d", i) }); err != nil {
		return 0, err
	}
	var left atomic.Int64
	left.Store(drainCount)
	began := time.Now()
	errs := make([]error, len(pool))
	var wg sync.WaitGroup
	for i, c := range pool {
		wg.Go(func() {
			for left.Load() > 0 && ctx.Err() == nil {
				n, err := popAck(ctx, c, queue, 1000)
				if err != nil {
					errs[i] = err
					return
				}
				left.Add(-int64(n))
			}
		})
	}
	wg.Wait()
	took := time.Since(began).Seconds()
	if left.Load() < 0 {
		errs = append(errs, fmt.Errorf("%d messages too many came out of %s", -left.Load(), queue))
	}
	return took, errors.Join(errs...)
}

// besideStuck pops from a calm queue and from one with a stuck partition in turn, and returns the ratio of the medians.
func besideStuck(ctx context.Context, c *postrider.Client, calm, stuck string) (float64, error) {
	if err := fill(ctx, c, stuck, 1, func(int) string { return "stuck" }); err != nil {
		return 0, err
	}
	held, err := c.Pop(ctx, stuck, postrider.PopOptions{Lease: time.Hour, Wait: 10 * time.Second})
	if err != nil || held == nil {
		return 0, errors.Join(err, errNothing)
	}
	if err := fill(ctx, c, stuck, stuckCount, func(int) string { return "stuck" }); err != nil {
		return 0, err
	}
	var took [2][]time.Duration
	for range stuckPops {
		for i, queue := range []string{calm, stuck} {
			d, err := popOther(ctx, c, queue)
			if err != nil {
				return 0, err
			}
			took[i] = append(took[i], d)
		}
	}
	slices.Sort(took[0])
	slices.Sort(took[1])
	if err := held.Release(ctx); err != nil {
		return 0, fmt.Errorf("release: %w", err)
	}
	return float64(took[1][stuckPops/2]) / float64(took[0][stuckPops/2]), nil
}

var errNothing = errors.New("nothing to pop where something is")

// popOther pushes a message of another partition and returns how long its pop takes.
func popOther(ctx context.Context, c *postrider.Client, queue string) (time.Duration, error) {
	if err := fill(ctx, c, queue, 1, func(int) string { return "other" }); err != nil {
		return 0, err
	}
	began := time.Now()
	lease, err := c.Pop(ctx, queue, postrider.PopOptions{Wait: 10 * time.Second})
	took := time.Since(began)
	if err != nil || lease == nil {
		return 0, errors.Join(err, errNothing)
	}
	_, err = lease.Ack(ctx)
	return took, err
}
