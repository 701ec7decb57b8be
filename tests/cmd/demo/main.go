// Command demo shows Postrider on real messages: two hosts, one killed, every promise checked. `make demo` runs it.
package main

import (
	"os"

	"postrider.dev/tests/demo"
)

func main() { os.Exit(demo.Main()) }
