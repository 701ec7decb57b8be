// Command audit runs one audit service.
package main

import (
	"os"

	"postrider.dev/pkg/run"
	"postrider.dev/services/audit"
)

func main() { os.Exit(run.Main("audit", audit.Defaults(), audit.Run)) }
