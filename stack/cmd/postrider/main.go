// Command postrider is the command line of Postrider, and with `up` the whole of it in one process: see package cli.
package main

import (
	"os"

	"postrider.dev/stack/internal/cli"
)

func main() { os.Exit(cli.Main()) }
