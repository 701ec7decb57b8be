// Command dispatcher runs one dispatcher.
package main

import (
	"os"

	"postrider.dev/pkg/run"
	"postrider.dev/services/dispatcher"
)

func main() { os.Exit(run.Main("dispatcher", dispatcher.Defaults(), dispatcher.Run)) }
