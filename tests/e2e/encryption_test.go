package e2e

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"postrider.dev/pkg/pg"
	"postrider.dev/pkg/redistest"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	postrider "postrider.dev/sdk"
	"postrider.dev/stack"
	"postrider.dev/tests/fleet"
)

// masterKey is a setting of one master key, named m.
func masterKey(fill byte) string {
	return "m:" + base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{fill}, 32))
}

// withKeys are the options of hosts that have these master keys.
func withKeys(o fleet.Options, keys string) fleet.Options {
	o.Change = func(_ int, cfg *stack.Config) { cfg.Dispatcher.EncryptionKeys = fleet.Secret(keys) }
	return o
}

// atRest is all that the dispatchers' tables hold, as text, bytes in hex.
func atRest(t *testing.T, dsn string) (dump string) {
	t.Helper()
	conn, err := pg.Connect(t.Context(), dsn, pg.Options{})
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close(context.WithoutCancel(t.Context()))) }()
	require.NoError(t, conn.QueryRow(t.Context(), `SELECT string_agg(query_to_xml(format('SELECT t::text FROM %I.%I t', t.table_schema, t.table_name),
		true, false, '')::text, '') FROM information_schema.tables t WHERE t.table_schema IN ('dispatcher', 'audit')`).Scan(&dump))
	return dump
}

// secretMessage is one whose every text contains "giraffe".
func secretMessage(n string) postrider.Message {
	return postrider.Message{
		Partition: "giraffe-partition-" + n, Payload: []byte("giraffe-payload-" + n), ClientID: "giraffe-client-" + n,
		Headers: map[string]string{"giraffe-name": "giraffe-value"}, IdempotencyKey: "giraffe-key-" + n,
	}
}

func TestNothingOfAnEncryptedQueueIsAtRestInClearAndBothHostsReadIt(t *testing.T) {
	t.Parallel()
	o := withKeys(fleet.Options{Hosts: 2, RedisURL: redistest.Start(t).URL()}, masterKey(1))
	f := fleet.Start(t, o)
	a, b := f.Client(t, 0), f.Client(t, 1)
	_, err := a.Configure(t.Context(), "zebra", &queuev1.QueueOptions{Encryption: new(true)})
	require.NoError(t, err)
	for _, n := range []string{"1", "2", "3"} {
		results, err := a.Push(t.Context(), "zebra", secretMessage(n))
		require.NoError(t, err)
		require.NoError(t, results[0].Err)
	}

	dead := mustPop(t, b, "zebra", postrider.PopOptions{Partition: "giraffe-partition-2"})
	require.Equal(t, []string{"giraffe-payload-2"}, payloads(dead))
	_, err = dead.Reject(t.Context(), dead.Deliveries[0], "giraffe-reason")
	require.NoError(t, err)
	dump := atRest(t, f.DB.URL())

	require.Contains(t, dump, "zebra")
	require.NotContains(t, dump, "giraffe")
	require.NotContains(t, dump, hex.EncodeToString([]byte("giraffe")))
	for d, err := range a.DeadLetters(t.Context(), "zebra", "") {
		require.NoError(t, err)
		require.Equal(t, "giraffe-partition-2", d.GetPartition())
		require.Equal(t, "giraffe-reason", d.GetReason())
		whole, err := a.DeadLetter(t.Context(), "zebra", d.GetId())
		require.NoError(t, err)
		require.Equal(t, "giraffe-payload-2", string(whole.GetPayload()))
	}
	rest := mustPop(t, b, "zebra", postrider.PopOptions{Batch: 10})
	require.ElementsMatch(t, []string{"giraffe-payload-1", "giraffe-payload-3"}, payloads(rest))
}

func TestAHostWithoutTheKeyRefusesTheQueueAndServesAllOthers(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t).URL()
	f := fleet.Start(t, withKeys(fleet.Options{Hosts: 1, RedisURL: redis}, masterKey(1)))
	a := f.Client(t, 0)
	_, err := a.Configure(t.Context(), "zebra", &queuev1.QueueOptions{Encryption: new(true)})
	require.NoError(t, err)
	mustPush(t, a, "zebra", "p", "waits")
	f.Hosts[0].Stop()
	blind := f.StartHost(t, withKeys(fleet.Options{RedisURL: redis}, masterKey(2)))
	b := f.Client(t, 1)

	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second) // it is worth repeating, and the client does
	defer cancel()
	_, err = b.Pop(ctx, "zebra", postrider.PopOptions{})
	require.Error(t, err)
	mustPush(t, b, "clear", "p", "goes on")
	require.Equal(t, []string{"goes on"}, payloads(mustPop(t, b, "clear", postrider.PopOptions{})))
	blind.Stop()

	f.StartHost(t, withKeys(fleet.Options{RedisURL: redis}, masterKey(1)))
	require.Equal(t, []string{"waits"}, payloads(mustPop(t, f.Client(t, 2), "zebra", postrider.PopOptions{})))
}
