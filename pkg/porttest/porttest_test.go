package porttest_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"postrider.dev/pkg/porttest"
)

func TestAPortIsOneTestsUntilItsEnd(t *testing.T) {
	t.Parallel()
	const port = 9 // nobody's: tests take high ones

	t.Run("while it is held", func(t *testing.T) {
		require.True(t, porttest.Reserve(t, port))
		require.False(t, porttest.Reserve(t, port))
	})

	require.True(t, porttest.Reserve(t, port))
}
