package windowtest

import "postrider.dev/services/dispatcher/internal/domain/window"

// Trims tells the checker where the log begins by now: nothing below is waited for.
func (c *Checker) Trims(tail func() window.Offset) { c.tail = tail }

// trim replays a trim: all below it is done, but for what was leased when the record began.
func (c *Checker) trim(req *window.Trim, out window.Outcome) {
	to, letters := req.To, 0
	for off := c.start; off < req.To; off++ {
		if c.isDone(off) || c.now.leased[off] {
			continue
		}
		if c.rows[off].Failures > 0 {
			if letters++; letters > window.MaxTrimLetters {
				to = off
				break
			}
		}
	}
	lost := 0
	for off := c.start; off < to; off++ {
		if !c.isDone(off) && !c.now.leased[off] {
			c.now.trimmed[off] = true
			c.finish(off)
			lost++
		}
	}
	if lost != out.Count || out.Again != (to < req.To) {
		c.flag(RuleTrim, to, "%d messages were lost and %d counted", lost, out.Count)
	}
	if lost > 0 {
		c.losses.Messages += int64(lost)
		c.losses.Untold += int64(lost)
		c.losses.First = max(c.losses.First, to)
	}
}

// told checks what a pop that got something was told of losses.
func (c *Checker) told(out window.Outcome) {
	switch {
	case c.losses.Untold == 0 && out.Told != window.Losses{}:
		c.flag(RuleTrim, 0, "a pop was told %+v and there is nothing to tell", out.Told)
	case c.losses.Untold > 0 && out.Told != c.losses:
		c.flag(RuleTrim, 0, "a pop was told %+v, should be %+v", out.Told, c.losses)
	}
	c.losses.Untold = 0
}
