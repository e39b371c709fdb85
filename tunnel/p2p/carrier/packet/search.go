package packet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/bits"
	"slices"
	"sync/atomic"
	"time"
)

const (
	// basePacket is the sealed packet that every path is expected to carry, bytes (BASE_PLPMTU, RFC 8899 section 5.1.2).
	basePacket = 1200
	// tinyPacket is a sealed packet that passes wherever anything does, bytes.
	tinyPacket = 64
	// A size counts as too large after climbTries probes without an answer. One that has passed before gets goneTries,
	// each beside a tiny one, and on a lossy path up to goneMost, until loss alone explains the silence with a
	// probability of goneByLoss at most: a path in use is probed every second, and a false alarm costs its connection.
	climbTries = 3
	goneTries  = 5
	goneMost   = 20
	goneByLoss = 1e-6
	// lossShare is the weight of one probe in the moving average of loss.
	lossShare = 1.0 / 32
	// confirmEvery is the interval between probes of the size in use while the path is used, climbEvery between
	// searches for a larger one (PMTU_RAISE_TIMER of RFC 8899 is 10 min).
	confirmEvery = time.Second
	climbEvery   = time.Minute
	// A path that has carried nothing for idleRounds intervals is looked at every restEvery; the owner of the path has its
	// size confirmed when it carries something again (Flight.Confirm).
	idleRounds = 5
	restEvery  = time.Minute
	// muteRetry is the pause when not even basePacket passes.
	muteRetry = 2 * time.Second
	// A circuit carries datagrams better where worseMost of the last 16 questions say so, which were put while less than quietBytes
	// were sent. One of eight packets lost makes four.
	worseMost  = 4
	quietBytes = 256 << 10
	// firstTrip is the round trip as long as it is not known.
	firstTrip = 100 * time.Millisecond
	// The next probe is sent after three round trips without an answer, within these bounds. An answer that comes later
	// counts as well, for up to openProbes: the first round trip, or that of a queue which has just filled, may be longer.
	probeLeast, probeMost = 100 * time.Millisecond, 2 * time.Second
	openProbes            = 2 * goneMost
)

// pathMTUs are those of common links, bytes: IPv6's minimum, tunnels, PPPoE, Ethernet, jumbo frames.
func pathMTUs() []int { return []int{1280, 1320, 1360, 1400, 1420, 1440, 1460, 1480, 1492, 1500, 9000} }

// packetSizes are the sealed packets that fill them, bytes, basePacket first.
func packetSizes(v6 bool, largest int) []int {
	headers := 28 // IPv4 and UDP
	if v6 {
		headers = 48
	}
	sizes := []int{basePacket}
	for _, mtu := range pathMTUs() {
		if n := mtu - headers; n > basePacket && n <= min(largest, maxPacket) {
			sizes = append(sizes, n)
		}
	}
	return sizes
}

// search finds how large a packet passes. It is one goroutine's.
type search struct {
	sizes []int         // to try, ascending
	size  *atomic.Int32 // in use
	// narrow says that the size is asked about because nothing is acknowledged; packets are of basePacket until it is answered.
	narrow *atomic.Bool
	// passes reports whether other packets were acknowledged a moment ago: probes wait in the queue then.
	passes func() bool
	// probe sends a probe of a size; its ID comes back on arrived if it passes.
	probe   func(id uint32, size int) error
	arrived <-chan uint32
	// tooLarge says that the interface refused a packet of the size in use, confirm that this size may be too large.
	tooLarge, confirm <-chan struct{}
	// quicNeeds is the size of QUIC's own packets; an error: the connection is over. nil: the path is not QUIC's.
	quicNeeds func() (int, error)
	// slow reports whether a round trip is too long, as a circuit carries datagrams, too; nil: the path has nothing better.
	slow func(rtt time.Duration) bool
	path Path
	log  *slog.Logger
	seen
}

// seen is what a search has learnt from its probes.
type seen struct {
	rtt  time.Duration // 0: unknown
	id   uint32        // of the last probe; two paths beside one connection begin at different ones
	due  bool          // to confirm the size, whether or not the path is used
	loss float64       // share of probes lost although their size passes
	bad  uint16        // the last questions while little was sent: one bit each, set where a probe was lost or late
	open []probe       // probes without an answer, the oldest first
	question
}

// question is whether a size passes, which takes several probes.
type question struct {
	first   uint32 // its first probe
	answers int    // to its probes
	best    int    // the largest that an answer has confirmed, bytes
}

// probe is one that was sent.
type probe struct {
	id   uint32
	size int
	at   time.Time
}

// run keeps the size true (RFC 8899) until ctx ends, with an error.
func (s *search) run(ctx context.Context) error {
	for mute := false; ; {
		ok, err := s.tries(ctx, basePacket, goneTries)
		switch {
		case err != nil:
			return err
		case !ok && mute:
			return errMute
		}
		if mute = !ok; mute { // the round trip may be longer
			if err := s.wait(ctx, muteRetry); err != nil && !errors.Is(err, errTooLarge) {
				return err
			}
			continue
		}
		if err := s.climb(ctx); err != nil {
			return err
		}
		s.log.Debug("sealed packets work on this path", "peer", s.path.Peer(), "bytes", s.size.Load())
		before, err := s.hold(ctx)
		if err != nil {
			return err
		}
		s.size.Store(basePacket)
		s.narrow.Store(false)
		if err := s.checkQUIC(ctx, before); err != nil {
			return err
		}
	}
}

// checkQUIC reports the path as broken if QUIC's own packets, too, are larger than what passes. QUIC does not notice: it
// keeps sending packets that vanish, while small ones pass and the connection looks alive. A new one does not begin then.
// With an MTU that falls to 576, a transfer continues after 2.5 to 4.1 s; by liveness alone it was 7.6 s
// (docs/measurements/failover.md).
func (s *search) checkQUIC(ctx context.Context, before int) error {
	if s.quicNeeds == nil {
		return nil
	}
	needs, err := s.quicNeeds()
	if err != nil {
		return err
	}
	passes := false
	if needs < before {
		if passes, err = s.tries(ctx, needs, goneTries); err != nil {
			return err
		}
	}
	s.log.Info("MTU of the path decreased", "peer", s.path.Peer(), "before", before, "quicNeeds", needs, "quicPasses", passes)
	if passes {
		return nil
	}
	s.path.Broken(fmt.Sprintf("loses packets of %d bytes, smaller ones pass", min(before, needs)))
	return errEnded
}

// patience is how long an answer is awaited before the next probe.
func (s *search) patience() time.Duration {
	return min(max(3*cmp.Or(s.rtt, firstTrip), probeLeast), probeMost)
}

// climb raises the size in use to the largest that passes. Ethernet's, the largest but jumbo frames, is tried first.
func (s *search) climb(ctx context.Context) error {
	low, high := 0, len(s.sizes) // sizes[low] passes, sizes[high] does not
	for i, n := range s.sizes {
		if n <= int(s.size.Load()) {
			low = i
		}
	}
	for next := len(s.sizes) - 2; high-low > 1; next = (low + high) / 2 {
		next = min(max(next, low+1), high-1)
		ok, err := s.tries(ctx, s.sizes[next], climbTries)
		if err != nil {
			return err
		}
		if ok {
			low = next
			s.size.Store(int32(s.sizes[low]))
		} else {
			high = next
		}
	}
	return nil
}

// hold confirms the size in use while the path is used, and searches for a larger one now and then. It returns the size
// when that no longer passes.
func (s *search) hold(ctx context.Context) (size int, err error) {
	moved, climbed, idle := uint64(0), time.Now(), 0
	for {
		pause := confirmEvery
		if idle >= idleRounds {
			pause = restEvery
		}
		if err := s.wait(ctx, pause); errors.Is(err, errTooLarge) {
			return int(s.size.Load()), nil
		} else if err != nil {
			return 0, err
		}
		now := s.path.Carried()
		if now == moved && !s.due {
			idle++
			continue
		}
		quiet := now-moved < quietBytes
		moved, s.due, idle = now, false, 0
		size := int(s.size.Load())
		vanish, err := s.blackHole(ctx, size)
		if vanish {
			s.path.Narrowed()
		}
		if vanish || err != nil {
			return size, err
		}
		s.narrow.Store(false)
		if s.slow != nil && quiet && s.isWorse() {
			return 0, errWorse
		}
		if time.Since(climbed) > climbEvery {
			climbed = time.Now()
			if err := s.climb(ctx); err != nil {
				return 0, err
			}
		}
	}
}

// isWorse reports whether a circuit carries datagrams better: too many of the last questions took a second probe, or too long.
// Packets that fill the path say nothing of it.
func (s *search) isWorse() bool {
	s.bad <<= 1
	if s.id != s.first || s.slow(s.rtt) {
		s.bad |= 1
	}
	return bits.OnesCount16(s.bad) >= worseMost
}

// blackHole reports whether packets of a size vanish while tiny ones pass. The error is errMute where tiny ones vanish as
// well, more than loss explains. The connection may live all the same: QUIC's packets leave by the interface on which the
// peer's arrive, these by the route, which a move of the uplink has changed.
func (s *search) blackHole(ctx context.Context, size int) (bool, error) {
	failed, loss := 0, s.loss
	s.begin()
	for !s.isTelling(failed) {
		ok, err := s.try(ctx, size)
		if err == nil && !ok {
			failed++
			ok, err = s.try(ctx, tinyPacket)
		}
		if err != nil {
			return false, err
		}
		if s.best >= size {
			for range s.lost(size) {
				s.note(false)
			}
			s.note(true)
			return false, nil
		}
		s.note(ok)
		if s.answers == 0 && failed >= goneTries && math.Pow(loss, float64(2*failed)) <= goneByLoss {
			s.loss = loss
			if s.passes() {
				return false, nil
			}
			return false, errMute
		}
	}
	return s.answers >= 2, nil
}

// isTelling reports whether so many lost packets of one size are more than loss explains.
func (s *search) isTelling(failed int) bool {
	return failed >= goneTries && (failed >= goneMost || math.Pow(s.loss, float64(failed)) <= goneByLoss)
}

// note counts a probe whose size passes in the loss of the path.
func (s *search) note(ok bool) {
	s.loss -= s.loss * lossShare
	if !ok {
		s.loss += lossShare
	}
}

// tries reports whether a packet of the size passes, with at most n probes.
func (s *search) tries(ctx context.Context, size, n int) (bool, error) {
	s.begin()
	for range n {
		if ok, err := s.try(ctx, size); ok || err != nil {
			return ok, err
		}
	}
	return false, nil
}

// begin begins a question, to which answers to earlier probes do not belong: the path may have changed since.
func (s *search) begin() { s.question = question{first: s.id + 1} }

// lost is how many probes of the present question and a size have no answer in time.
func (s *search) lost(size int) (n int) {
	for _, p := range s.open {
		if int32(p.id-s.first) >= 0 && p.size == size && time.Since(p.at) >= s.patience() {
			n++
		}
	}
	return n
}

// try sends one probe and waits for its confirmation, or for that of an earlier one of the question, of its size or more.
func (s *search) try(ctx context.Context, size int) (bool, error) {
	for len(s.arrived) > 0 { // since the last question
		if s.answered(<-s.arrived, size) {
			return true, nil
		}
	}
	s.id++
	sent := time.Now()
	if err := s.probe(s.id, size); isTooLarge(err) {
		return false, nil
	} else if err != nil {
		return false, fmt.Errorf("send a probe: %w", err)
	}
	if len(s.open) == openProbes {
		s.open = slices.Delete(s.open, 0, 1)
	}
	s.open = append(s.open, probe{s.id, size, sent})
	timeout := time.NewTimer(s.patience())
	defer timeout.Stop()
	for {
		select {
		case id := <-s.arrived:
			if s.answered(id, size) {
				return true, nil
			}
		case <-timeout.C:
			return false, nil
		case <-ctx.Done():
			return false, errEnded
		}
	}
}

// answered takes a confirmation, and reports whether it says that packets of the size pass. The first round trip, and one that is
// longer than what was waited for, count immediately, a shorter one by an eighth.
func (s *search) answered(id uint32, size int) bool {
	i := slices.IndexFunc(s.open, func(p probe) bool { return p.id == id })
	if i < 0 {
		return false
	}
	p := s.open[i]
	s.open = slices.Delete(s.open, i, i+1)
	if rtt := time.Since(p.at); s.rtt == 0 || rtt > s.patience() {
		s.rtt = rtt
	} else {
		s.rtt = (7*s.rtt + rtt) / 8
	}
	if int32(p.id-s.first) < 0 {
		return false
	}
	s.answers++
	s.best = max(s.best, p.size)
	return p.size >= size
}

// wait waits for d, or until the size is to be confirmed. The error is errEnded, or errTooLarge.
func (s *search) wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	for {
		select {
		case id := <-s.arrived:
			s.answered(id, 0) // late, which says how long a round trip is
		case <-timer.C:
			return nil
		case <-s.tooLarge:
			return errTooLarge
		case <-s.confirm:
			s.due = true
			return nil
		case <-ctx.Done():
			return errEnded
		}
	}
}
