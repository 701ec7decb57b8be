package cli_test

import (
	"encoding/json"
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

func TestTransactSendsTheOperationsAsTheyAreWritten(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	var ids []string
	for _, p := range []string{"a", "b", "c"} {
		ids = append(ids, strings.Fields(s.must("push", "orders", `{}`, "--partition", p))[1])
	}
	popped := s.must("pop", "orders", "--wait", "10s", "--batch", "3")
	lease := leaseOf(t, popped)
	file := filepath.Join(t.TempDir(), "ops.json")
	require.NoError(t, os.WriteFile(file, []byte(`{"operations":[
		{"ack":{"queue":"orders","lease":"`+lease+`","settlements":[
			{"message_id":"`+ids[2]+`","action":"nack","delay":"1h"},{"message_id":"`+ids[0]+`"},{"message_id":"`+ids[1]+`","action":"reject","reason":"no"}]}},
		{"push":{"queue":"invoices","items":[{"payload":1}]}}]}`), 0o600))

	done := s.must("transact", "-f", file, "-o", "json")

	var answer struct {
		Operations []struct {
			Pushed  []any
			Settled []struct{ MessageID string }
		}
	}
	require.NoError(t, json.Unmarshal([]byte(done), &answer))
	require.Len(t, answer.Operations, 2, "no operation is divided: %s", done)
	require.Len(t, answer.Operations[1].Pushed, 1)
	var settled []string
	for _, one := range answer.Operations[0].Settled {
		settled = append(settled, one.MessageID)
	}
	require.Equal(t, []string{ids[2], ids[0], ids[1]}, settled, "in the order of the file")
}
