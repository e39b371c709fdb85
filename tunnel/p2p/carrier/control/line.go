package control

import "math"

// line learns what the bottleneck carries for all. In a round its queue grows by the excess of what is sent now (x: over what
// arrived the round before) divided by its rate, as long as cross traffic sends what it did (y): rate = Σx²/Σxy, Nimbus's
// z = µS/R - S turned round. A standard error is added to Σxy, so that it is a lower bound.
type line struct {
	xx, xy, yy, n float64

	// The round: from one packet to the acknowledgement of a later one, eight packets and 20 ms at least.
	mark               uint64
	sent, arrived, got float64
	acked, lost        float64
	low                float64 // shortest queue
	waited             bool    // data waited all the time
	before             float64 // delivery rate of the round before, if a queue stood; else 0

	gone float64 // share of what is sent that vanishes
}

const memory = 0.95 // of a round: twenty rounds

// rate is a lower bound of what the bottleneck carries; 0: unknown.
func (l *line) rate() float64 {
	if l.n < 4 || l.xx == 0 {
		return 0
	}
	return l.xx / (max(l.xy, 0) + math.Sqrt(l.yy/l.n*l.xx))
}

// ack takes an acknowledgement and says whether a round ended. A queue of less than standing is none.
func (l *line) ack(a Ack, p *path, standing float64, hold bool) bool {
	l.low = min(l.low, p.queue)
	l.waited = l.waited && a.Waited
	l.acked += a.Acked
	l.lost += a.Lost
	ended := false
	if l.mark > 0 {
		sending, arriving, bytes := a.Sent-l.sent, a.Arrived-l.arrived, a.Got-l.got
		if a.Number < l.mark || bytes < 8*packet || sending < 0.02 || arriving < 0.005 {
			return false
		}
		l.end(sending, arriving, bytes, p.loss, l.low > standing, hold)
		ended = true
	}
	l.mark, l.sent, l.arrived, l.got = a.Next, a.Sent, a.Arrived, a.Got
	l.acked, l.lost = 0, 0
	if !ended {
		l.restart()
	}
	return ended
}

// restart forgets what only a round has; its owner has read it.
func (l *line) restart() { l.low, l.waited = math.Inf(1), true }

// end is a round's. One with losses says nothing: a full queue does not grow.
func (l *line) end(sending, arriving, bytes, loss float64, stood, hold bool) {
	lost := l.lost / max(l.lost+l.acked, 1)
	l.gone += (1 - sending/arriving*(1-lost) - l.gone) / 8
	if lost <= loss+0.01 && l.before > 0 && stood {
		x, y := bytes/sending-l.before, (arriving-sending)/sending
		l.xx, l.xy, l.yy, l.n = memory*l.xx+x*x, memory*l.xy+x*y, memory*l.yy+y*y, memory*l.n+1
	}
	l.before = 0
	if stood || hold {
		l.before = bytes / arriving
	}
}
