package ladder

import "time"

const (
	// flapTime: a direct path lost within this time of the one before flaps.
	flapTime = time.Minute
	// firstFlaps is after how many of these a new direct path is still used immediately, see holdDown; each has the next attempt wait longer.
	// One cut takes the paths over TCP and QUIC one by one, within oneCut.
	firstFlaps = 1
	oneCut     = time.Second
	// excuse is how long after the addresses of one of the two have changed the loss of a path is a consequence, and no flapping:
	// longer than silence takes to be noticed.
	excuse = 3 * time.Second
	// flapMax and holdMax bound what flapping adds: a path that is back for good is used within a minute all the same.
	flapMax = 15 * time.Second
	holdMax = 10 * time.Second
	// hopelessTries is how many attempts are made where both NATs map per destination, and doubtfulTries where one does and
	// the other might let in only whom it knows. Then one follows every hopelessPause, or doubtfulPause, since the kinds
	// of NATs are guesses, and NATs are replaced.
	hopelessTries = 2
	doubtfulTries = 6
	hopelessPause = 15 * time.Minute
	doubtfulPause = 10 * time.Minute
	// LongestPause is the longest time between two attempts with a peer in demand.
	LongestPause = hopelessPause + hopelessPause/10 + time.Millisecond
	// oneMissing is how much longer the pauses are while only one of the two direct transports is missing, up to
	// oneMissingMax.
	oneMissing    = 5
	oneMissingMax = 5 * time.Minute
	// ipv6Pause is the longest time between two of the first ipv6Tries attempts to have IPv6 back where IPv4 works; then the
	// pauses are as where one transport is missing.
	ipv6Pause = 20 * time.Second
	ipv6Tries = 10
	// apartPause is how long after two nodes had no IP version in common they look again: a NAT64 may have been found meanwhile.
	apartPause = 5 * time.Minute
	// laterPause is how long after an attempt that could not be made in full the next one follows, laterTries how many such
	// attempts do not count.
	laterPause = 8 * time.Second
	laterTries = 60
	// spareAgain is how long after a second path was closed it is wanted again at the earliest; twice as long every time, up to
	// spareAgainMax, unless it was used for that long. One beside sealed packets is wanted for a trial: the first time immediately.
	spareAgain    = time.Minute
	trialUse      = 20 * time.Second // longer than a trial: it carried
	spareAgainMax = 16 * time.Minute
)

// punch is what the machine knows of attempts to get direct paths. Of two nodes only the coordinator begins them.
type punch struct {
	running  bool
	missed   int // transports missing when it began
	attempts int // since the last change for the better
	next     Time
	tries    int  // after so many attempts the NATs' kinds are believed; 0: never
	worked   bool // there was a direct path between these NATs
	later    int  // attempts that did not count, since the last change for the better
	lost     Time // when the last direct path was lost
	flaps    int  // cuts within flapTime of each other
	excused  Time // what is lost until then does not count
	sent     Time // the last nudge sent
	nudged   Time // the last one obeyed
	spares
	apart bool // the last attempt found no IP version in common
	ipv6  bool // both nodes have it
	// ipv6Worked: by transport, whether there was a direct path over it.
	ipv6Worked [QUIC + 1]bool
}

// spares are the second paths that were closed because nothing used them.
type spares struct {
	is    bool // a transport was given up: it is wanted again with bulk or datagrams
	again Time // but not before
	n     int  // in a row
}

// spare notes that a second path is closed, which was used for so long.
func (s *spares) spare(now, used Time, trial bool) {
	if used > spareAgain || trial && used > trialUse {
		s.n = 0
	}
	wait := min(spareAgain<<min(s.n, 8), spareAgainMax)
	if trial && s.n == 0 {
		wait = 0
	}
	s.is, s.again = true, now+wait
	s.n++
}

// unspare follows bulk, and a lane for datagrams.
func (s *spares) unspare(now Time) { s.is = s.is && now < s.again }

// believed is after how many attempts the kinds of NATs are believed. They are IPv4's: between two nodes with IPv6 they say less.
func (s *punch) believed() int {
	if s.ipv6 {
		return max(s.tries, doubtfulTries)
	}
	return s.tries
}

// pause is how long after the kth failed attempt the next one follows. The last one leaves room for an attempt within a
// minute of a path's return.
func pause(k int) Time {
	steps := []Time{0, 500 * time.Millisecond, time.Second, 2 * time.Second, 5 * time.Second,
		10 * time.Second, 20 * time.Second, 40 * time.Second}
	return steps[min(max(k, 0), len(steps)-1)]
}

// note plans what follows the loss of a direct path: an attempt without a pause, unless direct paths are lost repeatedly.
func (s *punch) note(now Time) {
	switch {
	case now < s.excused, now-s.lost < oneCut:
	case now-s.lost < flapTime:
		s.flaps++
		s.lost = now
	default:
		s.flaps, s.lost = 0, now
	}
	s.attempts = 0
	s.next = now + min(pause(s.flaps-firstFlaps+1), flapMax)
}

// holdDown is how long a new direct path has to stay before it is preferred to a relayed one.
func (s *punch) holdDown(now Time) Time {
	if now-s.lost >= flapTime {
		return 0
	}
	return min(pause(s.flaps-firstFlaps), holdMax)
}

// moved follows a change of addresses: what that cuts is replaced without a pause, and earlier cuts say nothing of the new paths.
func (s *punch) moved(now Time) {
	s.flaps, s.excused = 0, now+excuse
	s.restart(now)
}

// restart has everything tried again from the beginning.
func (s *punch) restart(now Time) { s.attempts, s.later, s.apart, s.next = 0, 0, false, now }

// ended plans the next attempt, while so many transports are wanted, and so many of them missing altogether.
func (s *punch) ended(now Time, wanted, missing int, e Punched, jitter func(Time) Time) {
	if !s.running {
		return
	}
	s.running = false
	if wanted == 0 {
		s.attempts, s.later = 0, 0
		return
	}
	if s.apart = e.Apart; e.Apart {
		s.next = now + apartPause + jitter(apartPause/10)
		return
	}
	if e.Later && s.later < laterTries {
		s.later++
		s.next = now + laterPause + jitter(laterPause)
		return
	}
	if wanted < s.missed { // what let one transport through may let the other
		s.attempts = 0
	}
	s.attempts++
	wait := pause(s.attempts)
	switch {
	case missing == 0 && s.attempts <= ipv6Tries:
		wait = min(wait, ipv6Pause)
	case missing <= 1: // one direct transport is there: no hurry
		wait = min(oneMissing*wait, oneMissingMax)
	case s.tries > 0 && s.attempts >= s.believed() && !s.worked:
		wait = doubtfulPause
		if s.believed() == hopelessTries {
			wait = hopelessPause
		}
	}
	s.next = now + wait + jitter(wait/10+time.Millisecond)
}
