// Package cli is the postrider command: a client of a fleet for people and scripts, and `up`, which runs one.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	postrider "postrider.dev/sdk"
)

// Streams are the command's standard streams and its environment.
type Streams struct {
	In       io.Reader
	Out, Err io.Writer
	// Getenv reads an environment variable.
	Getenv func(string) string
	// Environ lists all of them.
	Environ []string
}

// globals are the flags that every client command has.
type globals struct {
	Streams

	addr, key, output, dataDir string
	timeout                    time.Duration
}

// reachPatience is how long a command looks for a node that answers.
const reachPatience = 5 * time.Second

// errNobody says that no node answers.
var errNobody = errors.New("no node answers")

// ErrUsage is matched by errors that come from how the command was called.
var ErrUsage = errors.New("usage")

// New returns the command. version is what `postrider version` prints.
func New(s Streams, version string) *cobra.Command {
	g := &globals{Streams: s}
	root := &cobra.Command{
		Use:           "postrider COMMAND",
		Short:         "A highly available message broker on the PostgreSQL and Redis you already run",
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          noSuchCommand,
		RunE:          help,
		PersistentPreRunE: func(*cobra.Command, []string) error {
			if g.timeout <= 0 {
				return fmt.Errorf("%w: --timeout must be positive", ErrUsage)
			}
			if g.output != "table" && g.output != "json" {
				return fmt.Errorf("%w: --output is table or json, not %q", ErrUsage, g.output)
			}
			return nil
		},
	}
	f := root.PersistentFlags()
	f.StringVar(&g.addr, "addr", or(s.Getenv("POSTRIDER_ADDR"), "127.0.0.1:7401"), "gRPC address of a node, or several with commas [POSTRIDER_ADDR]")
	f.StringVar(&g.key, "key", "", "API key [POSTRIDER_API_KEY]; default: the admin key that `up` keeps in the data folder")
	f.StringVarP(&g.output, "output", "o", "table", "table for people, json for programs")
	f.StringVar(&g.dataDir, "data", or(s.Getenv("POSTRIDER_DATA"), ".postrider"), "data folder of `up` [POSTRIDER_DATA]")
	f.DurationVar(&g.timeout, "timeout", 30*time.Second, "how long a command may take, waiting aside")
	root.SetIn(s.In)
	root.SetOut(s.Out)
	root.SetErr(s.Err)
	root.AddCommand(newPush(g), newPop(g), newAck(g), newRenew(g), newRelease(g), newSubscribe(g), newLookup(g), newDelete(g), newPeek(g), newTransact(g), newQueue(g), newDLQ(g), newAdmin(g), newUp(g, version), newHost(g), newVersion(g, version))
	explainUsage(root)
	return root
}

func newVersion(g *globals, version string) *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if g.output == "json" {
				return g.printJSON(map[string]string{"version": version})
			}
			_, err := fmt.Fprintln(g.Out, "postrider", version)
			return err
		},
	}
}

// Explain turns an error into what a person can do about it.
func Explain(err error) string {
	if errors.Is(err, errNobody) {
		return err.Error() + "\nIs a node running? `postrider up` starts one; --addr names another."
	}
	e, ok := errors.AsType[*postrider.Error](err)
	if !ok {
		return err.Error()
	}
	switch e.Code {
	case "Unavailable", "STREAM_BROKEN":
		return err.Error() + "\nIs a node running? `postrider up` starts one; --addr names another."
	case "DeadlineExceeded":
		return err.Error() + "\nNo node answered in time; --timeout gives it longer."
	default:
		return err.Error()
	}
}

// client connects with the flags' address and key.
func (g *globals) client() (*postrider.Client, error) {
	key := or(g.key, g.Getenv("POSTRIDER_API_KEY"))
	if key == "" {
		text, err := os.ReadFile(adminKeyPath(g.dataDir))
		if err != nil {
			return nil, fmt.Errorf("%w: no API key: give --key or POSTRIDER_API_KEY, or run in the folder where `postrider up` was started", ErrUsage)
		}
		key = strings.TrimSpace(string(text))
	}
	return postrider.Dial(strings.Split(g.addr, ","), key)
}

// with runs f with a client and the flags' timeout, prolonged by wait.
func (g *globals) with(ctx context.Context, wait time.Duration, f func(context.Context, *postrider.Client) error) error {
	c, err := g.client() //nolint:contextcheck // it connects when it is first used
	if err != nil {
		return err
	}
	defer c.Close() //nolint:errcheck // the process ends
	ctx, cancel := context.WithTimeout(ctx, g.timeout+wait)
	defer cancel()
	if err := g.reach(ctx, c); err != nil {
		return err
	}
	return f(ctx, c)
}

// reach waits until a node answers. The client would look for one as long as the command may take; whoever types a command should learn sooner
// that nobody is there.
func (g *globals) reach(ctx context.Context, c *postrider.Client) error {
	looking, cancel := context.WithTimeout(ctx, reachPatience)
	defer cancel()
	if c.Connected(looking) == nil {
		return nil
	}
	if errors.Is(ctx.Err(), context.Canceled) {
		return context.Cause(ctx)
	}
	return fmt.Errorf("%w at %s", errNobody, g.addr)
}

func or(a, b string) string {
	if a != "" {
		return a
	}
	return b
}
