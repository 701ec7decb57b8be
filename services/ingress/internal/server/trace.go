package server

import (
	"context"
	"errors"
	"strconv"

	"google.golang.org/grpc/metadata"

	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/ingress/internal/domain"
)

// traceHeader carries the trace of a message's producer to its consumer.
const traceHeader = "traceparent"

var errShortAnswer = errors.New("the dispatcher answered fewer items than it was sent")

type traceKey struct{}

// withTraceparent remembers the traceparent that a REST client sent.
func withTraceparent(ctx context.Context, value string) context.Context {
	if !validTraceparent(value) {
		return ctx
	}
	return context.WithValue(ctx, traceKey{}, value)
}

// traceparentOf returns what the client sent as traceparent, over either surface; empty if nothing valid.
func traceparentOf(ctx context.Context) string {
	if v, ok := ctx.Value(traceKey{}).(string); ok {
		return v
	}
	if v := metadata.ValueFromIncomingContext(ctx, traceHeader); len(v) == 1 && validTraceparent(v[0]) {
		return v[0]
	}
	return ""
}

// validTraceparent accepts version 00 of W3C Trace Context.
func validTraceparent(v string) bool {
	if len(v) != 55 || v[:3] != "00-" || v[35] != '-' || v[52] != '-' {
		return false
	}
	for i := range len(v) {
		hex := v[i] >= '0' && v[i] <= '9' || v[i] >= 'a' && v[i] <= 'f'
		if !hex && i != 2 && i != 35 && i != 52 {
			return false
		}
	}
	return true
}

// carryTrace puts the trace into the message's headers, unless the message has one or no room.
func carryTrace(it *queuev1.PushItem, traceparent string) {
	if traceparent == "" || it.GetHeaders()[traceHeader] != "" || len(it.GetHeaders()) >= domain.HeaderPairs {
		return
	}
	size := len(traceHeader) + len(traceparent)
	for k, v := range it.GetHeaders() {
		size += len(k) + len(v)
	}
	if size > domain.HeaderBytes {
		return
	}
	if it.Headers == nil {
		it.Headers = make(map[string]string, 1)
	}
	it.Headers[traceHeader] = traceparent
}

func itemField(i int, field string) string { return "items[" + strconv.Itoa(i) + "]." + field }
