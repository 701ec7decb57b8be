package runtest_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"postrider.dev/pkg/run/runtest"
)

// The go command prints what the toolchain noted in a program; what the program says of itself must be the same.
func TestRaceIsWhatTheProgramWasBuiltWith(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	require.NoError(t, err)
	noted, err := exec.CommandContext(t.Context(), "go", "version", "-m", self).Output()
	require.NoError(t, err)

	raced := runtest.Race()

	require.Equal(t, strings.Contains(string(noted), "-race=true"), raced)
	require.Equal(t, raced, runtest.Bound(time.Second) == 10*time.Second)
	require.Equal(t, raced, runtest.Volume(2, 1) == 1)
}
