package flight

import (
	"math"
	"math/rand/v2"
	"testing"

	"edgemesh/test/lab/link"
	"edgemesh/tunnel/pull"
)

// sending returns a lab whose first end has packets in flight, and has had acknowledgements.
func sending(t *testing.T) *lab {
	l := newLab(t, direction(10, 50, 0), direction(10, 50, 0), 1)
	l.e[0].source.endless = 4
	for b := range 4 {
		l.e[0].source.add(b, 1)
	}
	l.run(2, nil)
	if l.e[0].path.s.inFlight == 0 {
		t.Fatal("nothing is in flight")
	}
	return l
}

// honest is an ACK of the oldest packet in flight alone, as it may come now.
func (l *lab) honest() ack {
	s := &l.e[0].path.s
	r := s.record(s.first)
	a := ack{newest: uint32(s.first), got: r.total, computed: s.computed, n: 1, arrived: uint32(int64((r.sent + s.shift) * 1e6))}
	a.runs[0].arrived = 1
	return a
}

// leap leaves out five numbers.
func (l *lab) leap() {
	e := l.e[0]
	e.path.reserve(e.number + 5)
	e.path.s.sent(l.now, e.number+5, 100, chain{}, true, true)
	e.number += 6
}

// say has the second end send an ACK, which arrives.
func (l *lab) say(a *ack) {
	l.e[0].path.Receive(l.e[1].number, a.append(nil), l.now, l.now)
	l.e[1].number++
}

// ACKs that no receiver sends are counted and not believed, and the flow continues.
func TestForgedAcks(t *testing.T) {
	for _, c := range []struct {
		name  string
		why   Reason
		forge func(l *lab, a *ack)
	}{
		{"of a packet to come", NeverSent, func(l *lab, a *ack) { a.newest = uint32(l.e[0].number) }},
		{"of a packet far ahead", NeverSent, func(_ *lab, a *ack) { a.newest += 1 << 30 }},
		{"of more packets than there are", NeverSent, func(_ *lab, a *ack) { a.runs[0].arrived = 65535 }},
		{"of a number that was not used", NeverSent, func(l *lab, a *ack) {
			l.leap()
			a.newest = uint32(l.e[0].number - 3)
		}},
		{"of a run that has one", NeverSent, func(l *lab, a *ack) {
			l.leap()
			a.newest = uint32(l.e[0].number - 1)
			a.runs[0].arrived = 8
		}},
		{"of more bytes", TooManyBytes, func(_ *lab, a *ack) { a.got += addressDiff*uint64(a.newest+1) + 1 }},
		{"of all bytes", TooManyBytes, func(_ *lab, a *ack) { a.got = math.MaxUint64 }},
		{"after a delay longer than the round trip", WrongTime, func(_ *lab, a *ack) { a.delay = 65535 }},
		{"with a time that runs backwards", WrongTime, func(_ *lab, a *ack) { a.arrived -= 3e6 }},
		{"with a time that leaps", WrongTime, func(_ *lab, a *ack) { a.arrived += 1e9 }},
	} {
		l := sending(t)
		e := l.e[0]
		a := l.honest()
		c.forge(l, &a)
		before := e.path.s.control.Rate(e.path.s.inFlight)
		l.say(&a)
		if e.peer.Refused()[c.why] != 1 {
			t.Errorf("%s: refused %v", c.name, e.peer.Refused())
		}
		l.consistent()
		if rate := e.path.s.control.Rate(e.path.s.inFlight); rate > 1.3*before {
			t.Errorf("%s: the rate is %.0f, was %.0f", c.name, rate, before)
		}
		before = float64(l.e[1].sink.bytes)
		l.run(l.now+4, nil)
		if mbit := (float64(l.e[1].sink.bytes) - before) * 8 / 4 / 1e6; mbit < 7 {
			t.Errorf("%s: %.1f of 10 Mbit/s afterwards", c.name, mbit)
		}
	}
	for _, n := range []uint64{0, 1, 5} { // old news are none
		l := sending(t)
		a := l.honest()
		a.newest = uint32(n)
		l.say(&a)
		if l.e[0].peer.Refused() != (Refused{}) {
			t.Errorf("an ACK of packet %d is refused: %v", n, l.e[0].peer.Refused())
		}
	}
}

// A receiver that says of everything that it arrived, early, is found out by numbers that are not used, RFC 9000 21.4.
func TestLyingReceiver(t *testing.T) {
	l := sending(t)
	l.skip = 500
	e := l.e[0]
	sent := e.path.s.total
	for end := l.now + 10; l.now < end; {
		l.run(l.now+.005, nil)
		a := l.honest()
		a.newest, a.got = uint32(e.path.s.next-1), e.path.s.total
		a.arrived = uint32(int64((l.now - .1) * 1e6)) // no queue, ever
		a.runs[0].arrived = uint16(min(e.path.s.next, 65535))
		l.say(&a)
		l.consistent()
	}
	if mbit := float64(e.path.s.total-sent) * 8 / 10 / 1e6; mbit > 20 {
		t.Errorf("%.0f Mbit/s into a line of 10", mbit)
	}
	if held, _ := e.peer.Held(); held > maxHeld || e.peer.Refused()[NeverSent] < 500 {
		t.Errorf("holds %d bytes, refused %v", held, e.peer.Refused())
	}
}

// A receiver whose clock is slow, so that what arrives seems to arrive faster, wins nothing by it, not if it leaps now and then, either.
// One that stands costs no memory.
func TestSlowClock(t *testing.T) {
	type clock func(us uint32) uint32
	slow := func(speed float64) clock { return func(us uint32) uint32 { return uint32(speed * float64(us)) } }
	for name, c := range map[string]clock{"half": slow(.5), ".9": slow(.9), ".001": slow(.001), "none": slow(0),
		"half, back by 2 ms every 200 ms":    func(us uint32) uint32 { return 1<<31 + us/2 - us/200_000*2000 },
		"half, forward by 2 s every 200 ms":  func(us uint32) uint32 { return us/2 + us/200_000*2_000_000 },
		"half, right again each half second": func(us uint32) uint32 { return us/500_000*500_000 + us%500_000/2 },
	} {
		l := newLab(t, direction(10, 50, 0), direction(10, 50, 0), 1)
		e := l.e[0]
		e.source.endless = 1
		e.source.add(0, 1)
		l.filter = func(from int, _ uint64, payload []byte) bool {
			if from == 1 && payload[0] == kindAck {
				order.PutUint32(payload[5:], c(order.Uint32(payload[5:])))
			}
			return true
		}
		l.run(20, nil)
		if mbit := float64(e.path.s.total) * 8 / 20 / 1e6; mbit > 13 {
			t.Errorf("%s of a clock's speed: %.1f Mbit/s into a line of 10", name, mbit)
		}
		if why := e.peer.Refused(); why[WrongTime] == 0 {
			t.Errorf("%s of a clock's speed: refused %v", name, why)
		}
		l.consistent()
	}
}

// Two clocks drift apart, one may be slewed, and a path may rest for long: nothing is refused, and the rate stays.
func TestDriftingClocks(t *testing.T) {
	for _, drift := range []float64{0, -.0004, .0004} {
		l := newLab(t, direction(10, 1, 0), direction(10, 1, 0), 1)
		e := l.e[0]
		l.filter = func(from int, _ uint64, payload []byte) bool {
			if from == 1 && payload[0] == kindAck {
				order.PutUint32(payload[5:], uint32((1+drift)*float64(order.Uint32(payload[5:]))))
			}
			return true
		}
		for range 3 {
			e.source.endless = 1
			e.source.add(0, 1)
			before := l.e[1].sink.bytes
			l.run(l.now+30, nil)
			if mbit := float64(l.e[1].sink.bytes-before) * 8 / 30 / 1e6; mbit < 8 {
				t.Errorf("drift %g, after %.0f s: %.1f Mbit/s", drift, l.now, mbit)
			}
			e.source.endless = 0
			l.run(l.now+600, nil)
		}
		if why := e.peer.Refused(); why != (Refused{}) {
			t.Errorf("drift %g: refused %v", drift, why)
		}
		l.consistent()
	}
}

// Behind NAT64 packets are longer at the one end than at the other: nothing is refused.
func TestLongerHeaders(t *testing.T) {
	for i := range 2 {
		l := newLab(t, direction(10, 20, 0), direction(10, 20, 0), 1)
		l.e[i].path.s.overhead += addressDiff
		l.e[0].source.endless = 1
		l.e[0].source.add(0, 1)
		l.run(10, nil)
		if mbit := float64(l.e[1].sink.bytes) * 8 / 10 / 1e6; mbit < 8 || l.e[0].peer.Refused() != (Refused{}) {
			t.Errorf("%.1f Mbit/s, refused %v", mbit, l.e[0].peer.Refused())
		}
	}
}

// Packets that were on their way when the line became another one say nothing of the new one, RFC 9000 9.4, and do not fill its window:
// all may be lost.
func TestAcksOfTheOldLine(t *testing.T) {
	for _, arrive := range []bool{true, false} {
		l := sending(t)
		e := l.e[0]
		var old []uint64
		for n := e.path.s.first; n < e.path.s.next; n++ {
			old = append(old, n)
		}
		e.path.Afresh()
		if n := e.path.InFlight(); n != 0 {
			t.Errorf("%.0f bytes are in flight on a line that nothing was sent on", n)
		}
		for i, e := range l.e { // what is on its way is lost
			e.out = link.NewQueue(direction(10, 50, 0), uint64(9+i), maxPayload+testOverhead+16)
		}
		for _, n := range old {
			if arrive && n%2 == 0 {
				a := ack{newest: uint32(n), arrived: uint32(int64(l.now * 1e6)), got: 1, n: 1}
				a.runs[0].arrived = 1
				l.say(&a)
			}
		}
		if e.path.s.any || e.path.s.srtt != firstRTT {
			t.Errorf("a round trip of %.3f s is known", e.path.s.srtt)
		}
		sent := float64(l.e[1].sink.bytes)
		l.run(l.now+1, nil)
		if got := float64(l.e[1].sink.bytes) - sent; got < 200_000 {
			t.Errorf("%.0f bytes in the second after", got)
		}
		if loss := e.path.s.control.Loss(); !e.path.s.any || loss > .01 {
			t.Errorf("known of the new line: %v, loss %.3f", e.path.s.any, loss)
		}
		l.consistent()
	}
}

// A peer that never acknowledges: few packets, bounded memory, no spin.
func TestNeverAcknowledges(t *testing.T) {
	l := newLab(t, direction(100, 10, 0), direction(100, 10, 0), 1)
	s := l.e[0].source
	s.endless = pull.Buckets
	for b := range pull.Buckets {
		s.add(b, 1)
	}
	l.filter = func(from int, _ uint64, _ []byte) bool { return from == 0 }
	l.run(60, nil)
	e := l.e[0]
	held, _ := e.peer.Held()
	if held > maxHeld || e.number > 1000 || l.steps > 200_000 || len(e.path.s.records) > 2048 {
		t.Errorf("holds %d bytes, sent %d packets in %d steps, %d records", held, e.number, l.steps, len(e.path.s.records))
	}
	if silent := e.path.Silent(l.now); silent < 59 {
		t.Errorf("silent for %.1f s", silent)
	}
	if got := e.peer.Counters(); got.Restarts == 0 {
		t.Error("no bucket began again")
	}
}

// Frames that begin and never end: what is kept of them counts as memory of all peers, as what is behind holes does, and one bucket alone goes beyond a peer's own, so that
// whoever has no more than that gets each frame. It is given back.
func TestFramesNeverEnd(t *testing.T) {
	memory := NewMemory(1 << 20)
	piece := func(bucket int, offset uint32, b []byte) []byte {
		return append(appendStreamHeader(nil, stream{bucket: byte(bucket), offset: offset}, len(b)), b...)
	}
	var all []*Peer
	now := 0.0
	for range 20 {
		sink := &testSink{t: t}
		peer := NewPeer(newSource(t, 1), sink, memory)
		all = append(all, peer)
		path, number := peer.NewPath(testOverhead), uint64(0)
		for bucket := range pull.Buckets {
			frame := fillFrame(nil, bucket, 0, 12_000)
			for at := 0; at < 11_000; at += 1000 {
				path.Receive(number, piece(bucket, uint32(at), frame[at:at+1000]), now, now)
				number++
			}
		}
		if _, held := peer.Held(); held < leastHeld/2 {
			t.Errorf("a peer holds %d bytes alone", held)
		}
	}
	sum := 0
	for _, p := range all {
		_, held := p.Held()
		sum += held
	}
	if most := 1<<20 + len(all)*(2*leastHeld+12_000); sum > most {
		t.Errorf("%d bytes of frames that never end, want at most %d", sum, most)
	}
	// One with little of its own gets its frames beside them.
	sink := &testSink{t: t}
	peer := NewPeer(newSource(t, 1), sink, memory)
	path, number := peer.NewPath(testOverhead), uint64(0)
	frames := make([][]byte, 30) // 360 KB, interleaved
	for i := range frames {
		frames[i] = fillFrame(nil, i, 0, 12_000)
	}
	for at := 0; at < 12_000; at += 1000 {
		for i, f := range frames {
			path.Receive(number, piece(i, uint32(at), f[at:at+1000]), now, now)
			number++
		}
	}
	for range len(frames) { // what was refused is sent again
		for i, f := range frames {
			for at := 0; at < 12_000; at += 1000 {
				path.Receive(number, piece(i, uint32(at), f[at:at+1000]), now, now)
				number++
			}
		}
	}
	if sink.frames != len(frames) {
		t.Errorf("%d of %d frames", sink.frames, len(frames))
	}
	now += brokenTime + 1
	for _, p := range all {
		p.in.expire(now)
		if _, held := p.Held(); held != 0 {
			t.Errorf("%d bytes held after %v s", held, brokenTime)
		}
	}
	if n := memory.held.Load(); n != 0 {
		t.Errorf("%d bytes counted", n)
	}
}

// Holes that are never filled: memory is bounded and given back, and the next generation is taken.
func TestHolesNeverFilled(t *testing.T) {
	sink := &testSink{t: t, cheap: true}
	peer := NewPeer(newSource(t, 1), sink, NewMemory(64<<20))
	path := peer.NewPath(testOverhead)
	rng := rand.New(rand.NewPCG(1, 1))
	piece := func(bucket, generation byte, offset uint32, n int) []byte {
		b := appendStreamHeader(nil, stream{bucket: bucket, generation: generation, offset: offset}, n)
		return append(b, make([]byte, n)...)
	}
	now, number, most := 0.0, uint64(0), 0
	for range 120_000 {
		path.Receive(number, piece(byte(rng.IntN(pull.Buckets)), 0, 1+rng.Uint32N(maxKept-1), 1+rng.IntN(400)), now, now)
		number++
		now += 20e-6
		_, held := peer.Held()
		most = max(most, held)
	}
	if why := peer.Refused(); most > maxKept || why[NoMemory] == 0 || why[Broken] > 0 {
		t.Errorf("%d bytes held, refused %v", most, why)
	}
	if pending := path.r.told.newest; path.r.told.down(pending, true) > 1000 {
		t.Error("packets that were refused are acknowledged")
	}
	path.Receive(number, piece(0, 0, maxKept+1<<20, 10), now, now)
	if peer.Refused()[Ahead] != 1 || path.r.told.has(number) {
		t.Errorf("far ahead: refused %v", peer.Refused())
	}
	for _, offset := range []uint32{1 << 31, 1<<31 - 1, 1<<31 + 1} { // as far as a number reaches, in both directions
		number++
		path.Receive(number, piece(0, 0, offset, 10), now, now)
	}
	if sink.bytes != 0 {
		t.Errorf("%d bytes are delivered in front of a hole", sink.bytes)
	}
	now += brokenTime + 1
	path.Next(now, 0, nil, testRoom) // the peer is silent
	if _, held := peer.Held(); held != 0 {
		t.Errorf("%d bytes held for a peer that is silent for %v s", held, brokenTime)
	}
	for i := range peer.in.buckets {
		if b := &peer.in.buckets[i]; b.later.rows != nil {
			t.Errorf("bucket %d has room for %d rows", i, cap(b.later.rows))
		}
	}
	path.Receive(number+1, piece(0, 0, 0, 10), now, now)
	if _, held := peer.Held(); held != 0 || peer.Refused()[Broken] != 1 || path.r.told.has(number+1) {
		t.Errorf("%d bytes held after %v s, refused %v", held, brokenTime, peer.Refused())
	}
	path.Receive(number+2, append(piece(0, 1, 0, 9), piece(0, 0, 0, 5)...), now, now)
	path.Receive(number+3, piece(0, 0, 9, 7), now, now) // late
	if sink.restarts != 1 || sink.bytes != 9 || !path.r.told.has(number+2) || !path.r.told.has(number+3) {
		t.Errorf("%d restarts, %d bytes of the next generation", sink.restarts, sink.bytes)
	}
}

// What many peers hold together is bounded, and what each may hold at least is not.
func TestHolesOfManyPeers(t *testing.T) {
	const peers, most = 20, 4 << 20
	memory := NewMemory(most)
	var all []*Peer
	rng := rand.New(rand.NewPCG(1, 1))
	fill := func() *Peer {
		peer := NewPeer(newSource(t, 1), &testSink{t: t, cheap: true}, memory)
		path := peer.NewPath(testOverhead)
		all = append(all, peer)
		for number := range uint64(2000) {
			b := appendStreamHeader(nil, stream{bucket: byte(rng.IntN(pull.Buckets)), offset: 1 + rng.Uint32N(maxKept-1)}, 1000)
			path.Receive(number, append(b, make([]byte, 1000)...), 0, 0)
		}
		return peer
	}
	for range peers {
		fill()
	}
	sum := 0
	for _, p := range all {
		_, held := p.Held()
		if sum += held; held < leastHeld-1200 {
			t.Errorf("a peer holds %d bytes", held)
		}
	}
	if sum > most+peers*leastHeld || int64(sum) != memory.held.Load() {
		t.Errorf("%d bytes are held, %d counted", sum, memory.held.Load())
	}
	for _, p := range all {
		p.Close()
	}
	if n := memory.held.Load(); n != 0 {
		t.Errorf("%d bytes are held by nobody", n)
	}
	if _, held := fill().Held(); held < 1<<20 {
		t.Errorf("%d bytes are held after all others have ended", held)
	}
}

// Packets that no sender makes.
func TestMalformed(t *testing.T) {
	good := appendStreamHeader(nil, stream{}, 1)
	good = append(good, 'x')
	many := []byte{}
	for range maxPieces + 1 {
		many = append(many, good...)
	}
	one := &ack{n: 1}
	one.runs[0].arrived = 1
	two := one.append(one.append(nil))
	sums := (&sum{data: []byte{1}}).append((&sum{data: []byte{1}}).append(nil))
	for name, b := range map[string][]byte{
		"an unknown kind": {9}, "kind 0": {0}, "half a STREAM": good[:5], "an empty STREAM": good[:9], "a bucket too many": append([]byte{1, pull.Buckets}, good[2:]...),
		"a STREAM longer than the packet": append(appendStreamHeader(nil, stream{}, 9), 1), "half a DATAGRAM": {2, 0}, "a DATAGRAM longer than the packet": {2, 0, 9, 1},
		"half an ACK": {3, 1, 2}, "an ACK without ranges": make([]byte, 0), "half a PARITY": {4}, "two ACKs": two, "two PARITYs": sums, "too many STREAMs": many,
		"another frame behind STREAM": append(append([]byte{}, good...), 2, 0, 0), "too long": make([]byte, maxPayload+1),
	} {
		if name == "an ACK without ranges" {
			b = (&ack{}).append(nil)
		}
		p := NewPeer(newSource(t, 1), &testSink{t: t}, NewMemory(64<<20))
		path := p.NewPath(testOverhead)
		path.Receive(0, b, 0, 0)
		if p.Refused()[Malformed] != 1 || path.r.told.has(0) {
			t.Errorf("%s: refused %v", name, p.Refused())
		}
	}
	for r := range reasons {
		if r.String() == "" {
			t.Errorf("reason %d has no name", r)
		}
	}
}

// A packet that comes twice counts once.
func TestRepeated(t *testing.T) {
	sink := &testSink{t: t}
	peer := NewPeer(newSource(t, 1), sink, NewMemory(64<<20))
	path := peer.NewPath(testOverhead)
	b := appendDatagram(nil, make([]byte, 10))
	path.Receive(5, b, 0, 0)
	path.Receive(5, b, 0, 0)
	path.Receive(5+windowLen, b, 0, 0)
	path.Receive(4, b, 0, 0)
	if n := sink.got[0]; n != 2 || peer.Refused()[Repeated] != 2 || path.r.got != 2*uint64(len(b)+testOverhead) {
		t.Errorf("%d datagrams, %d bytes, refused %v", n, path.r.got, peer.Refused())
	}
}
