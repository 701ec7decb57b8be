package conformance

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
)

// Subscribe returns the first n events that are no heartbeats.
func (c overGRPC) Subscribe(ctx context.Context, req *queuev1.SubscribeRequest, n int) ([]*queuev1.SubscribeEvent, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.queue.Subscribe(ctx, req)
	if err != nil {
		return nil, fromStatus(err)
	}
	var out []*queuev1.SubscribeEvent
	for len(out) < n {
		m, err := stream.Recv()
		if err != nil {
			return out, fromStatus(err)
		}
		for _, e := range m.GetEvents() {
			if e.GetHeartbeat() == nil {
				out = append(out, e)
			}
		}
	}
	return out[:n], nil
}

// Subscribe reads server-sent events.
func (c overREST) Subscribe(ctx context.Context, req *queuev1.SubscribeRequest, n int) ([]*queuev1.SubscribeEvent, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	values := url.Values{"partitions": req.GetPartitions()}
	for name, value := range map[string]string{"from": req.GetFrom(), "resume": req.GetResume(), "skip_origin": req.GetSkipOrigin()} {
		if value != "" {
			values.Set(name, value)
		}
	}
	for name, value := range req.GetHeaders() {
		values.Set("headers["+name+"]", value)
	}
	get, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+queue(req.GetQueue())+"/subscribe?"+values.Encode(), nil)
	if err != nil {
		return nil, err
	}
	get.Header.Set("Authorization", "Bearer "+c.key)
	resp, err := c.http.Do(get)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close() //nolint:errcheck // what is left of it is not wanted
	if resp.StatusCode != http.StatusOK {
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			return nil, err
		}
		return nil, (&Answer{Status: resp.StatusCode, Header: resp.Header, Body: body}).problem()
	}
	return readEvents(resp.Body, n)
}

// readEvents reads n events of an event stream.
func readEvents(body io.Reader, n int) ([]*queuev1.SubscribeEvent, error) {
	var out []*queuev1.SubscribeEvent
	var id, name string
	var data []string
	for lines := bufio.NewScanner(body); len(out) < n && lines.Scan(); {
		field, value, _ := strings.Cut(lines.Text(), ": ")
		switch {
		case field == "id":
			id = value
		case field == "event":
			name = value
		case field == "data":
			data = append(data, value)
		case lines.Text() == "" && data != nil:
			e := &queuev1.SubscribeEvent{}
			if err := decode(fmt.Appendf(nil, "{%q:%q,%q:%s}", "resume", id, name, strings.Join(data, "\n")), e); err != nil {
				return out, err
			}
			out, data = append(out, e), nil
		}
	}
	if len(out) < n {
		return out, io.ErrUnexpectedEOF
	}
	return out, nil
}
