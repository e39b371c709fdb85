package peers

import (
	"fmt"
	"time"

	"edgemesh/tunnel/p2p/base/ladder"
	"edgemesh/tunnel/p2p/nat/punch"
)

// Punch is what was tried to get the direct paths that are missing, and what follows.
type Punch struct {
	punch.Tried
	Await Await
	Next  time.Time // when the next attempt begins, not before; zero: unknown
}

// Await is what the next attempt waits for.
type Await string

// What it may wait for. AwaitPeer: the peer begins the attempts.
const (
	AwaitNothing Await = "nothing" // it is under way
	AwaitTime    Await = "time"
	AwaitTraffic Await = "traffic"
	AwaitPeer    Await = "peer"
	AwaitUplink  Await = "uplink" // another address, here or there
)

// text is p in words, for an operator.
func (p *Punch) text() string {
	tried := "1 attempt failed"
	if p.Failed != 1 {
		tried = fmt.Sprintf("%d attempts failed", p.Failed)
	}
	at := p.Next.Format(time.TimeOnly)
	switch {
	case p.Await == AwaitUplink:
		return "tried when an uplink has another address"
	case p.Await == AwaitNothing:
		return tried + ", another is under way"
	case p.Await == AwaitTime:
		return tried + ", the next at " + at
	case p.Await == AwaitTraffic && !p.Next.IsZero():
		return tried + ", the next with traffic after " + at
	case p.Await == AwaitTraffic:
		return tried + ", the next with the next traffic"
	}
	return tried + ", the peer begins the next"
}

// punching is what was tried, and what follows; nil where no direct path is missing, or none was tried yet.
func punching(plan ladder.Plan, missing bool, a *punch.Attempts, now ladder.Time) *Punch {
	tried, ok := a.Tried()
	if !missing || !ok {
		return nil
	}
	p := &Punch{Tried: tried, Await: AwaitTime}
	switch {
	case plan.Running:
		p.Await = AwaitNothing
		return p
	case tried.Apart:
		p.Await = AwaitUplink
		return p
	case !plan.Mine:
		p.Await = AwaitPeer
		return p
	case plan.Traffic:
		p.Await = AwaitTraffic
	}
	if wait := plan.Next - now; wait > 0 || p.Await == AwaitTime {
		p.Next = time.Now().Add(max(wait, 0))
	}
	return p
}
