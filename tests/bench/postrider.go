package bench

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"time"

	postrider "postrider.dev/sdk"
)

// Target is a running Postrider.
type Target struct {
	HTTP, GRPC, Key string
}

// clients per target: one connection's flow control must not be what is measured.
const clients = 4

// Postrider are the workloads and trials through the API.
func Postrider(t Target) ([]Workload, []Trial, func(), error) {
	pool := make([]*postrider.Client, clients)
	for i := range pool {
		c, err := postrider.Dial([]string{t.GRPC}, t.Key)
		if err != nil {
			return nil, nil, nil, err
		}
		pool[i] = c
	}
	web := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 512, MaxConnsPerHost: 512}}
	closeAll := func() {
		for _, c := range pool {
			_ = c.Close()
		}
		web.CloseIdleConnections()
	}
	var list []Workload
	for _, batch := range []int{1, 100} {
		for _, callers := range []int{1, 64, 256} {
			list = append(list, grpcPush(pool, batch, callers, false), restPush(t, web, batch, callers))
		}
	}
	list = append(list, grpcPush(pool, 1, 256, true))
	list = append(list, grpcPop(pool, 100, 8), endToEnd(pool, 100, 8, 8), endToEnd(pool, 1, 32, 32))
	return list, Trials(pool), closeAll, nil
}

// variants is how many different requests a caller sends in turn. All callers' differ, so no segment holds the same payload twice.
const variants = 4

func batchOf(n, caller int) []postrider.Message {
	list := make([]postrider.Message, n)
	for i := range list {
		list[i] = postrider.Message{Partition: fmt.Sprintf("caller-%d", caller), Payload: Payload(PayloadBytes)}
	}
	return list
}

// keyedEach follows the name of a push whose messages have an idempotency key each.
const keyedEach = ", idempotency key each"

func pushName(how string, batch, callers int) string {
	return fmt.Sprintf("push %s, batch %d, %d callers", how, batch, callers)
}

func endToEndName(batch, producers, consumers int) string {
	return fmt.Sprintf("push + pop + ack gRPC, batch %d, %d producers, %d consumers", batch, producers, consumers)
}

func grpcPush(pool []*postrider.Client, batch, callers int, keyed bool) Workload {
	name := pushName("gRPC stream", batch, callers)
	if keyed {
		name += keyedEach
	}
	batches := make([][]postrider.Message, callers)
	for i := range batches {
		batches[i] = batchOf(batch, i)
	}
	var serial atomic.Int64
	return Workload{Name: name, Class: durable, Callers: callers, Op: func(ctx context.Context, caller int) (int, error) {
		list := batches[caller]
		if keyed {
			list = append([]postrider.Message(nil), list...)
			for i := range list {
				list[i].IdempotencyKey = fmt.Sprintf("key-%d", serial.Add(1))
			}
		}
		results, err := pool[caller%len(pool)].Push(ctx, "bench-push", list...)
		return len(results), errors.Join(err, firstError(results))
	}}
}

func firstError(results []postrider.PushResult) error {
	for _, r := range results {
		if r.Err != nil {
			return r.Err
		}
	}
	return nil
}

// restPush pushes binary payloads, so that a message is as large as over gRPC.
func restPush(t Target, web *http.Client, batch, callers int) Workload {
	bodies := make([][variants][]byte, callers)
	var made error
	for caller := range bodies {
		for i := range variants {
			items := make([]map[string]any, batch)
			for j := range items {
				items[j] = map[string]any{
					"partition": fmt.Sprintf("caller-%d", caller), "payload_base64": base64.StdEncoding.EncodeToString(Payload(PayloadBytes)),
					"content_type": "application/octet-stream",
				}
			}
			var err error
			bodies[caller][i], err = json.Marshal(map[string]any{"items": items})
			made = errors.Join(made, err)
		}
	}
	turns := make([]int, callers) // each caller has its own
	return Workload{
		Name: pushName("REST", batch, callers), Class: durable, Callers: callers,
		Op: func(ctx context.Context, caller int) (int, error) {
			if made != nil {
				return 0, made
			}
			turns[caller]++
			return batch, post(ctx, web, t.HTTP+"/v1/queues/bench-push/messages", t.Key, bodies[caller][turns[caller]%variants])
		},
	}
}

func post(ctx context.Context, web *http.Client, url, key string, body []byte) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("request: %w", err)
	}
	req.Header.Set("Authorization", "Bearer "+key)
	req.Header.Set("Content-Type", "application/json")
	resp, err := web.Do(req)
	if err != nil {
		return fmt.Errorf("post: %w", err)
	}
	defer resp.Body.Close() //nolint:errcheck // read to its end
	answer, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusCreated {
		err = fmt.Errorf("status %d: %s", resp.StatusCode, answer)
	}
	return err
}

// grpcPop measures pop and ack alone: the ack of one lease travels with the next pop of the same consumer.
func grpcPop(pool []*postrider.Client, batch, consumers int) Workload {
	const filled = 400_000
	queue := fmt.Sprintf("bench-pop-%d", batch)
	return Workload{
		Name: fmt.Sprintf("pop + ack gRPC, batch %d, %d consumers", batch, consumers), Class: durable, Callers: consumers,
		Prepare: func(ctx context.Context) error {
			return fill(ctx, pool[0], queue, filled, func(i int) string { return fmt.Sprintf("p-%d", i%64) })
		},
		Op: func(ctx context.Context, caller int) (int, error) {
			return popAck(ctx, pool[caller%len(pool)], queue, batch)
		},
	}
}

func popAck(ctx context.Context, c *postrider.Client, queue string, batch int) (int, error) {
	lease, err := c.Pop(ctx, queue, postrider.PopOptions{Batch: batch, Wait: time.Second})
	if err != nil || lease == nil {
		return 0, err
	}
	if _, err := lease.Ack(ctx); err != nil {
		return 0, err
	}
	return len(lease.Deliveries), nil
}

// endToEnd pushes, pops and acks at once; what counts is what was acked.
func endToEnd(pool []*postrider.Client, batch, producers, consumers int) Workload {
	queue := fmt.Sprintf("bench-e2e-%d", batch)
	batches := make([][]postrider.Message, producers)
	for i := range batches {
		batches[i] = batchOf(batch, i)
	}
	var ahead atomic.Int64 // pushed and not acked: bounded, so that neither side runs away
	limit := int64(50 * batch * producers)
	return Workload{
		Name: endToEndName(batch, producers, consumers), Class: durable,
		Callers: producers + consumers,
		Op: func(ctx context.Context, caller int) (int, error) {
			c := pool[caller%len(pool)]
			if caller >= producers {
				n, err := popAck(ctx, c, queue, batch)
				ahead.Add(-int64(n))
				return n, err
			}
			if ahead.Load() > limit {
				n, err := popAck(ctx, c, queue, batch) // lend a hand instead of waiting
				ahead.Add(-int64(n))
				return n, err
			}
			results, err := c.Push(ctx, queue, batches[caller]...)
			ahead.Add(int64(len(results)))
			return 0, err
		},
	}
}
