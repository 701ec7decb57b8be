package windowtest

import (
	"time"

	"postrider.dev/services/dispatcher/internal/domain/window"
)

// Ages tells the checker when each message was committed, and how old it must be to be handed out from now on.
func (c *Checker) Ages(born func(window.Offset) window.DBTime, delay time.Duration) {
	c.born, c.policy.Delay = born, delay
}

// ripe checks that a message is old enough to be handed out. One that was handed out before came back, and a delay that is longer now does not hold it.
func (c *Checker) ripe(off window.Offset) {
	if c.handedOut[off] || c.policy.Delay <= 0 {
		c.handedOut[off] = true
		return
	}
	c.handedOut[off] = true
	if due := c.born(off).Add(c.policy.Delay); due > c.now.rec.At {
		c.flag(RuleDelay, off, "may be handed out at %d and was at %d", due, c.now.rec.At)
	}
}
