package spool_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"postrider.dev/services/dispatcher/internal/spool"
	"postrider.dev/services/dispatcher/internal/spool/spooltest"
)

// opened is a log with what its recovery showed.
type opened struct {
	*spool.Log

	disk  *spooltest.Disk
	shown []spool.Entry
}

func open(t testing.TB, disk *spooltest.Disk, opt spool.Options) *opened {
	t.Helper()
	o, err := tryOpen(disk, opt)
	require.NoError(t, err)
	return o
}

func tryOpen(disk *spooltest.Disk, opt spool.Options) (*opened, error) {
	if opt.MaxBytes == 0 {
		opt.MaxBytes = 1 << 20
	}
	opt.Log = zap.NewNop()
	o := &opened{disk: disk}
	var err error
	o.Log, err = spool.Open(disk, opt, func(e spool.Entry) error {
		o.shown = append(o.shown, spool.Entry{Seq: e.Seq, Payload: bytes.Clone(e.Payload)})
		return nil
	})
	return o, err
}

// put appends payloads in one batch and returns what became of each.
func (o *opened) put(t testing.TB, payloads ...string) (seqs []uint64, errs []error) {
	t.Helper()
	for i, p := range payloads {
		errs = append(errs, nil)
		seq, err := o.Append([]byte(p), func(_ uint64, err error) { errs[i] = err })
		errs[i] = err
		seqs = append(seqs, seq)
	}
	o.WriteAll()
	return seqs, errs
}

func (o *opened) texts() []string { return textsOf(o.shown) }

func textsOf(entries []spool.Entry) []string {
	out := []string{}
	for _, e := range entries {
		out = append(out, string(e.Payload))
	}
	return out
}

func (o *opened) files(t testing.TB) []string {
	t.Helper()
	names, err := o.disk.List()
	require.NoError(t, err)
	var out []string
	for _, name := range names {
		if strings.HasSuffix(name, ".spool") || strings.HasSuffix(name, ".damaged") {
			out = append(out, name)
		}
	}
	return out
}

func TestWhatIsAcknowledgedIsThereAfterACrashInItsOrder(t *testing.T) {
	t.Parallel()
	o := open(t, spooltest.New(), spool.Options{})

	_, errs := o.put(t, "a", "b", "c")
	require.Equal(t, []error{nil, nil, nil}, errs)
	_, err := o.Append([]byte("never written"), func(uint64, error) {})
	require.NoError(t, err)

	again := open(t, o.disk.Crash(nil), spool.Options{})
	require.Equal(t, []string{"a", "b", "c"}, again.texts())
	require.Equal(t, 3, again.Stats().Records)
	require.Equal(t, o.ID(), again.ID())
}

func TestConcurrentAppendsShareOneFsync(t *testing.T) {
	t.Parallel()
	o := open(t, spooltest.New(), spool.Options{})
	o.put(t, "the file is there")
	before := o.disk.Syncs()

	var payloads []string
	for i := range 100 {
		payloads = append(payloads, strconv.Itoa(i))
	}
	_, errs := o.put(t, payloads...)

	require.NoError(t, errors.Join(errs...))
	require.Equal(t, before+1, o.disk.Syncs())
}

func TestNothingIsReportedBeforeItsFsync(t *testing.T) {
	t.Parallel()
	o := open(t, spooltest.New(), spool.Options{})
	o.put(t, "a")

	o.disk.FailSync(func(int) bool { return true })
	_, errs := o.put(t, "b")
	require.ErrorIs(t, errs[0], spool.ErrUncertain)
	o.disk.FailSync(nil)
	_, errs = o.put(t, "c")
	require.NoError(t, errs[0])

	require.Equal(t, []string{"a", "c"}, open(t, o.disk.Crash(nil), spool.Options{}).texts())
}

func TestAFailedFsyncPoisonsItsFileAndItsBatchNeverComesBack(t *testing.T) {
	t.Parallel()
	o := open(t, spooltest.New(), spool.Options{})
	o.put(t, "a")
	failing := o.disk.Syncs() + 1

	o.disk.FailSync(func(n int) bool { return n == failing })
	_, errs := o.put(t, "b1", "b2")
	require.ErrorIs(t, errs[0], spool.ErrNotStored)
	require.ErrorIs(t, errs[1], spool.ErrNotStored)
	_, errs = o.put(t, "c")
	require.NoError(t, errs[0])

	require.Len(t, o.files(t), 2)
	got, err := o.Read(0, 10, 1<<20)
	require.NoError(t, err)
	require.Equal(t, []string{"a", "c"}, textsOf(got))
	for seed := range uint64(30) { // the disk may have kept any part of the batch
		again := open(t, o.disk.Crash(rng(seed)), spool.Options{})
		require.Equal(t, []string{"a", "c"}, again.texts())
		require.Zero(t, again.Stats().Damage)
	}
}

func TestAFullSpoolRefusesAndTakesAgainOnceItIsDrained(t *testing.T) {
	t.Parallel()
	o := open(t, spooltest.New(), spool.Options{MaxBytes: 4096})
	payload := strings.Repeat("x", 1000)

	seqs, errs := o.put(t, payload, payload, payload, payload)
	require.NoError(t, errors.Join(errs[:3]...))
	require.ErrorIs(t, errs[3], spool.ErrFull)
	require.LessOrEqual(t, o.Stats().Bytes, int64(4096))
	require.NoError(t, o.Drained(seqs[2], 3))
	require.Zero(t, o.Stats().Bytes)
	require.Empty(t, o.files(t))

	_, errs = o.put(t, payload, payload, payload)
	require.NoError(t, errors.Join(errs...))
}

func TestAFullDiskIsNoDamage(t *testing.T) {
	t.Parallel()
	o := open(t, spooltest.New(), spool.Options{})
	o.put(t, "a")

	o.disk.SetRoom(10) // cuts the write short
	_, errs := o.put(t, "b", "c")
	require.ErrorIs(t, errs[0], spool.ErrNotStored)
	require.ErrorIs(t, errs[1], spool.ErrNotStored)
	o.disk.SetRoom(-1)
	_, errs = o.put(t, "d")
	require.NoError(t, errs[0])

	for seed := range uint64(30) {
		again := open(t, o.disk.Crash(rng(seed)), spool.Options{})
		require.Equal(t, []string{"a", "d"}, again.texts())
		require.Zero(t, again.Stats().Damage)
	}
}

func TestADiskThatTheSpoolFilledIsEmptiedByDraining(t *testing.T) {
	t.Parallel()
	for _, restarted := range []bool{false, true} {
		o := open(t, spooltest.New(), spool.Options{})
		seqs, _ := o.put(t, "a", "b")
		o.disk.SetRoom(0)
		_, errs := o.put(t, "c")
		require.ErrorIs(t, errs[0], spool.ErrNotStored)
		if restarted {
			o = open(t, o.disk.Crash(nil), spool.Options{})
			require.Equal(t, []string{"a", "b"}, o.texts())
			o.disk.SetRoom(0)
		}

		require.NoError(t, o.Drained(seqs[1], 2), "the mark needs no room, restarted: %t", restarted)

		require.Empty(t, o.files(t))
		require.Equal(t, seqs[1], o.MarkedUpTo())
		_, errs = o.put(t, "d")
		require.NoError(t, errs[0], "there is room again")
		require.Equal(t, []string{"d"}, open(t, o.disk.Crash(nil), spool.Options{}).texts())
	}
}

func TestAWriteThatTheDiskCutsShortKeepsNothingAndNeedsNoRoomLater(t *testing.T) {
	t.Parallel()
	for room := range int64(100) { // in the header of a new file, in a record, between two
		o := open(t, spooltest.New(), spool.Options{})
		o.disk.SetRoom(room)
		_, errs := o.put(t, "short", "cut")
		require.ErrorIs(t, errs[0], spool.ErrNotStored)
		require.ErrorIs(t, errs[1], spool.ErrNotStored)
		require.Zero(t, o.Stats().Bytes, "what was not stored takes no room")
		require.Empty(t, open(t, o.disk.Crash(nil), spool.Options{}).texts())

		o.disk.SetRoom(-1)
		_, errs = o.put(t, "after")
		require.NoError(t, errs[0])
		require.Equal(t, []string{"after"}, open(t, o.disk.Crash(nil), spool.Options{}).texts())
	}
}

func TestATornEndIsCutOffAndCounted(t *testing.T) {
	t.Parallel()
	for _, tail := range []string{"x", strings.Repeat("\x00", 100), "\x5c\xd1\xe7\x52garbage that begins like a record"} {
		o := open(t, spooltest.New(), spool.Options{})
		o.put(t, "a", "b")
		name := o.files(t)[0]
		after := o.disk.Crash(nil)
		after.Spoil(name, func(b []byte) []byte { return append(b, tail...) })

		again := open(t, after, spool.Options{})
		require.Equal(t, []string{"a", "b"}, again.texts())
		require.Equal(t, int64(len(tail)), again.Stats().TornBytes)
		require.Zero(t, again.Stats().Damage)
		_, errs := again.put(t, "c")
		require.NoError(t, errs[0])
		require.Equal(t, []string{"a", "b", "c"}, open(t, again.disk.Crash(nil), spool.Options{}).texts())
	}
}

func TestDamageBeforeTheEndIsToldAndLosesNothingBehindIt(t *testing.T) {
	t.Parallel()
	o := open(t, spooltest.New(), spool.Options{})
	for _, p := range []string{"first", "second", "third", "fourth"} {
		o.put(t, p)
	}
	name := o.files(t)[0]
	after := o.disk.Crash(nil)
	after.Spoil(name, func(b []byte) []byte { return bytes.Replace(b, []byte("second"), []byte("sexond"), 1) })

	again := open(t, after, spool.Options{})
	require.Equal(t, []string{"first", "third", "fourth"}, again.texts())
	require.Equal(t, 1, again.Stats().Damage)
	read, err := again.Read(0, 10, 1<<20)
	require.NoError(t, err)
	require.Equal(t, []string{"first", "third", "fourth"}, textsOf(read))

	require.NoError(t, again.Drained(read[2].Seq, 3))
	require.Equal(t, []string{name + ".damaged"}, again.files(t), "it is kept for people")
	require.Equal(t, 1, again.Stats().DamagedFiles)
	require.Equal(t, 1, open(t, again.disk.Crash(rng(1)), spool.Options{}).Stats().DamagedFiles)
}

func TestADamagedHeaderOrAMissingEndIsDamageWhereMoreIsKnown(t *testing.T) {
	t.Parallel()
	for what, spoil := range map[string]func([]byte) []byte{
		"header": func(b []byte) []byte { b[9] ^= 1; return b },
		"end":    func(b []byte) []byte { return b[:len(b)-3] },
		"all":    func([]byte) []byte { return nil },
	} {
		o := open(t, spooltest.New(), spool.Options{FileBytes: 100})
		for i := range 9 {
			o.put(t, fmt.Sprintf("record %02d with something", i))
		}
		require.Greater(t, len(o.files(t)), 2)
		first := slicesMin(o.files(t))
		after := o.disk.Crash(nil)
		after.Spoil(first, spoil)

		again := open(t, after, spool.Options{FileBytes: 100})
		require.Equal(t, 1, again.Stats().Damage, what)
		require.Contains(t, again.texts(), "record 08 with something", what)
	}
}

func TestWhatWasDrainedDoesNotComeAgain(t *testing.T) {
	t.Parallel()
	o := open(t, spooltest.New(), spool.Options{FileBytes: 60})
	seqs, _ := o.put(t, "a")
	o.put(t, "b")
	o.put(t, "c")

	require.NoError(t, o.Drained(seqs[0], 1))

	require.Equal(t, []string{"b", "c"}, open(t, o.disk.Crash(nil), spool.Options{}).texts())
	require.Equal(t, seqs[0], o.MarkedUpTo())
}

func TestAMarkThatCannotBeReadOpensNothing(t *testing.T) {
	t.Parallel()
	o := open(t, spooltest.New(), spool.Options{})
	o.put(t, "a")
	after := o.disk.Crash(nil)
	after.Spoil("mark", func(b []byte) []byte { b[30] ^= 1; return b })

	_, err := tryOpen(after, spool.Options{})
	require.ErrorIs(t, err, spool.ErrDamagedMark)
}

func TestTwoProcessesDoNotShareAFolder(t *testing.T) {
	t.Parallel()
	path := t.TempDir() + "/spool"
	fs, err := spool.Folder(path)
	require.NoError(t, err)
	opt := spool.Options{MaxBytes: 1 << 20, Log: zap.NewNop()}
	nothing := func(spool.Entry) error { return nil }
	first, err := spool.Open(fs, opt, nothing)
	require.NoError(t, err)

	_, err = spool.Open(fs, opt, nothing)
	require.ErrorIs(t, err, spool.ErrLocked)

	require.NoError(t, first.Close())
	second, err := spool.Open(fs, opt, nothing)
	require.NoError(t, err)
	require.NoError(t, second.Close())
}

func TestARealFolderKeepsRecordsOverManyRuns(t *testing.T) {
	t.Parallel()
	fs, err := spool.Folder(t.TempDir())
	require.NoError(t, err)
	for run := range 3 {
		var shown []string
		l, err := spool.Open(fs, spool.Options{MaxBytes: 1 << 20, Log: zap.NewNop()}, func(e spool.Entry) error {
			shown = append(shown, string(e.Payload))
			return nil
		})
		require.NoError(t, err)
		require.Len(t, shown, min(run, 1)*2)
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- l.Run(ctx) }()

		stored := make(chan error, 2)
		for _, text := range []string{"x", "y"} {
			_, err = l.Append(fmt.Appendf(nil, "%s%d", text, run), func(_ uint64, err error) { stored <- err })
			require.NoError(t, err)
		}
		require.NoError(t, errors.Join(<-stored, <-stored))
		got, err := l.Read(l.MarkedUpTo(), 10, 1<<20)
		require.NoError(t, err)
		if run > 0 { // what the run before left is drained by this one
			require.Equal(t, shown, textsOf(got[:2]))
			require.NoError(t, l.Drained(got[1].Seq, 2))
		}
		stop()
		require.NoError(t, <-ended)
		_, err = l.Append([]byte("late"), func(uint64, error) {})
		require.ErrorIs(t, err, spool.ErrClosed)
		require.NoError(t, l.Close())
	}
}
