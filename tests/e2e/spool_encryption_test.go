package e2e

import (
	"context"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	postrider "postrider.dev/sdk"
	"postrider.dev/tests/fleet"
)

// onDisk is the content of all files under a folder.
func onDisk(t *testing.T, dir string) string {
	t.Helper()
	var all []byte
	require.NoError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		all = append(all, content...)
		return err
	}))
	return string(all)
}

func TestWhatIsBufferedOrDelayedOfAnEncryptedQueueIsNowhereInClearAndComesOnceAfterAKill(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := fleet.StartProcesses(t, &binaries, 2, fleet.Spool(dir), "POSTRIDER_DISPATCHER_ENCRYPTION_KEYS="+masterKey(1),
		"POSTRIDER_DISPATCHER_MODES_REFRESH=1s", "POSTRIDER_INGRESS_MODES_REFRESH=1s") // the mode is known soon without hints too
	a, b := p.Client(t, 0), p.Client(t, 1)
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	_, err := a.Configure(ctx, "zebra", &queuev1.QueueOptions{Encryption: new(true)})
	require.NoError(t, err)
	push := func(c *postrider.Client, n int, delay time.Duration) postrider.PushResult {
		m := postrider.Message{Partition: "giraffe", Payload: fmt.Appendf(nil, "giraffe-%02d", n), ClientID: fmt.Sprint("giraffe-client-", n), Delay: delay}
		results, err := c.Push(ctx, "zebra", m)
		require.NoError(t, err)
		require.NoError(t, results[0].Err)
		return results[0]
	}
	push(a, 0, 0)
	later := push(a, -1, 3*time.Second) // no number of those that follow, however many they become
	require.NotEmpty(t, later.MessageID)
	_, err = b.SetMode(ctx, "maintenance", true, "upgrade")
	require.NoError(t, err)
	n := 0
	eventually(t, func() error { // the mode is known everywhere in a moment
		n++
		if !push(a, n, 0).Buffered {
			return fmt.Errorf("message %d was not buffered", n)
		}
		return nil
	})
	for range 20 {
		n++
		require.True(t, push(a, n, 0).Buffered)
	}

	disk := onDisk(t, dir)
	require.Contains(t, disk, "zebra")
	require.NotContains(t, disk, "giraffe")
	p.Hosts[0].Dispatcher.Kill()
	p.Hosts[0].Dispatcher.Start(t)
	p.Hosts[0].Dispatcher.AwaitReady(t)
	_, err = b.SetMode(ctx, "maintenance", false, "")
	require.NoError(t, err)
	eventually(t, func() error { return spoolsAreEmpty(ctx, b) })

	var got []string
	delayed := false
	for len(got) < n+1 || !delayed {
		lease := mustPop(t, b, "zebra", postrider.PopOptions{Batch: 100})
		for _, payload := range payloads(lease) {
			if payload == "giraffe--1" {
				delayed = true
			} else {
				got = append(got, payload)
			}
		}
		_, err := lease.Ack(ctx)
		require.NoError(t, err)
	}
	for i, payload := range got {
		require.Equal(t, fmt.Sprintf("giraffe-%02d", i), payload, "in order, once")
	}
	dump := atRest(t, p.Postgres.DSN("postgres"))
	require.NotContains(t, dump, "giraffe")
	require.NotContains(t, dump, hex.EncodeToString([]byte("giraffe")))
}
