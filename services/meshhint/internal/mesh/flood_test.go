package mesh_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"postrider.dev/pkg/run"
	"postrider.dev/services/meshhint/internal/mesh/frame"
)

func TestAThousandFailedHandshakesAreCountedEachAndHardlyWrittenDown(t *testing.T) {
	t.Parallel()
	core, told := observer.New(zap.WarnLevel)
	victim := start(t, settings("victim"), func(env *run.Env) { env.Log = zap.New(core) })
	began := time.Now()

	for range 1000 {
		conn := knock(t, victim)
		_, err := conn.Write(frame.Frame{Tag: frame.MaintenanceChanged, Payload: []byte(`{}`)}.Append(nil))
		require.NoError(t, err)
		closed(t, conn)
	}

	eventually(t, "each is counted", func() bool {
		return victim.metric(t, "handshake_failures_total", "side=accepted", "reason=malformed") == 1000
	})
	require.EqualValues(t, 1000, victim.Stats().HandshakeFailures)
	lines := told.FilterMessage("a handshake with this sidecar failed").Len()
	require.Positive(t, lines)
	require.LessOrEqual(t, lines, 1+int(time.Since(began)/(10*time.Second)), "one in ten seconds")
}
