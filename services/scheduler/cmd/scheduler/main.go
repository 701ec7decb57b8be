// Command scheduler runs one scheduler.
package main

import (
	"os"

	"postrider.dev/pkg/run"
	"postrider.dev/services/scheduler"
)

func main() { os.Exit(run.Main("scheduler", scheduler.Defaults(), scheduler.Run)) }
