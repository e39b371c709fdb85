package flight

import "edgemesh/tunnel/p2p/carrier/control"

const (
	firstRecords = 32
	maxRecords   = windowLen / 2 // packets, a power of two: what the peer's window can distinguish
	firstRTT     = 0.1           // seconds, until one is known; RFC 9002 has 0.333, BBR's first guess is less
	burst        = 0.003         // seconds of the rate that may leave together: a timer's lateness
	packetBytes  = 1514
	datagramDebt = 2 * packetBytes // that datagrams leave before the rate allows it
	longestWait  = 1.0
	leastWait    = 0.00005
	timer        = 0.0015 // seconds that a timer sleeps at least, as packets leave in trains then
)

// state is what became of a packet.
type state uint8

const (
	never  state = iota // its number was not used here
	quiet               // it is not to be acknowledged
	flying              // neither acknowledged nor lost
	arrived
	lost
)

// record is a packet.
type record struct {
	sent   float64
	total  uint64 // bytes sent on the path in packets to be acknowledged, with it
	pieces chain
	size   int
	state  state
	waited bool // data waited when it was sent
}

// sender is what was sent on a path.
type sender struct {
	control  *control.Control
	overhead int

	records           []record // a ring, its length a power of two
	base, first, next uint64   // numbers: of the oldest record, of the oldest that may be flying, and behind the newest
	total             uint64
	inFlight          float64

	tokens, refilled float64

	losses
	parity parity
}

func (s *sender) record(n uint64) *record { return &s.records[n%uint64(len(s.records))] }

// reserve makes room for a packet's record. If too many are in flight, the oldest is taken for lost.
func (p *Path) reserve(number uint64) {
	s := &p.s
	for number >= s.base+uint64(len(s.records)) {
		switch {
		case len(s.records) < maxRecords:
			larger := make([]record, 2*len(s.records))
			for n := s.base; n < s.next; n++ {
				larger[n%uint64(len(larger))] = *s.record(n)
			}
			s.records = larger
			continue
		case s.base == s.first:
			if r := s.record(s.first); r.state == flying {
				p.lose(r)
			}
			s.first++
		}
		s.base++
	}
}

// sent notes a packet. One with nothing but an ACK is not told of, so it does not take from the rate either (RFC 9002, 7.7): where the
// other direction's ACKs were as much as the data, less than the rate would be seen to arrive, and it would never be raised.
func (s *sender) sent(now float64, number uint64, payload int, in chain, elicits, waited bool) {
	for ; s.next < number; s.next++ {
		*s.record(s.next) = record{state: never}
	}
	r := record{sent: now, pieces: in, size: payload + s.overhead, state: quiet, waited: waited}
	if elicits {
		if s.inFlight == 0 {
			s.progress, s.heard = now, now
		}
		r.state = flying
		s.inFlight += float64(r.size)
		s.total += uint64(r.size)
		s.tokens -= float64(r.size)
	}
	r.total = s.total
	*s.record(number) = r
	s.next = number + 1
}

// refill earns tokens, and returns the rate.
func (s *sender) refill(now float64) (rate float64) {
	rate = s.control.Rate(s.inFlight)
	s.tokens = min(s.tokens+(now-s.refilled)*rate, max(packetBytes, rate*burst))
	s.refilled = now
	return rate
}

// pace is how long the rate has the next packet wait.
func (s *sender) pace(rate float64) float64 {
	return max(-s.tokens/rate, 0) + min(timer, 2*packetBytes/rate)
}
