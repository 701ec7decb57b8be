package run

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"go.uber.org/zap"

	"postrider.dev/pkg/config"
	"postrider.dev/pkg/obs"
)

// Exit codes of Main.
const (
	ExitOK          = 0   // a clean end: the context ended and everything drained
	ExitFailed      = 1   // the service failed, or healthcheck found it not ready
	ExitUsage       = 2   // wrong arguments or configuration
	ExitInterrupted = 130 // a second signal cut the drain short
)

// flushTimeout bounds the wait for the last spans.
const flushTimeout = 3 * time.Second

// Config is what Main needs of a service's configuration: a struct that embeds config.Common.
type Config interface {
	// Validate reports every problem at once.
	Validate() error
	// Shared returns the embedded config.Common.
	Shared() config.Common
}

// Main runs a service as a process and returns its exit code.
//
// The configuration is defaults overridden by the environment (package config). Arguments: -help-config prints every variable, -version the build,
// both as JSON with -json; the command "healthcheck" asks the running service's /readyz and fails unless it is ready. The first SIGTERM or
// SIGINT ends the context that fn runs with; on the second Main returns at once without waiting for fn.
func Main[C Config](name string, defaults C, fn func(context.Context, C, Env) error) int {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, os.Interrupt)
	defer signal.Stop(signals)
	p := process{name: name, args: os.Args[1:], environ: os.Environ(), signals: signals, stdout: os.Stdout, stderr: os.Stderr}
	return mainWith(p, defaults, fn)
}

// process is what Main takes from the operating system.
type process struct {
	name           string
	args           []string
	environ        []string
	signals        <-chan os.Signal
	stdout, stderr io.Writer
}

func mainWith[C Config](p process, defaults C, fn func(context.Context, C, Env) error) int {
	opts, err := p.parse()
	switch {
	case errors.Is(err, flag.ErrHelp):
		return ExitOK
	case err != nil:
		return ExitUsage
	case opts.version:
		return p.printVersion(opts.json)
	case opts.helpConfig:
		return p.printHelp(defaults, opts.json)
	}
	cfg, err := config.Load(p.name, defaults, p.environ)
	if err = errors.Join(err, cfg.Validate()); err != nil {
		p.printProblems(err)
		return ExitUsage
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if opts.healthcheck {
		return p.healthcheck(ctx, cfg.Shared())
	}
	return serve(ctx, p, cfg, fn)
}

func serve[C Config](ctx context.Context, p process, cfg C, fn func(context.Context, C, Env) error) int {
	env, flush, err := NewEnv(ctx, p.stderr, p.name, cfg.Shared(), p.getenv("OTEL_EXPORTER_OTLP_ENDPOINT"))
	if err != nil {
		_, _ = fmt.Fprintf(p.stderr, "%s: %v\n", p.name, err)
		return ExitFailed
	}
	routeTraceErrors(env.Log)
	build := BuildInfo()
	env.Log.Info("starting", zap.String(obs.KeyVersion, build.Version), zap.String("commit", build.Commit))

	code := supervise(ctx, p.signals, env.Log, func(ctx context.Context) error { return fn(ctx, cfg, env) })
	if code == ExitInterrupted {
		return code
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTimeout)
	defer cancel()
	if err := flush(ctx); err != nil {
		env.Log.Warn("the last spans are lost", obs.Err(err))
	}
	env.Log.Info("ended", zap.Int(obs.KeyStatus, code))
	_ = env.Log.Sync() // a terminal cannot be synced and says so
	return code
}

// supervise runs fn until it ends, ending its context at the first signal and leaving it behind at the second.
func supervise(ctx context.Context, signals <-chan os.Signal, log *zap.Logger, fn func(context.Context) error) int {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- Part{Name: "run", Run: fn}.guarded(ctx) }() // awaited below, unless a second signal ends the process
	for stopping := false; ; {
		select {
		case err := <-ended:
			if err != nil && (!stopping || !obeyed(err, context.Canceled)) {
				log.Error("failed", obs.Err(err))
				return ExitFailed
			}
			return ExitOK
		case sig := <-signals:
			if stopping {
				log.Warn("second signal: ending without waiting for the drain", zap.Stringer(obs.KeySignal, sig))
				return ExitInterrupted
			}
			stopping = true
			log.Info("draining", zap.Stringer(obs.KeySignal, sig))
			cancel()
		}
	}
}

type options struct {
	version, helpConfig, json, healthcheck bool
}

// parse has reported the problem when it returns an error.
func (p process) parse() (options, error) {
	var o options
	f := flag.NewFlagSet(p.name, flag.ContinueOnError)
	f.SetOutput(p.stderr)
	f.BoolVar(&o.helpConfig, "help-config", false, "print every configuration variable with its default and meaning")
	f.BoolVar(&o.version, "version", false, "print the version")
	f.BoolVar(&o.json, "json", false, "with -help-config or -version: print JSON")
	f.Usage = func() {
		_, _ = fmt.Fprintf(p.stderr, "%s is configured by environment variables; see -help-config.\n\nusage: %s [flags] [healthcheck]\n", p.name, p.name)
		f.PrintDefaults()
	}
	if err := f.Parse(p.args); err != nil {
		return o, err
	}
	switch {
	case f.NArg() == 0:
		return o, nil
	case f.NArg() == 1 && f.Arg(0) == "healthcheck":
		o.healthcheck = true
		return o, nil
	}
	_, _ = fmt.Fprintf(p.stderr, "%s: unknown arguments: %s\n", p.name, strings.Join(f.Args(), " "))
	f.Usage()
	return o, errors.New("unknown arguments")
}

func (p process) printVersion(asJSON bool) int {
	b := BuildInfo()
	if asJSON {
		return p.printJSON(b)
	}
	_, _ = fmt.Fprintf(p.stdout, "%s %s %s %s\n", p.name, b.Version, b.Commit, b.Go)
	return ExitOK
}

func (p process) printHelp(defaults any, asJSON bool) int {
	if asJSON {
		vars, err := config.List(p.name, defaults)
		if err != nil {
			p.printProblems(err)
			return ExitFailed
		}
		return p.printJSON(vars)
	}
	if err := config.Help(p.stdout, p.name, defaults); err != nil {
		p.printProblems(err)
		return ExitFailed
	}
	return ExitOK
}

func (p process) printJSON(v any) int {
	enc := json.NewEncoder(p.stdout)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(v); err != nil {
		p.printProblems(err)
		return ExitFailed
	}
	return ExitOK
}

// printProblems prints one line for each error that was joined.
func (p process) printProblems(err error) {
	_, _ = fmt.Fprintf(p.stderr, "%s: wrong configuration (see -help-config):\n", p.name)
	for line := range strings.SplitSeq(err.Error(), "\n") {
		_, _ = fmt.Fprintf(p.stderr, "  %s\n", line)
	}
}

func (p process) getenv(name string) string {
	for i := len(p.environ) - 1; i >= 0; i-- {
		if value, ok := strings.CutPrefix(p.environ[i], name+"="); ok {
			return value
		}
	}
	return ""
}
