package control

import "testing"

// A peer whose clock stands, so that no arrival is ever old, costs no memory without bound.
func TestStandingClock(t *testing.T) {
	c := New()
	for i := range 100_000 {
		c.Acked(Ack{Now: float64(i) * .005, Sent: float64(i)*.005 - .05, Arrived: 7, Got: float64(i) * 1500, Number: uint64(i), Next: uint64(i + 10), RTT: .05, Acked: 1500, InFlight: 15000})
	}
	if n := len(c.path.arrivals); n > mostArrivals+1 {
		t.Errorf("%d arrivals are kept", n)
	}
}
