package socket

import (
	"math/rand/v2"
	"slices"
	"time"
)

// line is a link with a router's queue in front of it: a fluid, in steps of a millisecond.
type line struct {
	rate   func(at time.Duration) float64 // bytes per second
	trip   time.Duration
	buffer float64 // bytes
	loss   float64 // share that is lost besides

	at      time.Duration
	queue   float64 // bytes
	dropped float64
	waits   []float64 // seconds, in each step
}

const (
	testSegment = 1400
	tick        = time.Millisecond
	mbit        = 1e6 / 8
)

// segments are so many full ones.
func segments(n uint32) traffic { return traffic{uint64(n) * testSegment, n} }

func steady(rate float64) func(time.Duration) float64 {
	return func(time.Duration) float64 { return rate }
}

// varying is a phone's rate: within 60 % of the mean, another one each second.
func varying(mean float64) func(time.Duration) float64 {
	r := rand.New(rand.NewPCG(1, 2))
	var rates []float64
	for range 100 {
		rates = append(rates, mean*(0.4+1.2*r.Float64()))
	}
	return func(at time.Duration) float64 { return rates[int(at/time.Second)%len(rates)] }
}

// steps has a rate for each second.
func steps(rates ...float64) func(time.Duration) float64 {
	return func(at time.Duration) float64 { return rates[min(int(at/time.Second), len(rates)-1)] }
}

// run lets the senders use the line until a moment.
func (l *line) run(until time.Duration, senders ...*sender) {
	for ; l.at < until; l.at += tick {
		rate := l.rate(l.at)
		var in float64
		outs := make([]float64, len(senders))
		for i, s := range senders {
			outs[i] = s.send(l)
			in += outs[i] * (1 - l.loss)
		}
		l.queue += in
		gone := min(l.queue, rate*tick.Seconds())
		l.queue -= gone
		over := max(0, l.queue-l.buffer)
		l.queue -= over
		l.dropped += over
		for i, s := range senders {
			mine := outs[i] * (1 - l.loss)
			if in > 0 {
				s.lost(mine * over / in)
				mine -= mine * over / in
			}
			s.lost(outs[i] * l.loss)
			s.waiting += mine
		}
		var all float64
		for _, s := range senders {
			all += s.waiting
		}
		for _, s := range senders {
			if all > 0 {
				s.acked(l, gone*s.waiting/all)
			}
		}
		l.waits = append(l.waits, l.queue/max(rate, 1e5))
	}
}

// goodput lets a sender use the line until a moment, and returns how much arrives from then to another one, in Mbit/s.
func (l *line) goodput(s *sender, from, to time.Duration) float64 {
	l.run(from, s)
	got := s.got
	l.run(to, s)
	return (s.got - got) / (to - from).Seconds() / mbit
}

// wait is a percentile of how long the queue was since a moment.
func (l *line) wait(since time.Duration, part float64) time.Duration {
	w := slices.Sorted(slices.Values(l.waits[since/tick:]))
	return time.Duration(w[int(part*float64(len(w)-1))] * float64(time.Second))
}

// sender has the kernel's BBR v1, as far as the pacer sees it.
type sender struct {
	pacer *pacer // nil: BBR alone
	// wants is how much there is to send, bytes per second; 0: whatever goes.
	wants float64
	// late is how much longer its round trips are, because of others.
	late func(at time.Duration) time.Duration
	// peer is how much the peer sends, bytes per second, and when.
	peer                float64
	peerFrom, peerUntil time.Duration

	waiting, under, backlog float64 // bytes: in the router, sent and not acknowledged, to be sent
	acks                    []float64
	limit, pacing, window   float64
	rtt, least              float64 // s

	// BBR
	estimate  float64
	samples   []float64
	starting  bool
	full      int
	fullAt    float64
	cycle     int
	limited   bool // the application sent less in this round
	roundEnd  time.Duration
	inRound   float64
	sent, got float64
	resent    float64

	answers  uint32
	restarts int
	wrote    time.Duration
	stopped  func(at time.Duration) bool // nothing is to be sent
}

func newSender(p *pacer) *sender {
	return &sender{pacer: p, limit: 1e12, window: 10 * testSegment, starting: true, peerUntil: time.Hour,
		acks: make([]float64, 1<<13)}
}

// stale is a sender that knows the line as one of this rate, in bytes per second.
func (l *line) stale(rate float64) *sender {
	s := newSender(&pacer{line: uint64(rate), limit: uint64(rate), set: uint64(rate)})
	s.limit = rate
	s.starting, s.estimate, s.samples, s.window = false, rate, []float64{rate}, 2*rate*l.trip.Seconds()
	return s
}

func (s *sender) lost(n float64) {
	s.under -= n
	s.resent += n
}

// send returns how much is sent in this step.
func (s *sender) send(l *line) float64 {
	if s.rtt == 0 {
		s.rtt = l.trip.Seconds() + l.queue/max(l.rate(l.at), 1e5)
		s.least = s.rtt
		s.pacing = 2.89 * s.window / s.rtt
	}
	now := l.trip.Seconds() + l.queue/max(l.rate(l.at), 1e5)
	i := int(l.at/tick) % len(s.acks)
	if s.late != nil {
		now += s.late(l.at).Seconds()
	}
	got := s.acks[i]
	s.acks[i] = 0
	s.got += got
	s.inRound += got
	s.under -= got
	if got > 0 {
		for range int(got/testSegment) + 1 {
			s.rtt += (now - s.rtt) / 8
			s.answers++
		}
		s.least = min(s.least, now)
	}
	s.bbr(l, got)
	if s.stopped != nil && s.stopped(l.at) {
		s.limited = true
		return 0
	}
	if out := min(s.pacing*tick.Seconds(), max(0, s.window-s.under)); out > 0 {
		s.decide(l)
		s.wrote = l.at
	}
	out := min(s.pacing*tick.Seconds(), max(0, s.window-s.under))
	if s.wants > 0 {
		s.backlog = min(s.backlog+s.wants*tick.Seconds(), 1<<20)
		if out > s.backlog {
			out, s.limited = s.backlog, true
		}
		s.backlog -= out
	} else {
		s.backlog = 1
	}
	s.sent += out
	s.under += out
	return out
}

func (s *sender) bbr(l *line, got float64) {
	if s.starting {
		s.pacing = max(s.pacing, 2.89*s.estimate)
		if s.window < 2.89*s.estimate*s.least || s.got < 10*testSegment {
			s.window += got
		}
	} else {
		s.pacing = []float64{1.25, 0.75, 1, 1, 1, 1, 1, 1}[s.cycle] * s.estimate
		s.window = 2*s.estimate*s.least + 4*testSegment
	}
	s.pacing = min(s.pacing, s.limit)
	if l.at < s.roundEnd {
		return
	}
	sample := s.inRound / s.rtt
	if !s.limited || sample > s.estimate {
		s.samples = append(s.samples, sample)
		s.samples = s.samples[max(0, len(s.samples)-10):]
		s.estimate = slices.Max(s.samples)
	}
	if s.starting && !s.limited {
		if s.estimate >= 1.25*s.fullAt {
			s.fullAt, s.full = s.estimate, 0
		} else if s.full++; s.full >= 3 {
			s.starting = false
		}
	}
	s.cycle = (s.cycle + 1) % 8
	s.inRound, s.limited, s.roundEnd = 0, false, l.at+time.Duration(s.rtt*1e9)
}

// acked has so much acknowledged a round trip later.
func (s *sender) acked(l *line, n float64) {
	s.waiting -= n
	s.acks[int((l.at+l.trip)/tick)%len(s.acks)] += n
}

func (s *sender) sight(l *line) sight {
	count := func(bytes float64) traffic { return traffic{uint64(bytes), uint32(bytes / testSegment)} }
	least := time.Duration(s.least * 1e9)
	return sight{rate: uint64(s.estimate), starting: s.starting, rtt: time.Duration(s.rtt * 1e9), floor: least, recent: least,
		underWay: uint64(s.under), inFlight: uint64(s.under), arrived: count(s.got), sent: count(s.sent),
		resent: uint32(s.resent / testSegment), segment: testSegment,
		came: s.answers, unsent: s.backlog > 0, paused: l.at - s.wrote}
}

func (s *sender) decide(l *line) {
	if s.pacer == nil || l.at%tuneEvery != 0 {
		return
	}
	sight := s.sight(l)
	peer := s.peer * max(0, min(l.at, s.peerUntil)-s.peerFrom).Seconds()
	sight.received = traffic{uint64(peer), uint32(peer / testSegment)}
	now := time.Unix(1000, 0).Add(l.at)
	o := s.pacer.decide(sight, now)
	if o.limit != 0 {
		s.limit = float64(o.limit)
	}
	if o.restart {
		s.restarts++
		s.starting, s.full, s.fullAt, s.samples, s.estimate = true, 0, 0, nil, 0
		s.pacing = 2.89 * s.window / s.rtt
	}
}
