package window_test

import (
	"testing"
	"time"

	"postrider.dev/services/dispatcher/internal/domain/queue"
	"postrider.dev/services/dispatcher/internal/domain/settled"
	"postrider.dev/services/dispatcher/internal/domain/window"
)

func policy(mode queue.Mode, onFailure queue.OnFailure) window.Policy {
	return window.Policy{Mode: mode, OnFailure: onFailure, MaxAttempts: 5, Backoff: queue.Backoff{Base: time.Second, Cap: time.Minute}}
}

func directory(base window.Offset, n int, hash func(i int) uint64) window.Directory {
	d := window.Directory{Base: base, Hashes: make([]uint64, n), Sizes: make([]uint32, n)}
	for i := range n {
		d.Hashes[i], d.Sizes[i] = hash(int(base)+i), 300
	}
	return d
}

func half() float64 { return 0.5 }

// benchPopAck lets one consumer ack its lease and pop the next in one plan, on a view of 16k messages.
func benchPopAck(b *testing.B, batch int, mode queue.Mode, keys int) {
	b.Helper()
	v, err := window.Load(window.Snapshot{Row: window.Row{ID: 1, Version: 1, Hot: settled.Start(0)}}, policy(mode, queue.Block))
	if err != nil {
		b.Fatal(err)
	}
	head := window.Offset(0)
	hash := func(i int) uint64 { return uint64(i%keys)*0x9E3779B97F4A7C15 + 1 }
	fill := func() {
		for {
			if _, listed := v.Ready(); listed > 14_900 {
				return
			}
			need, ok := v.Need(head)
			switch {
			case !ok:
				v.Admit(directory(head, 1000, hash))
				head += 1000
			case need.Keyed:
				v.AdmitKey(need.Hash, directory(need.From/1000*1000, 1000, hash))
			default:
				v.Admit(directory(need.From/1000*1000, 1000, hash))
			}
		}
	}
	pop := &window.Pop{MaxMessages: batch, MaxBytes: 4 << 20, Lease: 30 * time.Second, Holder: "c"}
	settle := &window.Settle{Items: []window.Item{{Offset: window.MaxOffset, Through: true, Verdict: window.Ack}}}
	requests := []window.Request{settle, pop}
	now := window.DBTime(1)
	fill()
	change, outs := v.Plan(now, half, []window.Request{pop})
	v.Commit(change, window.Stamp{At: now})
	settle.Epoch = outs[0].Epoch
	b.ReportAllocs()
	got := 0
	for i := 0; b.Loop(); i++ {
		if i%max(1, 2000/batch) == 0 {
			b.StopTimer()
			fill()
			b.StartTimer()
		}
		now += 100
		change, outs := v.Plan(now, half, requests)
		v.Commit(change, window.Stamp{At: now})
		settle.Epoch = outs[1].Epoch
		got += len(outs[1].Messages)
	}
	b.ReportMetric(float64(got)/float64(b.N), "messages/op")
}

func BenchmarkPopAck100(b *testing.B)        { benchPopAck(b, 100, queue.Ordered, 16_000) }
func BenchmarkPopAck100FewKeys(b *testing.B) { benchPopAck(b, 100, queue.Ordered, 160) }
func BenchmarkPopAck100Shared(b *testing.B)  { benchPopAck(b, 100, queue.Shared, 160) }
func BenchmarkPopAck1(b *testing.B)          { benchPopAck(b, 1, queue.Ordered, 16_000) }

// stuckWorld is one partition with a million messages held by a lease, and one message of others for each hundred of it.
func stuckWorld(b *testing.B) *sim {
	b.Helper()
	s := newSim(b, queue.Ordered, queue.Block)
	for base := range 1010 {
		hashes := ofKeyOne(1000)
		for i := 0; i < 1000; i += 100 {
			hashes[i] = uint64(2 + (base*10+i/100)%500)
		}
		s.log.Append(hashes...)
	}
	s.popKey(1, 1)
	return s
}

// BenchmarkStuckKey1M is a pop and an ack of 100 messages that lie between those of a stuck partition: the directories of 10,000
// messages are passed for each.
func BenchmarkStuckKey1M(b *testing.B) {
	s := stuckWorld(b)
	b.ReportAllocs()
	for b.Loop() {
		out := s.pop(100)
		if out.Result != window.Done {
			b.StopTimer()
			s = stuckWorld(b)
			b.StartTimer()
			continue
		}
		s.ackAll(out.Epoch)
	}
}

// BenchmarkColdStart1M loads a view whose stuck partition has a million messages behind it, and finds what the others have left.
func BenchmarkColdStart1M(b *testing.B) {
	s := stuckWorld(b)
	for out := s.pop(1000); out.Result == window.Done; out = s.pop(1000) {
		s.ackAll(out.Epoch)
	}
	s.log.Append(9)
	b.ReportAllocs()
	for b.Loop() {
		s.reload()
		if out := s.pop(1); len(out.Messages) != 1 {
			b.Fatal("nothing found")
		}
		b.StopTimer()
		s.do(&window.Release{Epoch: window.Epoch(uint64(s.v.Version()) << 16)})
		b.StartTimer()
	}
}
