package up

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"postrider.dev/pkg/clock"
	"postrider.dev/pkg/localpg"
	"postrider.dev/stack"
)

// Options of `postrider up`.
type Options struct {
	// Dir is the data folder.
	Dir string
	// Hosts is how many paired hosts to run: 1 in this process, more as processes of their own.
	Hosts int
	// Port is the first host's HTTP port; the others follow.
	Port int
	// Environ is the process's environment: POSTRIDER_DATABASE_URL and POSTRIDER_REDIS_URL name servers to use instead of private ones.
	Environ []string
	// Program is this program's own path, to run further hosts with.
	Program string
	// Out gets what people read, Logs the services' log lines.
	Out, Logs io.Writer
}

// stopPatience bounds the stop of the private servers.
const stopPatience = 20 * time.Second

// AdminKeyFile is the file in the data folder that holds the admin key.
const AdminKeyFile = "admin.key"

// Run runs hosts and what they stand on until ctx ends.
func Run(ctx context.Context, clk clock.Clock, o Options) error {
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return fmt.Errorf("data folder: %w", err)
	}
	o.Dir = dir
	for i := range o.Hosts {
		if err := PortsOf(o.Port, i).Check(ctx, o.Hosts > 1); err != nil {
			return err
		}
	}
	key, secret, err := secrets(o)
	if err != nil {
		return err
	}
	began := clk.Now()
	infra, err := StartInfra(ctx, clk, InfraOptions{
		Dir: o.Dir, DatabaseURL: getenv(o.Environ, "POSTRIDER_DATABASE_URL"), RedisURL: getenv(o.Environ, "POSTRIDER_REDIS_URL"), Hosts: o.Hosts,
		DownloadURL: getenv(o.Environ, "POSTRIDER_POSTGRES_DOWNLOAD_URL"), Progress: func(s string) { o.say("%s", s) },
	})
	if err != nil {
		return explain(o, err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopPatience)
		defer cancel()
		if err := infra.Close(ctx); err != nil {
			o.say("stopping the private servers: %v", err)
		}
	}()
	o.say("database  %s", infra.DatabaseNote)
	o.say("redis     %s", infra.RedisNote)
	kept, ok := retention(o.Environ)
	if !ok {
		kept = defaultRetention
		o.say("retention %s: queues that do not choose drop what is older (--help of `postrider queue configure` says how to choose)", kept)
	}
	environ := append(append([]string{retentionVar + "=" + kept}, o.Environ...),
		"POSTRIDER_DATABASE_URL="+infra.DatabaseURL, "POSTRIDER_REDIS_URL="+infra.RedisURL,
		"POSTRIDER_INGRESS_ADMIN_KEY="+key, "POSTRIDER_CLUSTER_SECRET="+secret)
	ready := func() { o.banner(clk.Since(began), key) }
	if o.Hosts > 1 {
		return runFleet(ctx, clk, o, environ, ready)
	}
	environ = append(append(environ, PortsOf(o.Port, 0).environ(false)...), o.spoolOf(0))
	return RunHost(ctx, environ, o.Logs, func(stack.Config) { ready() })
}

// What everything on one machine keeps: a disk is smaller than what a queue nobody thinks of may hold.
const (
	retentionVar     = "POSTRIDER_DISPATCHER_DEFAULT_RETENTION"
	defaultRetention = "168h"
)

// retention is what the environment says about queues that did not choose.
func retention(environ []string) (kept string, ok bool) {
	for _, name := range []string{"POSTRIDER_DEFAULT_RETENTION", retentionVar} { // the service's own one holds
		if v := getenv(environ, name); v != "" {
			kept, ok = v, true
		}
	}
	return kept, ok
}

// spoolOf is the setting of the nth host's spool: a folder of its own, under the data folder or where the environment says.
func (o Options) spoolOf(n int) string {
	const name = "POSTRIDER_DISPATCHER_SPOOL_DIR"
	base := getenv(o.Environ, name)
	if base == "" {
		base = filepath.Join(o.Dir, "spool")
	}
	return name + "=" + filepath.Join(base, fmt.Sprintf("host-%d", n+1))
}

// secrets are the admin key and the cluster secret: from the environment, or kept in the data folder, or made now.
func secrets(o Options) (key, secret string, err error) {
	key = getenv(o.Environ, "POSTRIDER_INGRESS_ADMIN_KEY")
	if key == "" {
		if key, err = Secret(o.Dir, AdminKeyFile, NewAdminKey); err != nil {
			return "", "", err
		}
	}
	secret = getenv(o.Environ, "POSTRIDER_CLUSTER_SECRET")
	if secret == "" {
		secret, err = Secret(o.Dir, "cluster.secret", RandomSecret)
	}
	return key, secret, err
}

func (o Options) say(format string, args ...any) { _, _ = fmt.Fprintf(o.Out, format+"\n", args...) }

// banner is what a newcomer needs next. Its first word tells scripts that the hosts are ready.
func (o Options) banner(took time.Duration, key string) {
	o.say("data      %s", o.Dir)
	for i := range o.Hosts {
		p := PortsOf(o.Port, i)
		o.say("%-9s http://%s   grpc %s   admin http://%s   docs http://%s/docs", fmt.Sprintf("host %d", i+1),
			loopback(p.HTTP), loopback(p.GRPC), loopback(p.Admin), loopback(p.HTTP))
	}
	o.say("key       %s", key)
	o.say("try       curl -s -H 'Authorization: Bearer %s' -H 'Content-Type: application/json' http://%s/v1/queues/hello/messages -d '{\"payload\":{\"n\":1}}'",
		key, loopback(PortsOf(o.Port, 0).HTTP))
	o.say("ready in %.1f s: http://%s (Ctrl-C stops)", took.Seconds(), loopback(PortsOf(o.Port, 0).HTTP))
}

// explain adds what to do.
func explain(o Options, err error) error {
	if _, ok := errors.AsType[*localpg.VersionError](err); ok {
		return fmt.Errorf("%w; install that version, or move %s away and start afresh", err, filepath.Join(o.Dir, "postgres"))
	}
	if errors.Is(err, localpg.ErrInUse) {
		return fmt.Errorf("%w; is `postrider up` running there already? --data chooses another folder", err)
	}
	return err
}

func getenv(environ []string, name string) string {
	value := ""
	for _, line := range environ {
		if v, ok := strings.CutPrefix(line, name+"="); ok {
			value = v
		}
	}
	return value
}

// hostLog opens the log file of the nth host.
func hostLog(dir string, n int) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, fmt.Sprintf("host-%d.log", n+1)), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600) //nolint:gosec // the folder is the user's own choice
	if err != nil {
		return nil, fmt.Errorf("log of host %d: %w", n+1, err)
	}
	return f, nil
}
