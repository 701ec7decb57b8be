package up

import (
	"context"
	"fmt"
	"io"
	"net"
	"strconv"

	"postrider.dev/pkg/run"
	"postrider.dev/stack"
)

// RunHost serves one host with what the environment says until ctx ends. ready is called once when every service is ready.
func RunHost(ctx context.Context, environ []string, logs io.Writer, ready func(stack.Config)) error {
	cfg, err := stack.Load(environ)
	if err != nil {
		return err
	}
	if err := cfg.Validate(); err != nil {
		return err
	}
	env, flush, err := run.NewEnv(ctx, logs, "postrider", cfg.Meshhint.Common, getenv(environ, "OTEL_EXPORTER_OTLP_ENDPOINT"))
	if err != nil {
		return err
	}
	defer flush(context.WithoutCancel(ctx)) //nolint:errcheck // the last spans of a process that ends
	return stack.Run(ctx, cfg, env, func() { ready(cfg) })
}

// Ports are the listeners of one host, by purpose.
type Ports struct{ HTTP, GRPC, Admin, Mesh, Internal int }

// PortsOf gives the ports of the nth host (from 0), ten apart.
func PortsOf(base, n int) Ports {
	p := base + 10*n
	return Ports{HTTP: p, GRPC: p + 1, Admin: p + 2, Mesh: p + 3, Internal: p + 4}
}

// Check returns an error that names the first port that is taken, before anything slow is started. Only a host with peers needs those for them.
func (p Ports) Check(ctx context.Context, peers bool) error {
	needed := []int{p.HTTP, p.GRPC, p.Admin}
	if peers {
		needed = append(needed, p.Mesh, p.Internal)
	}
	for _, port := range needed {
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", loopback(port))
		if err != nil {
			return fmt.Errorf("port %d is taken by another program (%w); --port chooses others, for example --port %d", port, err, p.HTTP+100)
		}
		if err := l.Close(); err != nil {
			return fmt.Errorf("port %d: %w", port, err)
		}
	}
	return nil
}

// environ are the settings of a host on these ports. With peers its dispatcher and its sidecar can be reached by them.
func (p Ports) environ(peers bool) []string {
	environ := []string{
		"POSTRIDER_INGRESS_HTTP_ADDR=" + loopback(p.HTTP),
		"POSTRIDER_INGRESS_GRPC_ADDR=" + loopback(p.GRPC),
		"POSTRIDER_ADMIN_ADDR=" + loopback(p.Admin),
	}
	if peers {
		environ = append(environ, "POSTRIDER_DISPATCHER_ADDR="+loopback(p.Internal), "POSTRIDER_MESH_LISTEN="+loopback(p.Mesh))
	}
	return environ
}

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
