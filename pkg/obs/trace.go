package obs

import (
	"context"
	"fmt"
	"net/url"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
)

// Origin names the process in traces.
type Origin struct {
	Service, Version, Host, Zone string
}

// NewTraces returns a tracer provider that exports to the OTLP gRPC endpoint, an http or https URL; without an endpoint it records nothing, while trace contexts
// still pass through. The function flushes and closes it. An unreachable endpoint is not an error: spans are dropped meanwhile.
func NewTraces(ctx context.Context, endpoint string, from Origin) (trace.TracerProvider, func(context.Context) error, error) {
	if endpoint == "" {
		return noop.NewTracerProvider(), func(context.Context) error { return nil }, nil
	}
	u, err := url.Parse(endpoint)
	if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
		return nil, nil, fmt.Errorf("trace endpoint: %q is not an http or https URL", endpoint)
	}
	exporter, err := otlptracegrpc.New(ctx, otlptracegrpc.WithEndpointURL(endpoint))
	if err != nil {
		return nil, nil, fmt.Errorf("open trace exporter: %w", err)
	}
	tp := sdktrace.NewTracerProvider(
		sdktrace.WithBatcher(exporter),
		sdktrace.WithResource(resource.NewSchemaless(
			attribute.String("service.namespace", Namespace),
			attribute.String("service.name", from.Service),
			attribute.String("service.version", from.Version),
			attribute.String("host.name", from.Host),
			attribute.String("postrider.zone", from.Zone),
		)),
	)
	return tp, tp.Shutdown, nil
}

// Recording reports whether tp may record spans; false is the provider that NewTraces returns without an endpoint.
func Recording(tp trace.TracerProvider) bool {
	_, off := tp.(noop.TracerProvider)
	return !off
}

// Propagator carries trace contexts over HTTP, gRPC and messages: W3C traceparent, tracestate and baggage.
func Propagator() propagation.TextMapPropagator {
	return propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{})
}
