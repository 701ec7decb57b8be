package conformance_test

import (
	"bytes"
	"encoding/base64"
	"testing"
	"time"

	"postrider.dev/stack"
	"postrider.dev/tests/conformance"
	"postrider.dev/tests/fleet"
)

func TestSurfaceAgainstTheWholeStack(t *testing.T) {
	t.Parallel()
	conformance.Run(t, whole(t, func(*stack.Config) {}))
}

func TestSurfaceOfWhatIsTrimmedLimitedAndEncrypted(t *testing.T) {
	t.Parallel()
	conformance.RunStored(t, whole(t, func(cfg *stack.Config) {
		cfg.Dispatcher.EncryptionKeys = fleet.Secret("m:" + base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{7}, 32)))
		cfg.Dispatcher.TrimEvery = 100 * time.Millisecond
	}))
}

func TestSurfaceOfWhatIsBuffered(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	conformance.RunBuffering(t, whole(t, func(cfg *stack.Config) {
		cfg.Dispatcher.SpoolDir = dir
		cfg.Dispatcher.ModesRefresh, cfg.Ingress.ModesRefresh = 300*time.Millisecond, 300*time.Millisecond
	}))
}

// whole is one host with all services.
func whole(t *testing.T, change func(*stack.Config)) conformance.Target {
	t.Helper()
	host := fleet.Start(t, fleet.Options{Change: func(_ int, cfg *stack.Config) { change(cfg) }}).Hosts[0]
	return conformance.Target{BaseURL: host.HTTP, GRPC: host.GRPC, Key: fleet.AdminKey}
}
