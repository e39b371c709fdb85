package packet

import (
	"net/netip"
	"time"
)

const (
	// A challenge is repeated every challengeEvery, and given up after challengeTime.
	challengeEvery = 250 * time.Millisecond
	challengeTime  = 5 * time.Second
	// amplification bounds what is sent to an address that is not validated to so many times what came from there (RFC 9000, 8.1).
	amplification = 3
)

// address is where the other end of a path is: RFC 9000, 8.2 and 9. It has no clock and no lock.
type address struct {
	now   netip.AddrPort
	works bool // the other end has answered from somewhere

	try       netip.AddrPort // to be validated; zero: none
	data      uint64         // of its challenge
	begun     time.Time
	asked     time.Time
	came      int // bytes from there
	sent      int // bytes to there
	unlimited bool
}

// newAddress is one that QUIC has validated; what passes there in sealed packets is not known yet.
func newAddress(at netip.AddrPort, data uint64, now time.Time) address {
	return address{now: at, try: at, data: data, begun: now, unlimited: true}
}

// heard notes where an authentic packet of so many bytes came from. Only the newest one moves a path: an older one was delayed. It
// reports whether a challenge is due now.
func (a *address) heard(from netip.AddrPort, bytes int, newest bool, data uint64, now time.Time) bool {
	switch {
	case from == a.try:
		a.came += bytes
		return false
	case !newest || !a.works:
		return false
	case from == a.now:
		a.try = netip.AddrPort{} // it did not move
		return false
	}
	a.try, a.data, a.begun, a.asked, a.came, a.sent, a.unlimited = from, data, now, time.Time{}, bytes, 0, false
	return true
}

// due is when the next challenge is to be sent; the zero time: there is none.
func (a *address) due() time.Time {
	if !a.try.IsValid() {
		return time.Time{}
	}
	if a.asked.IsZero() {
		return a.begun
	}
	return a.asked.Add(challengeEvery)
}

// ask returns where a challenge of so many bytes goes now. Failed says that nobody answered in time.
func (a *address) ask(bytes int, now time.Time) (to netip.AddrPort, data uint64, ok, failed bool) {
	if !a.try.IsValid() || now.Before(a.due()) {
		return to, 0, false, false
	}
	if now.Sub(a.begun) >= challengeTime {
		a.try = netip.AddrPort{}
		return to, 0, false, true
	}
	a.asked = now
	if !a.unlimited && a.sent+bytes > amplification*a.came {
		return to, 0, false, false
	}
	a.sent += bytes
	return a.try, a.data, true, false
}

// answered takes the answer to a challenge. Moved says that the path has another address from now on, line that it is another host's
// or another network's: a NAT that forgets a binding changes the port only (RFC 9000, 9.4).
func (a *address) answered(data uint64) (works, moved, line bool) {
	if !a.try.IsValid() || data != a.data {
		return false, false, false
	}
	moved, line = a.try != a.now, a.try.Addr() != a.now.Addr()
	a.now, a.try, a.works = a.try, netip.AddrPort{}, true
	return true, moved, line
}
