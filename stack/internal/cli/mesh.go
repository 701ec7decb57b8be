package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	adminv1 "postrider.dev/proto/gen/postrider/admin/v1"
	postrider "postrider.dev/sdk"
)

func newMesh(g *globals) *cobra.Command {
	return &cobra.Command{
		Use: "mesh", Short: "Show how the host that answers is joined to the others", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return g.with(cmd.Context(), 0, func(ctx context.Context, c *postrider.Client) error {
				m, err := c.Mesh(ctx)
				if err != nil {
					return err
				}
				if g.output == "json" {
					return g.printJSON(rawProto(m))
				}
				return g.printMesh(m)
			})
		},
	}
}

func (g *globals) printMesh(m *adminv1.Mesh) error {
	if !m.GetEnabled() {
		_, err := fmt.Fprintf(g.Out, "%s has no mesh: %s\n", m.GetHost(), m.GetReason())
		return err
	}
	rows := [][]any{}
	for _, p := range m.GetPeers() {
		rows = append(rows, []any{fmt.Sprintf("%s:%d", p.GetHost(), p.GetPort()), p.GetConnected(), p.GetResolvedIp(), p.GetServerId()})
	}
	if err := g.printTable("no peer is known", []string{"Peer", "Connected", "IP", "Server"}, rows); err != nil {
		return err
	}
	_, err := fmt.Fprintf(g.Out, "%s, port %d: %d alive, %d dead; sent %d, received %d, dropped %d; handshakes failed %d; secret: %t, TLS: %t\n",
		m.GetHost(), m.GetPort(), m.GetPeersAlive(), m.GetPeersDead(), m.GetMessagesSent(), m.GetMessagesReceived(), m.GetMessagesDropped(),
		m.GetHandshakeFailures(), m.GetSecured(), m.GetTls())
	return err
}
