package conformance_test

import (
	"testing"

	"postrider.dev/tests/conformance"
	"postrider.dev/tests/fleet"
)

func TestSurfaceAgainstTheWholeStack(t *testing.T) {
	t.Parallel()
	host := fleet.Start(t, fleet.Options{}).Hosts[0]
	conformance.Run(t, conformance.Target{BaseURL: host.HTTP, GRPC: host.GRPC, Key: fleet.AdminKey})
}
