// Command ingress runs the front door.
package main

import (
	"os"

	"postrider.dev/pkg/run"
	"postrider.dev/services/ingress"
)

func main() { os.Exit(run.Main("ingress", ingress.Defaults(), ingress.Run)) }
