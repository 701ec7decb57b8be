package leader_test

import (
	"context"
	"fmt"

	"postrider.dev/pkg/clock"
	"postrider.dev/pkg/leader"
	"postrider.dev/pkg/pg"
)

// A leader's write names its epoch, and the store refuses it when a newer one has been given out.
func Example() {
	run := func(ctx context.Context, dsn string, db *pg.DB) error {
		elector := leader.New(dsn, "sweeper", "roles.leaders", "host-1", clock.Real{}, leader.Config{})
		return elector.Run(ctx, func(ctx context.Context, term leader.Term) error {
			tag, err := db.Exec(ctx, `
				INSERT INTO sweeps (at) SELECT now() FROM roles.leaders WHERE role = 'sweeper' AND epoch = $1`, term.Epoch)
			if err != nil {
				return fmt.Errorf("sweep: %w", err)
			}
			if tag.RowsAffected() == 0 {
				return nil // somebody else leads: resign
			}
			<-ctx.Done()
			return nil
		})
	}
	_ = run
}
