package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"postrider.dev/pkg/redisconn"
	"postrider.dev/pkg/run"
)

// Main runs the command with the process's arguments, streams and environment and returns the exit code: 0 done, 1 failed, 2 called wrongly,
// 130 cut short by a second signal.
func Main() int {
	redisconn.SilenceDriver()
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)
	s := Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr, Getenv: os.Getenv, Environ: os.Environ()} //nolint:forbidigo // the command's own surroundings
	ctx, cancel := context.WithCancel(context.Background())                                              //nolint:forbidigo // the root of the process
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- New(s, run.BuildInfo().Version).ExecuteContext(ctx) }() //nolint:contextcheck // cobra carries it; awaited below, unless a second signal ends the process
	stopping := false
	for {
		select {
		case err := <-ended:
			return exitCode(err, stopping)
		case <-signals:
			if stopping {
				return run.ExitInterrupted
			}
			stopping = true
			cancel()
		}
	}
}

func exitCode(err error, stopping bool) int {
	switch {
	case err == nil, stopping && errors.Is(err, context.Canceled):
		return run.ExitOK
	case errors.Is(err, ErrUsage):
		_, _ = fmt.Fprintln(os.Stderr, "postrider:", err)
		return run.ExitUsage
	default:
		_, _ = fmt.Fprintln(os.Stderr, "postrider:", Explain(err))
		return run.ExitFailed
	}
}
