package cli_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTransactDoesAFileOfOperationsOrSaysWhichIsAtFault(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	id := strings.Fields(s.must("push", "orders", `{"id": 7}`))[1]
	lease := leaseOf(t, s.must("pop", "orders", "--wait", "10s"))
	file := filepath.Join(t.TempDir(), "ops.json")
	write := func(action string) {
		require.NoError(t, os.WriteFile(file, []byte(`{"operations":[
			{"ack":{"queue":"orders","lease":"`+lease+`","settlements":[{"message_id":"`+id+`","action":"`+action+`"}]}},
			{"push":{"queue":"invoices","items":[{"partition":"p","payload":{"order": 7}},{"payload_base64":"AAE=","delay":"1h"}]}}]}`), 0o600))
	}
	write("eat")
	_, _, err := s.run("transact", "-f", file)
	require.ErrorContains(t, err, `"eat" is none of ack, nack and reject`)
	write("ack")

	done := s.must("transact", "-f", file, "--idempotency-key", "k")
	require.Equal(t, []string{"0", "settled", id}, columns(t, done, "0"))
	require.Equal(t, done, s.must("transact", "-f", file, "--idempotency-key", "k"))
	require.Contains(t, s.must("pop", "invoices"), `{"order": 7}`)
	_, stderr, err := s.run("transact", "-f", file, "--idempotency-key", "l")
	require.ErrorContains(t, err, "ALREADY_SETTLED")
	require.Contains(t, stderr, "operation 0: ALREADY_SETTLED")
	_, _, err = s.run("transact", "-f", filepath.Join(t.TempDir(), "none"))
	require.ErrorContains(t, err, "read operations")
}
