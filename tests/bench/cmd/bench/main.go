// Command bench measures Postrider beside bare SQL: see package bench. `make bench` runs it.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"time"

	"postrider.dev/tests/bench"
)

func main() { os.Exit(run()) }

func run() int {
	program := flag.String("postrider", "bin/postrider", "the postrider program")
	match := flag.String("run", "", "only workloads whose name matches this expression")
	p := bench.Plan{Out: os.Stdout, Log: os.Stderr}
	flag.IntVar(&p.Rounds, "rounds", 5, "interleaved rounds; the table shows medians")
	flag.DurationVar(&p.Duration, "time", 3*time.Second, "length of a round of one workload")
	flag.BoolVar(&p.Strict, "strict", false, "every missed target is a failure, on a slow machine too")
	flag.StringVar(&p.Record, "record", "", "write the ratios to bare SQL to this file, as the new floors")
	flag.StringVar(&p.Profiles, "profile", "", "instead of measuring, write a CPU profile of the services for each workload to this folder and print the shares")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	var err error
	if *match != "" {
		p.Match, err = regexp.Compile(*match)
	}
	if err == nil {
		err = bench.Main(ctx, *program, p)
	}
	if err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "bench:", err)
		return 1
	}
	return 0
}
