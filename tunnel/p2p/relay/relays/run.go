package relays

import (
	"math/rand/v2"
	"sync"
	"time"

	"edgemesh/internal/wake"
	"edgemesh/tunnel/p2p/relay/relays/choice"
)

const (
	// surveyEvery is how often the round-trip time of a relay is measured that is not in use.
	surveyEvery = 10 * time.Minute
	// soundAfter is how long a session must have lasted for its end to count as a loss.
	soundAfter = 5 * choice.Backoff
)

// run does what is wanted of the relay until the client is cancelled.
func (c *client) run() {
	defer c.close()
	var pace choice.Pace
	for c.ctx.Err() == nil {
		if !c.demand.connection() {
			c.rest()
			continue
		}
		start := time.Now()
		err := c.session()
		if c.ctx.Err() != nil {
			return
		}
		c.report(false, err)
		if err == nil { // no longer wanted
			c.leave()
			continue
		}
		lasted := time.Since(start) > soundAfter
		wait := pace.Ended(time.Now(), lasted, c.alone(c.info.ID))
		if lasted {
			c.Log.Warn("relay lost: trying again", "relay", c.info.ID, "err", err)
		}
		c.pause(wait/2 + rand.N(wait/2))
	}
}

// pause waits between two attempts. retry shortens that, but not to nothing: many paths may die at the same time.
func (c *client) pause(d time.Duration) {
	least := min(d, shortPause)
	if !wake.Sleep(c.ctx, least) {
		return
	}
	select {
	case <-c.ctx.Done():
	case <-c.retry:
	case <-time.After(d - least):
	}
}

// rest is the life of a client that is not wanted: the relay is measured now and then.
func (c *client) rest() {
	wait := surveyEvery
	if err := c.survey(); err != nil {
		wait = surveyEvery / 10 // it may come back
	}
	if c.ctx.Err() == nil && !c.demand.connection() { // else its connections may be those of a client in its place
		c.leave()
	}
	t := time.NewTimer(wait/2 + rand.N(wait))
	defer t.Stop()
	for c.ctx.Err() == nil && !c.demand.connection() {
		select {
		case <-c.ctx.Done():
		case <-c.wake:
		case <-c.retry:
		case <-t.C:
			return
		}
	}
}

// survey measures the relay's round-trip time.
func (c *client) survey() error {
	select {
	case c.surveys <- struct{}{}:
	case <-c.ctx.Done():
		return nil
	}
	defer func() { <-c.surveys }()
	err := c.begin()
	if err == nil {
		err = c.measure()
	}
	if err == nil && c.many() {
		c.checkCrowded()
	}
	if c.ctx.Err() == nil {
		c.report(false, err)
	}
	return err
}

// leave disconnects from a relay that is not wanted now, and waits for the end: wanted a moment later, it would be asked for
// a reservation on a connection that ends, and be taken for one that fails. The connections to a member that is a relay are
// its paths, and end with those.
func (c *client) leave() {
	if c.Members.View().IsMember(c.info.ID) {
		return
	}
	var ends sync.WaitGroup
	for _, conn := range c.conns() {
		ends.Go(func() { _ = conn.Close() }) // the last words of a connection may take some 100 ms
	}
	ends.Wait()
}

// close ends the connections of a relay that the membership no longer lists.
func (c *client) close() {
	if c.common.ctx.Err() == nil && !c.Members.View().Known(c.info.ID) {
		for _, conn := range c.conns() {
			_ = conn.Close()
		}
	}
}
