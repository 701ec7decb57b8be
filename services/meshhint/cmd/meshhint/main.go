// Command meshhint is the sidecar of a host: see package meshhint.
package main

import (
	"os"

	"postrider.dev/pkg/run"
	"postrider.dev/services/meshhint"
)

func main() { os.Exit(run.Main("meshhint", meshhint.Defaults(), meshhint.Run)) }
