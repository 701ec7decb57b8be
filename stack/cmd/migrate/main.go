// Command migrate brings every service's schema to its newest version, under a lock, and says what it applied.
package main

import (
	"os"

	"postrider.dev/stack/internal/cli"
)

func main() { os.Exit(cli.MigrateMain()) }
