package spool_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"postrider.dev/services/dispatcher/internal/spool"
	"postrider.dev/services/dispatcher/internal/spool/spooltest"
)

func rng(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 17)) }

func slicesMin(names []string) string { return slices.Min(names) }

// fate is what the test knows of a record.
type fate struct {
	payload string
	err     error
}

// world is a disk under a log that is used and killed at random, and what a user was told.
type world struct {
	t       *testing.T
	rand    *rand.Rand
	disk    *spooltest.Disk
	log     *opened
	told    map[uint64]fate
	drained uint64 // by a mark that was acknowledged
	tried   uint64 // by a mark whose fate is unknown
	count   int
	opt     spool.Options
}

// recovered checks what a new start finds: all that was acknowledged, nothing that was refused, each once and in order.
func (w *world) recovered() {
	w.t.Helper()
	last := uint64(0)
	seen := map[uint64]bool{}
	for _, e := range w.log.shown {
		require.Greater(w.t, e.Seq, last, "order")
		last = e.Seq
		seen[e.Seq] = true
		f, ok := w.told[e.Seq]
		require.True(w.t, ok, "record %d was never appended", e.Seq)
		require.Equal(w.t, f.payload, string(e.Payload))
		require.True(w.t, f.err == nil || errors.Is(f.err, spool.ErrUncertain), "record %d was refused with %v", e.Seq, f.err)
		require.Greater(w.t, e.Seq, w.drained, "drained records come again")
	}
	for seq, f := range w.told {
		if f.err == nil && seq > max(w.drained, w.tried) {
			require.True(w.t, seen[seq], "record %d was acknowledged and is lost", seq)
		}
	}
	require.Zero(w.t, w.log.Stats().Damage)
	require.Equal(w.t, len(w.log.shown), w.log.Stats().Records)
}

func (w *world) append() {
	type placed struct {
		seq uint64
		err error
	}
	var batch []*placed
	for range 1 + w.rand.IntN(5) {
		w.count++
		payload := fmt.Sprintf("%d:%s", w.count, strings.Repeat("y", w.rand.IntN(200)))
		p := &placed{err: errors.New("no answer")}
		seq, err := w.log.Append([]byte(payload), func(_ uint64, err error) { p.err = err })
		if err != nil {
			require.ErrorIs(w.t, err, spool.ErrFull)
			continue
		}
		p.seq = seq
		w.told[seq] = fate{payload: payload, err: p.err}
		batch = append(batch, p)
	}
	w.log.WriteAll()
	for _, p := range batch {
		w.told[p.seq] = fate{payload: w.told[p.seq].payload, err: p.err}
	}
	require.LessOrEqual(w.t, w.log.Stats().Bytes, w.opt.MaxBytes)
}

// drain reads on from the mark and checks that what is read is what was acknowledged, in order.
func (w *world) drain() {
	got, err := w.log.Read(w.log.MarkedUpTo(), 1+w.rand.IntN(6), 1+w.rand.IntN(2000))
	require.NoError(w.t, err)
	if len(got) == 0 {
		require.Zero(w.t, w.log.Stats().Records)
		return
	}
	for i, e := range got {
		require.Equal(w.t, w.told[e.Seq].payload, string(e.Payload))
		require.True(w.t, i == 0 || e.Seq > got[i-1].Seq)
	}
	for seq, f := range w.told {
		if f.err == nil && seq > w.log.MarkedUpTo() && seq < got[len(got)-1].Seq {
			require.True(w.t, slices.ContainsFunc(got, func(e spool.Entry) bool { return e.Seq == seq }), "record %d was passed over", seq)
		}
	}
	last := got[len(got)-1].Seq
	if err := w.log.Drained(last, len(got)); err != nil {
		w.tried = max(w.tried, last)
		return
	}
	w.drained = last
}

func (w *world) crash() {
	var keep *rand.Rand
	if w.rand.IntN(4) > 0 {
		keep = w.rand
	}
	w.disk = w.disk.Crash(keep)
	w.log = open(w.t, w.disk, w.opt)
	w.recovered()
	w.tried = 0
	kept := map[uint64]bool{}
	for _, e := range w.log.shown {
		kept[e.Seq] = true
	}
	for seq := range w.told { // numbers that nobody was told about may be given again
		if !kept[seq] {
			delete(w.told, seq)
		}
	}
	for seq, f := range w.told { // what came back is there for good
		w.told[seq] = fate{payload: f.payload}
	}
	w.drained = w.log.MarkedUpTo()
}

func TestEveryAcknowledgedRecordSurvivesAnyLossOfWhatWasNotSynced(t *testing.T) {
	t.Parallel()
	for seed := range uint64(200) {
		w := &world{
			t: t, rand: rng(seed), disk: spooltest.New(), told: map[uint64]fate{},
			opt: spool.Options{MaxBytes: 16 << 10, FileBytes: 600},
		}
		w.log = open(t, w.disk, w.opt)
		for range 60 {
			switch n := w.rand.IntN(20); {
			case n < 9:
				w.append()
			case n < 13:
				w.drain()
			case n < 15: // one fsync fails
				at := w.disk.Syncs() + 1 + w.rand.IntN(4)
				w.disk.FailSync(func(n int) bool { return n == at })
			case n < 16: // and all from there on
				at := w.disk.Syncs() + 1 + w.rand.IntN(4)
				w.disk.FailSync(func(n int) bool { return n >= at })
			case n < 17:
				w.disk.FailSync(nil)
				w.disk.SetRoom(int64(w.rand.IntN(400)))
			case n < 18:
				w.disk.FailSync(nil)
				w.disk.SetRoom(-1)
			default:
				w.crash()
			}
			if t.Failed() {
				t.Fatalf("seed %d", seed)
			}
		}
		w.crash()
	}
}

func FuzzParseRecord(f *testing.F) {
	f.Add(spool.Salted(1, 7, 48, []byte("payload")), byte(1))
	f.Add(spool.Salted(2, 1<<63, 0, []byte{0}), byte(1))
	f.Add([]byte{0x5c, 0xd1, 0xe7, 0x52, 255, 255, 255, 255}, byte(0))
	f.Add(make([]byte, 64), byte(0))
	f.Fuzz(func(t *testing.T, raw []byte, seed byte) {
		seq, payload, ok := spool.Parse(raw, seed)
		if !ok {
			return
		}
		require.NotEmpty(t, payload)
		batch := int64(uint32(raw[16]) | uint32(raw[17])<<8 | uint32(raw[18])<<16 | uint32(raw[19])<<24)
		require.Equal(t, raw[:24+len(payload)], spool.Salted(seed, seq, batch, payload))
	})
}

func FuzzOpenAnyFile(f *testing.F) {
	f.Add([]byte("nothing"), 0)
	f.Add(make([]byte, 200), 60)
	f.Add(spool.Salted(0, 9, 0, []byte("x")), 50)
	f.Fuzz(func(t *testing.T, raw []byte, at int) {
		o := open(t, spooltest.New(), spool.Options{})
		o.put(t, "first")
		o.put(t, "second")
		disk := o.disk.Crash(nil)
		disk.Spoil(o.files(t)[0], func(b []byte) []byte {
			at = max(0, min(at, len(b)))
			return append(b[:at:at], raw...)
		})

		again := open(t, disk, spool.Options{}) // whatever is there, it opens
		_, errs := again.put(t, "third")
		require.NoError(t, errs[0])
		require.Equal(t, "third", last(open(t, again.disk.Crash(nil), spool.Options{}).texts()))
	})
}

func last(texts []string) string { return texts[len(texts)-1] }
