package epoch

import "time"

const (
	// moveTries bounds the attempts to open a carrier on a better path while the one in use works.
	moveTries = 5
	// goodLife is how long a carrier must have lived for its end to be no reason to wait before the next one.
	goodLife = time.Second
)

// Do is what a Sender orders.
type Do uint8

const (
	// Wait: nothing is to be done until the time given, or until something happens.
	Wait Do = iota
	// Send: write packets to the carrier in use, then call Sent.
	Send
	// Open: open the carrier, then call Opened.
	Open
	// Switch: the carrier opened last is the one in use from now on. The one before it, if any, ends with MARK.
	Switch
	// Hurry: the carrier in use may be stuck in a Write. Call Stuck a little later.
	Hurry
	// Abandon: reset the carrier in use; there is none then. What it had not taken whole goes to the next one.
	Abandon
	// Finish: end the carrier in use in order; there is none then.
	Finish
	// Rest: there is neither a carrier nor a packet.
	Rest
)

// Order is what is to be done now.
type Order struct {
	Do      Do
	Carrier Carrier // of Open
	Wait    Time    // of Wait: how long at most; after a failed Opened: until the next attempt
}

// State is where the sending side of a lane stands.
type State uint8

const (
	// Down: there is no carrier.
	Down State = iota
	// Up: there is one.
	Up
	// Moving: there is one, and a better one is wanted.
	Moving
)

// Config is what a Sender needs to know.
type Config struct {
	Nonce uint64
	// RetryMin and RetryMax bound the pause between two attempts to open a carrier; it doubles.
	RetryMin, RetryMax Time
}

// Situation is what the owner sees when it calls Next.
type Situation struct {
	Packets bool // there is something to send
	Wanted  bool // there soon will be
	Quiet   bool // nothing was sent or received for a while: no reason to open a carrier for a better path
	Idle    bool // the carrier is to end once everything is sent
}

// carrier is one that was opened; without an epoch there is none.
type carrier struct {
	epoch uint64
	since Time // when it was opened
}

// Sender decides on which carrier a lane sends. It is not safe for concurrent use.
type Sender struct {
	cfg     Config
	used    carrier // the one in use
	next    carrier // opened, and not yet in use
	opening bool
	writing bool // the owner is inside Write

	issued uint64 // the last epoch given out
	last   uint64 // the last epoch in use, 0 if it ended in order

	better  bool // a better path may exist
	tries   int  // failed attempts to open for that
	retryAt Time // no attempt before
	backoff Time
}

// NewSender returns the machine of a lane without a carrier.
func NewSender(cfg Config) Sender { return Sender{cfg: cfg} }

// Used is the epoch in use, 0 if there is none.
func (s *Sender) Used() uint64 { return s.used.epoch }

// State says where the lane stands.
func (s *Sender) State() State {
	switch {
	case s.used.epoch == 0:
		return Down
	case s.next.epoch != 0, s.opening, s.better && s.tries > 0:
		return Moving
	}
	return Up
}

// Next says what to do now. The one goroutine that writes calls it, again after each order but Wait and Rest.
func (s *Sender) Next(now Time, in Situation) Order {
	switch {
	case s.next.epoch != 0:
		s.used, s.next = s.next, carrier{}
		s.last = s.used.epoch
		return Order{Do: Switch}
	case s.used.epoch == 0:
		return s.connect(now, in)
	}
	better := s.better && !in.Quiet
	if better && s.due(now) {
		return s.open()
	}
	switch {
	case in.Packets:
		s.writing = true
		return Order{Do: Send}
	case in.Idle && !s.opening:
		s.used, s.better = carrier{}, false
		s.last = 0 // nothing of it is in flight when the next one begins
		return Order{Do: Finish}
	case better && !s.opening:
		return Order{Wait: s.retryAt - now}
	}
	return Order{Wait: Never}
}

// connect is Next without a carrier.
func (s *Sender) connect(now Time, in Situation) Order {
	switch {
	case s.opening:
		return Order{Wait: Never}
	case !in.Packets && !in.Wanted:
		return Order{Do: Rest}
	case s.due(now):
		return s.open()
	}
	return Order{Wait: s.retryAt - now}
}

func (s *Sender) due(now Time) bool { return !s.opening && s.next.epoch == 0 && now >= s.retryAt }

func (s *Sender) open() Order {
	s.opening, s.better = true, false
	s.issued++
	return Order{Do: Open, Carrier: Carrier{Nonce: s.cfg.Nonce, Epoch: s.issued, After: s.last}}
}

// Opened takes the outcome of Open. Where the carrier in use is inside Write, that may be stuck.
func (s *Sender) Opened(now Time, ok bool) Order {
	s.opening = false
	if !ok {
		s.failed(now)
		if s.used.epoch != 0 {
			s.tries++
			s.better = s.better || s.tries < moveTries
		}
		return Order{Wait: s.backoff}
	}
	s.next, s.tries = carrier{s.issued, now}, 0
	if s.used.epoch != 0 && s.writing {
		return Order{Do: Hurry}
	}
	return Order{}
}

// Stuck gives a carrier up that is still inside the Write that Hurry was about. One whose Write ended in time is kept.
func (s *Sender) Stuck(epoch uint64) Order {
	if s.used.epoch != epoch || !s.writing {
		return Order{}
	}
	return s.abandon()
}

// Sent follows Send: the Write to epoch has ended, with an error if broken.
func (s *Sender) Sent(now Time, epoch uint64, broken bool) Order {
	s.writing = false
	if !broken || s.used.epoch != epoch { // else it was abandoned on purpose
		return Order{}
	}
	if now-s.used.since > goodLife {
		s.backoff, s.retryAt = 0, 0
	} else {
		s.failed(now)
	}
	return s.abandon()
}

// PathChanged says that a better path may exist. A lane in use opens a carrier immediately, even inside Write. A quiet one
// opens it with its next packet: opening connects, and would reconnect a peer that has just disconnected. A lane without
// a carrier tries again immediately.
func (s *Sender) PathChanged(now Time, quiet bool) Order {
	s.retryAt, s.backoff = 0, 0
	if s.used.epoch != 0 || s.next.epoch != 0 || s.opening { // an attempt that has begun may miss the change
		s.better, s.tries = true, 0
	}
	if s.used.epoch != 0 && !quiet && s.due(now) {
		return s.open()
	}
	return Order{}
}

// PathLost reports a dead path; used is whether it is the one of the carrier in use. It is PathChanged as well.
func (s *Sender) PathLost(now Time, used, quiet bool) Order {
	if s.used.epoch == 0 || !used {
		return s.PathChanged(now, quiet)
	}
	o := s.abandon()
	s.PathChanged(now, quiet)
	return o
}

// Close says that the owner sends nothing more: a Write is not waited for.
func (s *Sender) Close() Order {
	if s.used.epoch != 0 && s.writing {
		return s.abandon()
	}
	return Order{}
}

func (s *Sender) abandon() Order {
	s.used = carrier{}
	return Order{Do: Abandon}
}

// failed chooses when to try again after a carrier could not be opened, or broke early.
func (s *Sender) failed(now Time) {
	s.backoff = min(max(2*s.backoff, s.cfg.RetryMin), s.cfg.RetryMax)
	s.retryAt = now + s.backoff
}
