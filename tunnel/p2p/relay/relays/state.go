package relays

import (
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/network"

	"edgemesh/internal/wake"
	"edgemesh/tunnel/p2p/base/endpoint"
)

// seenPatience is how long punching waits for a relay to see this node's UDP socket.
const seenPatience = time.Second

// visitFor is how long a relay stays connected that only carries circuits to peers, once none is in use any longer.
const visitFor = time.Minute

// demand is what is wanted of a relay: a reservation, or only a connection for some time.
type demand struct {
	mu      sync.Mutex // a leaf: guards what follows
	reserve bool
	visited time.Time     // connected without a reservation until then
	later   bool          // QUIC is dialed when punching asks for it
	hurry   bool          // it has asked
	last    time.Duration // when it asked last, by Config.Now; 0: never
	dialing bool          // because of that
	vain    time.Duration // an IP version that lacks is not dialed for punching before
}

// setReservation says whether a reservation is wanted, and returns whether that is new. Circuits through a relay that
// is given up continue for a while.
func (d *demand) setReservation(want bool) (changed bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	changed = d.reserve != want
	if changed && !want {
		d.visited = time.Now().Add(visitFor)
	}
	d.reserve = want
	return changed
}

// visit asks for a connection, for the sake of circuits, or prolongs it.
func (d *demand) visit() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.visited = time.Now().Add(visitFor)
}

// reservation says whether a reservation is wanted.
func (d *demand) reservation() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.reserve
}

// connection says whether the relay should be connected.
func (d *demand) connection() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.reserve || time.Now().Before(d.visited)
}

// putOff says whether QUIC is dialed only when punching asks for it.
func (d *demand) putOff(later bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.later = later
}

// ended: there is no session that would dial QUIC.
func (d *demand) ended() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.later, d.hurry, d.dialing = false, false, false
}

// rested puts QUIC off, which is about to be closed. Whoever asks from then on has it dialed again.
func (d *demand) rested() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.later, d.hurry = true, false
}

// ask has QUIC stay for a while, and dialed if it is put off, or lacks an IP version and that is not known to be vain. It reports
// whether the relay may soon see more of this node.
func (d *demand) ask(now time.Duration, lacks bool) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.last, d.hurry = now, d.hurry || d.later || lacks && !d.dialing && now >= d.vain
	return d.hurry || d.dialing
}

// hurries reports whether QUIC is being dialed for punching, or about to be.
func (d *demand) hurries() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.hurry || d.dialing
}

// putsOff reports whether QUIC is dialed only when punching asks for it.
func (d *demand) putsOff() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.later
}

// asked is when punching asked for QUIC last.
func (d *demand) asked() time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.last
}

// hastened reports whether QUIC is to be dialed though it was put off.
func (d *demand) hastened() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.hurry
}

// hasten is for who dials QUIC, if punching has asked for it, and calls dialed afterwards.
func (d *demand) hasten() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.hurry {
		return false
	}
	d.later, d.hurry, d.dialing = false, false, true
	return true
}

// dialed ends what hasten began. An IP version that still lacks is not dialed again for punching before then.
func (d *demand) dialed(then time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.dialing, d.vain = false, then
}

// due is when a session has to look again: at renew, or when the visit ends.
func (d *demand) due(renew time.Time) time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.reserve {
		return d.visited
	}
	return renew
}

// outcome is what came of the attempts to use a relay.
type outcome struct {
	mu sync.Mutex // a leaf: guards facts
	facts
}

// facts are what an outcome knows, as one value.
type facts struct {
	reserved bool
	failed   bool          // the last attempt failed
	err      error         // why there is no reservation; may be known before the first attempt ends
	attempts int           // ended so far
	rtt      time.Duration // 0: unknown
	crowded  bool          // it said so when it was asked last
}

func (o *outcome) get() facts {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.facts
}

// set notes the end of an attempt and returns what was known before.
func (o *outcome) set(reserved bool, err error) (before facts) {
	o.mu.Lock()
	defer o.mu.Unlock()
	before = o.facts
	o.reserved, o.err, o.failed = reserved, err, err != nil
	o.attempts++
	return before
}

// setCrowded notes what the relay says of its share.
func (o *outcome) setCrowded(crowded bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.crowded = crowded
}

// early says why there is no connection before the first attempt is over: refused over TCP, it still waits seconds for
// QUIC.
func (o *outcome) early(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.attempts == 0 {
		o.err = err
	}
}

// measured notes a round-trip time. Of two connections to one relay the faster one counts, and the past a little.
func (o *outcome) measured(rtt time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.rtt == 0 || rtt < o.rtt {
		o.rtt = rtt
	} else {
		o.rtt = (3*o.rtt + rtt) / 4
	}
}

// lines are the connections to a relay that are looked after.
type lines struct {
	mu    sync.Mutex                         // a leaf: guards what follows
	pings map[network.Conn]wake.One          // has one pinged immediately, or its end noticed
	seen  map[network.Conn]endpoint.Endpoint // where the relay sees this end of one
}

// add begins to look after c. fresh: nobody did before.
func (l *lines) add(c network.Conn) (ping wake.One, fresh bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.pings[c] != nil {
		return nil, false
	}
	ping = wake.NewOne()
	l.pings[c] = ping
	return ping, true
}

func (l *lines) remove(c network.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.pings, c)
	delete(l.seen, c)
}

// pingAll has every connection pinged immediately.
func (l *lines) pingAll() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, ping := range l.pings {
		ping.Wake()
	}
}

// pingEnded wakes who looks after connections that have ended.
func (l *lines) pingEnded() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c, ping := range l.pings {
		if c.IsClosed() {
			ping.Wake()
		}
	}
}

// see notes that the relay sees this end of c at e.
func (l *lines) see(c network.Conn, e endpoint.Endpoint) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seen[c] = e
}

// sees reports whether the relay has said where it sees this end of c.
func (l *lines) sees(c network.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, ok := l.seen[c]
	return ok
}

// seenAt returns the endpoints at which the relay sees this node.
func (l *lines) seenAt() []endpoint.Endpoint {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []endpoint.Endpoint
	for c, e := range l.seen {
		if c.IsClosed() { // also one that was seen after its removal
			delete(l.seen, c)
			continue
		}
		out = append(out, e)
	}
	return out
}
