package engine

import (
	"errors"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"postrider.dev/services/dispatcher/internal/engine/catalog"
)

const (
	keyAlarmEvery = 10 * time.Second // between two lines of the log
	keyAlarmLasts = time.Minute      // since the last refusal
)

// keyAlarm tells that queues are asked for whose keys are missing.
type keyAlarm struct{ last, logged atomic.Int64 } // UnixNano

// usable refuses a queue whose keys are missing here, and raises the alarm.
func (e *Engine) usable(q *catalog.Queue) error {
	err := q.Usable()
	if err != nil {
		e.lacksKey(err)
	}
	return err
}

// lacksKey raises the alarm.
func (e *Engine) lacksKey(err error) {
	e.metrics.keyMissing.Inc()
	now, logged := e.clk.Now().UnixNano(), e.keyAlarm.logged.Load()
	e.keyAlarm.last.Store(now)
	if now-logged >= int64(keyAlarmEvery) && e.keyAlarm.logged.CompareAndSwap(logged, now) {
		e.log.Error("an encrypted queue waits for its key", zap.Error(err))
	}
}

// KeysMissing says that a queue was refused within the last minute because its key is missing; nil if none was.
func (e *Engine) KeysMissing() error {
	if last := e.keyAlarm.last.Load(); last != 0 && e.clk.Now().UnixNano()-last < int64(keyAlarmLasts) {
		return errors.New("encrypted queues are refused: their master key is not in ENCRYPTION_KEYS")
	}
	return nil
}
