package p2p

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/quic-go/quic-go"

	"edgemesh/tunnel/p2p/endpoint"
	"edgemesh/tunnel/p2p/ladder"
)

const (
	// baseDatagram is the sealed packet that every path is expected to carry, bytes
	// (BASE_PLPMTU of RFC 8899 section 5.1.2).
	baseDatagram = 1200
	// tinyDatagram passes where anything does.
	tinyDatagram = 64
	// A size is tried climbTries times before it counts as too large. One that has
	// passed before gets holeTries, each beside a tiny one, and up to holeMost where
	// packets are lost anyway, until loss alone does so with a probability of holeDoubt:
	// a path in use is tried every second.
	climbTries = 3
	holeTries  = 5
	holeMost   = 20
	holeDoubt  = 1e-6
	// lossShare is what one probe counts in the share of those that are lost.
	lossShare = 1.0 / 32
	// confirmEvery is how often the size in force is tried while the path is in use,
	// climbEvery how often larger ones are (RFC 8899's PMTU_RAISE_TIMER is 10 min).
	confirmEvery = time.Second
	climbEvery   = time.Minute
	// muteRetry is the pause where not even the base passes.
	muteRetry = 2 * time.Second
	// A probe's answer is waited for a few round trips, within these bounds.
	probeLeast, probeMost = 100 * time.Millisecond, 2 * time.Second
	// quicExtra is what QUIC adds at most to the payload that it says a datagram of its
	// own may have.
	quicExtra = 48
)

// errEnded is a session's end while it waits.
var errEnded = errors.New("session ended")

// pathMTUs are those of common links, bytes: the least of IPv6, tunnels, PPPoE,
// Ethernet, jumbo frames.
func pathMTUs() []int { return []int{1280, 1320, 1360, 1400, 1420, 1440, 1460, 1480, 1492, 1500, 9000} }

// datagramSizes are the sealed packets that fill them, the base first.
func datagramSizes(v6 bool, largest int) []int {
	headers := 28 // IPv4 and UDP
	if v6 {
		headers = 48
	}
	sizes := []int{baseDatagram}
	for _, mtu := range pathMTUs() {
		if n := mtu - headers; n > baseDatagram && n <= min(largest, maxDatagram) {
			sizes = append(sizes, n)
		}
	}
	return sizes
}

// search finds how large a packet passes and keeps it true (RFC 8899), until the
// session ends with an error.
func (o *datagramOut) search(largest int, ended <-chan error) error {
	defer o.size.Store(0)
	s := &sizeSearch{o: o, ended: ended, sizes: datagramSizes(o.v6(), largest), rtt: 100 * time.Millisecond}
	for {
		ok, err := s.tries(baseDatagram, holeTries)
		if err != nil {
			return err
		}
		if !ok {
			if err := s.wait(muteRetry); err != nil && !errors.Is(err, errRefused) {
				return err
			}
			continue
		}
		o.size.Store(baseDatagram)
		if err := s.climb(); err != nil {
			return err
		}
		o.p.n.log.Debug("datagrams pass", "peer", o.p.r.name(), "bytes", o.size.Load())
		before, err := s.hold()
		if err != nil {
			return err
		}
		o.size.Store(0)
		if err := s.askForQUIC(before); err != nil {
			return err
		}
	}
}

func (o *datagramOut) v6() bool {
	ip, ok := endpoint.IP(o.p.conn.RemoteMultiaddr())
	return ok && ip.Is6()
}

// askForQUIC gives the path up if the packets of QUIC vanish, too, after those of a
// size do. QUIC does not notice: it goes on with packets that vanish, while small ones
// pass and everything looks alive. A new connection finds its size.
func (s *sizeSearch) askForQUIC(before int) error {
	o := s.o
	var tooLarge *quic.DatagramTooLargeError
	if err := o.q.SendDatagram(make([]byte, maxDatagram)); !errors.As(err, &tooLarge) {
		return err // the connection is over
	}
	needs := int(tooLarge.MaxDatagramPayloadSize) + quicExtra
	passes := false
	if needs < before {
		var err error
		if passes, err = s.tries(needs, holeTries); err != nil {
			return err
		}
	}
	o.p.n.log.Info("the path carries smaller packets than before", "peer", o.p.r.name(), "before", before, "quic needs", needs, "passes", passes)
	if passes {
		return nil
	}
	o.p.r.set.mu.Lock()
	defer o.p.r.set.mu.Unlock()
	o.p.r.tell(ladder.Broken{Path: o.p.id, Why: fmt.Sprintf("packets of %d bytes vanish, smaller ones do not", min(before, needs))})
	o.p.r.signal()
	return errEnded
}

// sizeSearch is the probing of one session.
type sizeSearch struct {
	o     *datagramOut
	ended <-chan error
	sizes []int // ascending
	rtt   time.Duration
	id    uint32
	asked bool    // to confirm the size, in use or not
	loss  float64 // share of probes lost whose size passes
}

// patience is how long an answer is waited for.
func (s *sizeSearch) patience() time.Duration { return min(max(3*s.rtt, probeLeast), probeMost) }

// climb raises the size in force to the largest that passes. The usual one, the
// largest but jumbo frames, is tried first.
func (s *sizeSearch) climb() error {
	low, high := 0, len(s.sizes) // sizes[low] passes, sizes[high] does not
	for i, n := range s.sizes {
		if n <= int(s.o.size.Load()) {
			low = i
		}
	}
	for next := len(s.sizes) - 2; high-low > 1; next = (low + high) / 2 {
		next = min(max(next, low+1), high-1)
		ok, err := s.tries(s.sizes[next], climbTries)
		if err != nil {
			return err
		}
		if ok {
			low = next
			s.o.size.Store(int32(s.sizes[low]))
		} else {
			high = next
		}
	}
	return nil
}

// hold confirms the size in force while the path is used, and looks for larger ones
// now and then. It returns the size when it does not pass any more.
func (s *sizeSearch) hold() (size int, err error) {
	moved, climbed := uint64(0), time.Now()
	for {
		if err := s.wait(confirmEvery); errors.Is(err, errRefused) {
			return int(s.o.size.Load()), nil
		} else if err != nil {
			return 0, err
		}
		now := s.o.p.tx.Load()
		if now == moved && !s.asked {
			continue
		}
		moved, s.asked = now, false
		size := int(s.o.size.Load())
		hole, err := s.hole(size)
		if hole {
			s.o.p.fellIntoHole()
		}
		if hole || err != nil {
			return size, err
		}
		if time.Since(climbed) > climbEvery {
			climbed = time.Now()
			if err := s.climb(); err != nil {
				return 0, err
			}
		}
	}
}

// hole reports whether packets of a size vanish while tiny ones pass.
func (s *sizeSearch) hole(size int) (bool, error) {
	failed, passed := 0, 0
	for !s.isTelling(failed) {
		ok, err := s.try(size)
		if err != nil {
			return false, err
		}
		if ok {
			for range failed {
				s.note(false)
			}
			s.note(true)
			return false, nil
		}
		failed++
		if ok, err = s.try(tinyDatagram); err != nil {
			return false, err
		}
		if s.note(ok); ok {
			passed++
		}
	}
	return passed >= 2, nil
}

// isTelling says whether so many lost packets of a size are more than loss explains.
func (s *sizeSearch) isTelling(failed int) bool {
	return failed >= holeTries && (failed >= holeMost || math.Pow(s.loss, float64(failed)) <= holeDoubt)
}

// note counts a probe whose size passes.
func (s *sizeSearch) note(ok bool) {
	s.loss -= s.loss * lossShare
	if !ok {
		s.loss += lossShare
	}
}

// tries says whether a packet of the size passes, after at most n attempts.
func (s *sizeSearch) tries(size, n int) (bool, error) {
	for range n {
		if ok, err := s.try(size); ok || err != nil {
			return ok, err
		}
	}
	return false, nil
}

// try sends one probe and waits for its confirmation.
func (s *sizeSearch) try(size int) (bool, error) {
	s.id++
	sent := time.Now()
	if err := s.o.sendOwn(kindProbe, s.id, size); noSpace(err) {
		return false, nil
	} else if err != nil {
		return false, fmt.Errorf("send a probe: %w", err)
	}
	timeout := time.NewTimer(s.patience())
	defer timeout.Stop()
	for {
		select {
		case id := <-s.o.confirmed:
			if id != s.id {
				continue // a late one
			}
			s.rtt = (7*s.rtt + time.Since(sent)) / 8
			return true, nil
		case <-timeout.C:
			return false, nil
		case err := <-s.ended:
			return false, err
		case <-s.o.p.ctx.Done():
			return false, errEnded
		}
	}
}

// errRefused says that the interface refused a packet of the size in force.
var errRefused = errors.New("interface refuses the size")

// wait waits; the error is the session's end, or errRefused.
func (s *sizeSearch) wait(d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-s.o.tooLarge:
		return errRefused
	case <-s.o.check:
		s.asked = true
		return nil
	case err := <-s.ended:
		return err
	case <-s.o.p.ctx.Done():
		return errEnded
	}
}
