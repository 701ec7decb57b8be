package engine

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/dispatcher/internal/domain/invalid"
	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/queue"
	"postrider.dev/services/dispatcher/internal/store"
)

// checkLater refuses what can be refused without the database's time.
func checkLater(item *queuev1.PushItem) error {
	at, delay := item.GetDeliverAt(), item.GetDelay()
	switch {
	case at != nil && delay != nil:
		return invalid.New(invalid.OutOfRange, "deliver_at", "must not be given beside delay")
	case at != nil && at.CheckValid() != nil:
		return invalid.New(invalid.OutOfRange, "deliver_at", "is no time")
	case delay != nil && delay.CheckValid() != nil:
		return invalid.New(invalid.OutOfRange, "delay", "is no duration")
	case delay != nil:
		return queue.CheckDeliveryDelay("delay", delay.AsDuration())
	}
	return nil
}

// laterOf reads an item that passed checkLater.
func laterOf(item *queuev1.PushItem) later {
	var l later
	switch {
	case item.GetDeliverAt() != nil:
		l.at = item.GetDeliverAt().AsTime()
	case item.GetDelay() != nil:
		l.after = item.GetDelay().AsDuration()
	}
	if l.is() {
		_, _ = rand.Read(l.pending[:]) // never fails
	}
	return l
}

// errTooFar is what is wrong with a time of delivery that only the database's clock can tell.
var errTooFar = invalid.New(invalid.OutOfRange, "deliver_at", "is too far ahead: at most %v is allowed", queue.MaxDeliveryDelay)

// due is when the item is due, and whether that is still to come. now is the database's time.
func (l *later) due(now time.Time) (at time.Time, ahead bool, err error) {
	switch {
	case l.after > 0:
		at = now.Add(l.after)
	case l.at.After(now):
		if l.at.After(now.Add(queue.MaxDeliveryDelay)) {
			return at, false, errTooFar
		}
		at = l.at
	default:
		return now, false, nil
	}
	if whole := at.Truncate(time.Microsecond); !whole.Equal(at) {
		at = whole.Add(time.Microsecond) // the database keeps no more, and never early is a promise
	}
	return at, true, nil
}

// itemHash is what tells whether a key comes again with the same item: its message, when it is to be delivered, and its priority.
func itemHash(m *message.Message, item *queuev1.PushItem) uint64 {
	hash := uint64(m.BodyHash())
	if item.GetDeliverAt() == nil && item.GetDelay() == nil && item.GetPriority() == 0 {
		return hash
	}
	b := binary.BigEndian.AppendUint64(nil, hash)
	b = binary.BigEndian.AppendUint64(b, uint64(item.GetDeliverAt().GetSeconds()))
	b = binary.BigEndian.AppendUint64(b, uint64(item.GetDeliverAt().GetNanos()))
	b = binary.BigEndian.AppendUint64(b, uint64(item.GetDelay().GetSeconds()))
	b = binary.BigEndian.AppendUint64(b, uint64(item.GetDelay().GetNanos()))
	if item.GetPriority() != 0 { // what was remembered before there were lanes stays as it was
		b = binary.BigEndian.AppendUint32(b, uint32(item.GetPriority()))
	}
	sum := sha256.Sum256(b)
	return binary.BigEndian.Uint64(sum[:])
}

// dueWatch tells the loop that moves what is due of messages that are due before it would look again.
type dueWatch struct {
	wake chan struct{} // full while there is news
	next atomic.Int64  // UnixMicro, by the database's clock, of the instant it will look at; 0: it is looking now
}

func newDueWatch() *dueWatch { return &dueWatch{wake: make(chan struct{}, 1)} }

// accepted says that a message due at that time was committed.
func (w *dueWatch) accepted(at time.Time) {
	if next := w.next.Load(); next != 0 && at.UnixMicro() >= next {
		return
	}
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// DueSooner receives when a message was accepted here that is due before the time last given to WillLook.
func (e *Engine) DueSooner() <-chan struct{} { return e.due.wake }

// WillLook says that messages that are due are looked for again when the database's clock shows at, and not before unless DueSooner receives. The zero time
// says that they are looked for now: whatever is accepted from here on is told.
func (e *Engine) WillLook(at time.Time) {
	if at.IsZero() {
		e.due.next.Store(0)
		return
	}
	e.due.next.Store(at.UnixMicro())
}

// Withheld tells of a queue whose due messages cannot be moved: it raises the alarm that a refusal for want of a key raises, or says what is damaged.
func (e *Engine) Withheld(b store.BlockedShard) {
	if errors.Is(b.Err, store.ErrKeyMissing) {
		e.lacksKey(b.Err)
		return
	}
	e.metrics.withheld.Inc()
	e.log.Error("due messages cannot be moved: one of them is damaged", zap.String("queue", b.Queue), zap.Int64("shard", int64(b.Shard)), zap.Error(b.Err))
}

// Arrived spreads the news of messages that came due and are in the log now.
func (e *Engine) Arrived(due store.Due) {
	for i := range slices.Backward(due.Shards) { // of a queue the highest lane first, so that what waits hears of it first
		s := &due.Shards[i]
		e.metrics.due.Add(float64(len(s.Frames)))
		e.rates.Add(s.QueueID, len(s.Frames))
		e.sightings.note(&part{shard: s.Shard, frames: s.Frames}, s.Base, s.CreatedAt)
		e.Appended(s.Tenant, s.Queue, map[message.ShardID]message.Offset{s.Shard: s.Base + message.Offset(len(s.Frames))})
	}
}
