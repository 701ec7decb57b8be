package dispatcher_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"postrider.dev/services/dispatcher"
)

func TestDefaultsAreValidOnceTheDatabaseIsNamed(t *testing.T) {
	t.Parallel()
	cfg := dispatcher.Defaults()
	require.ErrorContains(t, cfg.Validate(), "DATABASE_URL")

	cfg.DatabaseURL = "postgres://localhost/postrider"

	require.NoError(t, cfg.Validate())
}

func TestValidateReportsEveryProblem(t *testing.T) {
	t.Parallel()
	cfg := dispatcher.Defaults()
	cfg.DatabaseURL = "postgres://localhost/postrider"
	cfg.PoolSize = 2
	cfg.Addr = "0.0.0.0:7404"
	cfg.RepollMin, cfg.RepollMax = time.Second, time.Millisecond
	cfg.ViewBytes = 0
	cfg.ParkedPops = -1

	err := cfg.Validate()

	for _, name := range []string{"POOL_SIZE", "ADDR", "REPOLL_MAX", "VIEW_BYTES", "PARKED_POPS"} {
		require.ErrorContains(t, err, name)
	}
}
