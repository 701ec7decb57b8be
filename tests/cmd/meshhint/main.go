// Command meshhint is the sidecar as fleets of processes run it when hints are to be lost: see package hintfault.
package main

import (
	"context"
	"os"

	"postrider.dev/pkg/run"
	"postrider.dev/services/meshhint"
	"postrider.dev/tests/hintfault"
)

func main() {
	os.Exit(run.Main("meshhint", meshhint.Defaults(), func(ctx context.Context, cfg meshhint.Config, env run.Env) error {
		seam, err := hintfault.Seam(hintfault.FromEnv())
		if err != nil {
			return err
		}
		return meshhint.RunWith(ctx, cfg, env, seam)
	}))
}
