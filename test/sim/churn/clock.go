package churn

import "time"

// due is something that happens at its time; of two at one time, what was planned first.
type due struct {
	at   time.Duration
	turn uint64
	do   func()
}

func (a due) before(b due) bool { return a.at < b.at || a.at == b.at && a.turn < b.turn }

// clock is a heap of what is due.
type clock struct {
	now    time.Duration
	turns  uint64
	coming []due
}

// after plans f.
func (c *clock) after(d time.Duration, f func()) { c.at(c.now+d, f) }

func (c *clock) at(t time.Duration, f func()) {
	c.turns++
	c.coming = append(c.coming, due{max(t, c.now), c.turns, f})
	for i := len(c.coming) - 1; i > 0; {
		up := (i - 1) / 2
		if !c.coming[i].before(c.coming[up]) {
			break
		}
		c.coming[i], c.coming[up] = c.coming[up], c.coming[i]
		i = up
	}
}

// next takes the first.
func (c *clock) next() due {
	first, last := c.coming[0], len(c.coming)-1
	c.coming[0], c.coming[last] = c.coming[last], due{}
	c.coming = c.coming[:last]
	for i := 0; ; {
		least := 2*i + 1
		if least >= last {
			return first
		}
		if least+1 < last && c.coming[least+1].before(c.coming[least]) {
			least++
		}
		if !c.coming[least].before(c.coming[i]) {
			return first
		}
		c.coming[i], c.coming[least] = c.coming[least], c.coming[i]
		i = least
	}
}

// run lets everything happen that is due until end. It returns how many events that were.
func (c *clock) run(end time.Duration) (events int) {
	for len(c.coming) > 0 && c.coming[0].at <= end {
		d := c.next()
		c.now = d.at
		d.do()
		events++
	}
	c.now = end
	return events
}
