// Package rest is a plain HTTP client of the queue verbs, for tests that must see the bytes as any HTTP client does.
package rest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync/atomic"
	"time"
)

// Client talks to some hosts: to the first that answers, moving on when one is away.
type Client struct {
	key   string
	bases []string
	http  *http.Client
	at    atomic.Int64
}

// New returns a client of the base URLs.
func New(key string, bases ...string) *Client {
	return &Client{key: key, bases: bases, http: &http.Client{
		Timeout: 90 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 64},
	}}
}

// Close drops idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Error is a problem+json answer.
type Error struct {
	Status int    `json:"status"`
	Code   string `json:"code"`
	Detail string `json:"detail"`
}

func (e *Error) Error() string { return fmt.Sprintf("%d %s: %s", e.Status, e.Code, e.Detail) }

// Item is one message to push. Payload is JSON, sent byte for byte.
type Item struct {
	Partition      string            `json:"partition,omitempty"`
	Payload        json.RawMessage   `json:"payload"`
	Headers        map[string]string `json:"headers,omitempty"`
	IdempotencyKey string            `json:"idempotency_key,omitempty"`
}

// Result is the fate of one item.
type Result struct {
	Status    string `json:"status"`
	MessageID string `json:"message_id"`
	Offset    int64  `json:"offset,string"`
}

// Delivery is one message handed out; Payload has the bytes as they came.
type Delivery struct {
	MessageID string            `json:"message_id"`
	Partition string            `json:"partition"`
	Offset    int64             `json:"offset,string"`
	Payload   json.RawMessage   `json:"payload"`
	Headers   map[string]string `json:"headers"`
	Attempt   int32             `json:"attempt"`
}

// Lease is the answer of a pop.
type Lease struct {
	Token      string     `json:"lease"`
	Deliveries []Delivery `json:"deliveries"`
}

// Push appends items and returns one result each. A host that is away is replaced by the next; the caller's idempotency keys make the repetition safe.
func (c *Client) Push(ctx context.Context, queue string, items []Item) ([]Result, error) {
	var out struct {
		Results []Result `json:"results"`
	}
	_, err := c.call(ctx, queue, "messages", map[string]any{"items": items}, &out)
	return out.Results, err
}

// Pop leases up to batch messages; nil when nothing was ready in time.
func (c *Client) Pop(ctx context.Context, queue, group string, batch int, wait, lease time.Duration) (*Lease, error) {
	body := map[string]any{"group": group, "batch": batch, "wait": wait.String(), "lease": lease.String()}
	out := &Lease{}
	status, err := c.call(ctx, queue, "pop", body, out)
	if err != nil || status == http.StatusNoContent {
		return nil, err
	}
	return out, nil
}

// Ack acks messages of a lease by id and returns each one's status.
func (c *Client) Ack(ctx context.Context, queue, lease string, ids []string) ([]string, error) {
	type settlement struct {
		MessageID string `json:"message_id"`
	}
	list := make([]settlement, len(ids))
	for i, id := range ids {
		list[i].MessageID = id
	}
	var out struct {
		Results []struct {
			Status string `json:"status"`
		} `json:"results"`
	}
	_, err := c.call(ctx, queue, "ack", map[string]any{"lease": lease, "settlements": list}, &out)
	statuses := make([]string, len(out.Results))
	for i, r := range out.Results {
		statuses[i] = r.Status
	}
	return statuses, err
}

// call posts a body, on the next host when one is away or going away.
func (c *Client) call(ctx context.Context, queue, verb string, body, out any) (int, error) {
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false) // payloads travel as they are
	if err := enc.Encode(body); err != nil {
		return 0, fmt.Errorf("encode: %w", err)
	}
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		select {
		case <-pause.C:
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
		at := c.at.Load()
		status, err := c.once(ctx, c.bases[int(at)%len(c.bases)]+"/v1/queues/"+url.PathEscape(queue)+"/"+verb, text.Bytes(), out)
		refused, answered := errors.AsType[*Error](err)
		if err == nil || (answered && refused.Status != http.StatusServiceUnavailable) {
			return status, err
		}
		c.at.CompareAndSwap(at, at+1)
		pause.Reset(50 * time.Millisecond)
	}
}

func (c *Client) once(ctx context.Context, target string, body []byte, out any) (int, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, target, bytes.NewReader(body))
	if err != nil {
		return 0, fmt.Errorf("request: %w", err)
	}
	req.Header.Set("Authorization", "Bearer "+c.key)
	req.Header.Set("Content-Type", "application/json")
	resp, err := c.http.Do(req)
	if err != nil {
		return 0, fmt.Errorf("call: %w", err)
	}
	defer resp.Body.Close() //nolint:errcheck // read to its end
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, fmt.Errorf("read answer: %w", err)
	}
	if resp.StatusCode >= http.StatusBadRequest {
		problem := &Error{Status: resp.StatusCode, Detail: string(answer)}
		_ = json.Unmarshal(answer, problem) // what is no problem+json is told as it is
		return resp.StatusCode, problem
	}
	if resp.StatusCode == http.StatusNoContent {
		return resp.StatusCode, nil
	}
	if err := json.Unmarshal(answer, out); err != nil {
		return resp.StatusCode, fmt.Errorf("decode answer: %w", err)
	}
	return resp.StatusCode, nil
}
