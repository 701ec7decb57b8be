package engine_test

import (
	"bytes"
	"context"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/dispatcher/internal/spool"
	"postrider.dev/services/dispatcher/internal/spool/spooltest"
	"postrider.dev/services/dispatcher/internal/store"
)

// content is all that is on the disk.
func content(t *testing.T, d *spooltest.Disk) string {
	t.Helper()
	names, err := d.List()
	require.NoError(t, err)
	var all strings.Builder
	for _, name := range names {
		f, err := d.Open(name)
		require.NoError(t, err)
		size, err := f.Size()
		require.NoError(t, err)
		b := make([]byte, size)
		_, err = f.ReadAt(b, 0)
		require.NoError(t, err)
		all.Write(b)
	}
	return all.String()
}

// to pushes messages to a queue, each its own request; all must be buffered.
func (s *spooling) to(queue string, items ...*queuev1.PushItem) {
	s.t.Helper()
	for _, it := range items {
		resp, err := s.Push(s.t.Context(), ten, &queuev1.PushRequest{Queue: queue, Items: []*queuev1.PushItem{it}})
		require.NoError(s.t, err)
		require.Equal(s.t, buffered, resp.GetResults()[0].GetStatus())
	}
}

// all is what a queue's log holds.
func (n *node) all(queue string) []string {
	n.t.Helper()
	var all []string
	for {
		resp := n.pop(&queuev1.PopRequest{Queue: queue, Group: "all", Batch: 1000})
		if resp.GetLease() == "" {
			return all
		}
		all = append(all, payloads(resp)...)
		n.ackAll(queue, resp.GetLease())
	}
}

func TestBufferedPushesOfAnEncryptedQueueAreSealedOnDiskAndDrainedOnceInOrder(t *testing.T) {
	t.Parallel()
	mode := &atomic.Bool{}
	url := database(t)
	s := newSpoolingWith(t, url, spooltest.New(), mode, 1<<20, master("m", 1))
	s.encrypted(nil)
	s.push("q", secretItem("0"))
	mode.Store(true)

	s.to("q", secretItem("1"), secretItem("2"), secretItem("3"))
	reused := secretItem("0")
	reused.Payload = []byte("secret-other")
	delayed := secretItem("4")
	delayed.Delay = seconds(3600)
	s.to("q", reused, delayed)
	disk := content(t, s.disk)
	require.Contains(t, disk, "\x01q", "the queue's name")
	require.NotContains(t, disk, "secret")

	mode.Store(false)
	s.awaitDrained()
	require.Equal(t, []string{"secret-payload-0", "secret-payload-1", "secret-payload-2", "secret-payload-3"}, s.all("q"))
	require.Equal(t, 1, s.waiting())
	s.comeDue()
	require.Equal(t, []string{"secret-payload-4"}, s.all("q"))
	requireNotAtRest(t, s.atRest(), "secret")
	letters, err := s.control.ListDeadLetters(t.Context(), ten, "q", store.DeadLetterFilter{Limit: 10})
	require.NoError(t, err)
	require.Len(t, letters, 1)
	letter, err := s.control.GetDeadLetter(t.Context(), ten, "q", letters[0].ID)
	require.NoError(t, err)
	require.Equal(t, "secret-other", string(letter.Payload))
	require.Contains(t, letter.LastError, "IDEMPOTENCY_KEY_REUSED")
}

func TestBufferedPushesWhoseKeyIsMissingWaitInTheSpoolAndThoseOfOthersAreDrained(t *testing.T) {
	t.Parallel()
	mode := &atomic.Bool{}
	url := database(t)
	first := newSpoolingWith(t, url, spooltest.New(), mode, 8<<20, master("m", 1))
	first.encrypted(nil)
	first.push("q", item("p", "0"))
	first.push("clear", item("p", "0"))
	mode.Store(true)
	want := []string{"0"}
	for i := range 30 {
		want = append(want, strconv.Itoa(i+1))
		first.to("q", item("p", want[i+1]))
		first.to("clear", item("p", want[i+1]))
	}
	disk := first.disk.Crash(nil)
	first.stop()

	mode.Store(false)
	for range 2 { // and again after a restart
		blind := newSpoolingWith(t, url, disk, mode, 8<<20, master("other", 2))
		eventually(t, func() error {
			state, _ := blind.Spool()
			return wantf(state.Records == 30 && state.Blocked == 30, "%+v", state)
		})
		require.Error(t, blind.KeysMissing(), "it is told")
		eventually(t, func() error {
			all := blind.metric("spool_drained_total")
			return wantf(all == 30, "%v are drained", all)
		})
		disk = blind.disk.Crash(nil)
		blind.stop()
	}

	last := newSpoolingWith(t, url, disk, mode, 8<<20, master("other", 2)+","+master("m", 1))
	last.awaitDrained()
	require.Equal(t, want, last.all("q"), "in order, once")
	require.Equal(t, want, last.all("clear"), "once, though it was drained by each")
	eventually(t, func() error { return wantf(serviceKeys(t, last.node) == 0, "the keys of what was drained stay") })
	state, _ := last.Spool()
	require.Zero(t, state.Blocked+int64(state.DamagedFiles))
}

func TestBufferedPushesAreDrainedWhenTheKeyComesBackWithoutARestart(t *testing.T) {
	t.Parallel()
	mode := &atomic.Bool{}
	url := database(t)
	s := newSpoolingWith(t, url, spooltest.New(), mode, 1<<20, master("m", 1))
	s.encrypted(nil)
	s.push("q", item("p", "0"))
	mode.Store(true)
	s.to("q", item("p", "1"), item("p", "2"))
	disk := s.disk.Crash(nil)
	s.stop()
	_, err := newNode(t, url, nodeOptions{}).db.Exec(t.Context(), "UPDATE dispatcher.queue_keys SET master_id = 'lost'")
	require.NoError(t, err)

	mode.Store(false)
	s = newSpoolingWith(t, url, disk, mode, 1<<20, master("m", 1))
	eventually(t, func() error {
		state, _ := s.Spool()
		return wantf(state.Blocked == 2, "%+v", state)
	})
	_, err = s.db.Exec(t.Context(), "UPDATE dispatcher.queue_keys SET master_id = 'm'")
	require.NoError(t, err)
	s.HintEverything()
	s.awaitDrained()
	require.Equal(t, []string{"0", "1", "2"}, s.all("q"))
}

func TestASealedRecordThatWasForgedIsSetAsideAndOthersAreDrained(t *testing.T) {
	t.Parallel()
	mode := &atomic.Bool{}
	url := database(t)
	first := newSpoolingWith(t, url, spooltest.New(), mode, 1<<20, master("m", 1))
	first.encrypted(nil)
	first.push("q", item("p", "0"))
	mode.Store(true)
	first.to("q", item("p", "1"))
	crashed := first.disk.Crash(nil)
	first.stop()
	nothing := func(spool.Entry) error { return nil }
	read, err := spool.Open(crashed, spool.Options{MaxBytes: 1 << 20, Log: zap.NewNop()}, nothing)
	require.NoError(t, err)
	entries, err := read.Read(0, 10, 1<<20)
	require.NoError(t, err)
	require.Len(t, entries, 1)
	require.NoError(t, read.Close())

	// A record of another spool, and one that was changed, in this one.
	disk := spooltest.New()
	forge, err := spool.Open(disk, spool.Options{MaxBytes: 1 << 20, Log: zap.NewNop()}, nothing)
	require.NoError(t, err)
	changed := bytes.Clone(entries[0].Payload)
	changed[len(changed)-1] ^= 1
	for _, payload := range [][]byte{entries[0].Payload, changed} {
		_, err = forge.Append(payload, func(uint64, error) {})
		require.NoError(t, err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, forge.Run(ended))
	require.NoError(t, forge.Close())

	mode.Store(false)
	s := newSpoolingWith(t, url, disk, mode, 1<<20, master("m", 1))
	s.awaitDrained()
	state, _ := s.Spool()
	require.Equal(t, 2, state.DamagedFiles)
	require.Zero(t, state.Blocked)
	require.Equal(t, []string{"0"}, s.all("q"))
	mode.Store(true)
	s.to("q", item("p", "2"))
	mode.Store(false)
	s.awaitDrained()
	require.Equal(t, []string{"2"}, s.all("q"))
}

func TestBufferedPushesOfAnEncryptedQueueGoToNoQueueInClear(t *testing.T) {
	t.Parallel()
	mode := &atomic.Bool{}
	s := newSpoolingWith(t, database(t), spooltest.New(), mode, 1<<20, master("m", 1))
	s.encrypted(nil)
	s.push("q", item("p", "0"))
	mode.Store(true)
	s.to("q", secretItem("1"))
	_, err := s.control.DeleteQueue(t.Context(), byAdmin, "q", true)
	require.NoError(t, err)
	mode.Store(false)

	s.awaitDrained()
	state, _ := s.Spool()
	require.Equal(t, 1, state.DamagedFiles, "it is kept, sealed")
	requireNotAtRest(t, s.atRest(), "secret")
	require.NotContains(t, content(t, s.disk), "secret")
}
