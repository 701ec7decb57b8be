package cli

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"postrider.dev/pkg/clock"
	"postrider.dev/stack"
	"postrider.dev/stack/internal/up"
)

func adminKeyPath(dataDir string) string { return filepath.Join(dataDir, up.AdminKeyFile) }

// maxHosts is how many hosts one machine runs: ports are ten apart, and a fleet of more is no use on one machine.
const maxHosts = 9

func newUp(g *globals, version string) *cobra.Command {
	var hosts, port int
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Run everything on this machine, on loopback: all services, a private PostgreSQL, an embedded Redis",
		Long: "Runs all services with a private PostgreSQL and an embedded Redis, whose data is kept in the data folder, until Ctrl-C.\n" +
			"POSTRIDER_DATABASE_URL and POSTRIDER_REDIS_URL name servers to use instead. --hosts 2 runs two hosts as separate processes.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if hosts < 1 || hosts > maxHosts {
				return fmt.Errorf("%w: --hosts is 1 to %d", ErrUsage, maxHosts)
			}
			if port < 1 || port > 65535-10*hosts {
				return fmt.Errorf("%w: --port %d is out of range", ErrUsage, port)
			}
			program, err := os.Executable()
			if err != nil {
				return fmt.Errorf("own path: %w", err)
			}
			_, _ = fmt.Fprintln(g.Out, "postrider", version)
			environ := append([]string{"POSTRIDER_LOG_LEVEL=warn", "POSTRIDER_LOG_FORMAT=console"}, g.Environ...)
			return up.Run(cmd.Context(), clock.Real{}, up.Options{
				Dir: g.dataDir, Hosts: hosts, Port: port, Environ: environ, Program: program, Out: g.Out, Logs: g.Err,
			})
		},
	}
	cmd.Flags().IntVar(&hosts, "hosts", 1, "how many hosts, each with its own ingress, dispatcher and sidecar")
	cmd.Flags().IntVar(&port, "port", 7400, "HTTP port of the first host; gRPC is one above, admin two; the next host is ten above")
	return cmd
}

// newHost runs one host of a fleet from the environment; `up --hosts` starts it.
func newHost(g *globals) *cobra.Command {
	return &cobra.Command{
		Use: "host", Short: "Run the services of one host in this process, configured by the environment", Args: cobra.NoArgs, Hidden: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return up.RunHost(cmd.Context(), g.Environ, g.Err, func(stack.Config) { _, _ = fmt.Fprintln(g.Out, up.ReadyLine) })
		},
	}
}
