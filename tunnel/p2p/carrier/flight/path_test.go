package flight

import (
	"math/rand/v2"
	"testing"
	"time"

	"pgregory.net/rapid"

	"edgemesh/tunnel/pull"
)

// What was not acknowledged on a path that died is sent again on the next: each bucket gets every byte once and in order.
func TestPathSwitch(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		d := direction(10, rapid.IntRange(1, 100).Draw(r, "delay"), rapid.Float64Range(0, .1).Draw(r, "loss"))
		l := newLab(r, d, d, rapid.Uint64().Draw(r, "seed"))
		for i, e := range l.e {
			for b := range 8 {
				e.source.add(b*(i+1), 40)
			}
		}
		for range rapid.IntRange(1, 5).Draw(r, "switches") {
			l.run(l.now+rapid.Float64Range(0, .4).Draw(r, "after"), l.finished)
			if rapid.Bool().Draw(r, "silent") { // it was dead for a while
				l.filter = func(int, uint64, []byte) bool { return false }
				l.run(l.now+rapid.Float64Range(0, 0.9).Draw(r, "dead"), nil) // together less than holdTime
				l.filter = nil
			}
			l.consistent()
			l.connect(d, d, rapid.Uint64().Draw(r, "seed"))
		}
		l.run(60, l.finished)
		l.whole()
	})
}

// A path that is silent for longer than a bucket waits: buckets begin again, at a frame's boundary.
func TestRestart(t *testing.T) {
	l := newLab(t, direction(10, 20, 0), direction(10, 20, 0), 1)
	s := l.e[0].source
	s.endless = 4
	for b := range 4 {
		s.add(b, 1)
	}
	l.run(2, nil)
	l.filter = func(int, uint64, []byte) bool { return false }
	l.run(2+2*holdTime, nil)
	sink, before := l.e[1].sink, l.e[1].sink.frames
	if sink.restarts != 0 {
		t.Fatalf("%d restarts came through a path that was dead", sink.restarts)
	}
	l.filter = nil
	l.consistent()
	l.run(2+2*holdTime+5, nil)
	l.consistent()
	if n := l.e[0].peer.Counters().Restarts; n < 4 || sink.restarts < 4 || sink.restarts > int(n) {
		t.Errorf("%d buckets began again, the other end says %d", n, sink.restarts)
	}
	if sink.frames-before < 5000*3/10 || sink.skipped == 0 {
		t.Errorf("%d frames came afterwards, %d were skipped", sink.frames-before, sink.skipped)
	}
	if l.e[1].peer.Refused() != (Refused{}) || l.e[0].peer.Refused() != (Refused{}) {
		t.Errorf("refused %v, %v", l.e[0].peer.Refused(), l.e[1].peer.Refused())
	}
}

// One bucket whose pieces never arrive does not hold up the others, and begins again.
func TestOneBucketWaits(t *testing.T) {
	l := newLab(t, direction(10, 20, 0), direction(10, 20, 0), 1)
	s := l.e[0].source
	s.endless = 2
	s.add(0, 1)
	s.add(1, 1)
	s.size = func(*rand.Rand) int { return 1400 }
	l.e[0].room = 1400 + streamHeader + parityHeader // a packet is of one bucket
	l.filter = func(_ int, _ uint64, b []byte) bool {
		return !(l.now > 1 && len(b) > streamHeader && b[0] == kindStream && b[1] == 0 && b[2] == 0) // the first generation of bucket 0
	}
	longest, last := 0.0, 1.0
	sink := l.e[1].sink
	sink.onFrame = func(bucket int, _ uint32) {
		if bucket == 1 {
			longest, last = max(longest, l.now-last), l.now
		}
	}
	l.run(15, nil)
	if longest > 0.1 || sink.restarts != 1 || sink.number[0] == 0 || sink.restarted[0] {
		t.Errorf("bucket 1 waited %.3f s; bucket 0 began again %d times and is at frame %d", longest, sink.restarts, sink.number[0])
	}
}

// Another carrier takes over: with what Leave hands over all frames arrive, and the buckets continue in a new generation.
func TestLeave(t *testing.T) {
	l := newLab(t, direction(10, 40, .05), direction(10, 40, .05), 4)
	e, sink := l.e[0], l.e[1].sink
	have := map[[2]uint32]bool{}
	sink.onFrame = func(bucket int, number uint32) { have[[2]uint32{uint32(bucket), number}] = true }
	for b := range 4 {
		e.source.add(b, 200)
	}
	l.run(0.7, nil)
	handed, last := 0, [pull.Buckets]int{}
	e.peer.Leave(func(bucket int, f pull.Frame) {
		b := f.Bytes()
		number := int(order.Uint32(b[5:]))
		if int(b[4]) != bucket || number < last[bucket] {
			t.Fatalf("bucket %d: frame %d after %d", bucket, number, last[bucket])
		}
		last[bucket] = number
		have[[2]uint32{uint32(bucket), uint32(number)}] = true
		f.Done()
		handed++
	})
	if held, _ := e.peer.Held(); held != 0 || handed == 0 {
		t.Fatalf("%d frames are handed over, %d bytes still held", handed, held)
	}
	l.run(60, func() bool { return l.finished() && l.now > 3 })
	for b := range uint32(4) {
		for n := range uint32(200) {
			if !have[[2]uint32{b, n}] {
				t.Errorf("bucket %d: frame %d is lost", b, n)
			}
		}
	}
	if e.source.done != 800 {
		t.Errorf("%d frames of 800 are done", e.source.done)
	}
	if _, held := l.e[1].peer.Held(); held != 0 {
		t.Errorf("the receiver holds %d bytes", held)
	}
}

// Packet numbers, offsets, generations and times wrap.
func TestWraps(t *testing.T) {
	l := newLab(t, direction(20, 10, .05), direction(20, 10, .05), 2)
	const first = 1<<32 - 300
	l.now = 1<<32/1e6 - 1 // µs wrap in a second
	for i, e := range l.e {
		to := l.e[1-i]
		e.number, e.wake = first, l.now
		e.path.s.base, e.path.s.first, e.path.s.next = first, first, first
		e.source.endless = 8
		for b := range pull.Buckets {
			e.peer.out.buckets[b].offset, to.peer.in.buckets[b].next = 1<<32-100_000, 1<<32-100_000
			e.peer.out.buckets[b].generation, to.peer.in.buckets[b].generation = 254, 254
		}
		for b := range 8 {
			e.source.add(b, 1)
		}
	}
	l.run(l.now+4, nil)
	for i := range 3 { // generation 255, 0, 1
		for b := range 8 {
			l.e[0].peer.out.restart(b, func(f *frame) { f.Done() })
		}
		l.run(l.now+1, nil)
		if got := l.e[1].sink.restarts; got != 8*(i+1) {
			t.Fatalf("%d buckets began again, wanted %d", got, 8*(i+1))
		}
	}
	for _, e := range l.e {
		if e.number < 1<<32 || e.path.s.newest < 1<<32 || e.peer.in.buckets[0].next > 1<<31 || e.peer.Refused() != (Refused{}) {
			t.Errorf("number %d, acknowledged %d, offset %d, refused %v: nothing wrapped, or it went wrong", e.number, e.path.s.newest, e.peer.in.buckets[0].next, e.peer.Refused())
		}
	}
	if mbit := float64(l.e[1].sink.bytes) * 8 / 7 / 1e6; mbit < 14 {
		t.Errorf("%.1f of 20 Mbit/s", mbit)
	}
}

// Datagrams are not repaired, do not wait for the window, and count as in flight.
func TestDatagrams(t *testing.T) {
	l := newLab(t, direction(10, 20, .05), direction(10, 20, 0), 2)
	s, sink := l.e[0].source, l.e[1].sink
	s.endless = 1
	s.add(0, 1)
	for n := range uint32(2000) {
		l.run(float64(n)*0.01, nil)
		s.datagrams = append(s.datagrams, n)
		l.e[0].wake = l.now
	}
	l.run(21, nil)
	twice := 0
	for _, n := range sink.got {
		twice += n - 1
	}
	if got := len(sink.got); got < 2000*92/100 || got > 2000*98/100 || twice > 0 {
		t.Errorf("%d of 2000 datagrams arrived where a twentieth is lost, %d twice", got, twice)
	}
	// Nothing comes back: the window is full, and datagrams leave.
	l.filter = func(from int, _ uint64, _ []byte) bool { return from == 0 }
	l.e[0].out.Set(l.duration(), direction(10, 20, 0)) // a packet has room for seven
	l.run(23, nil)
	flying, before := l.e[0].path.s.inFlight, len(sink.got)
	if flying < l.e[0].path.s.control.Window() {
		t.Fatalf("%.0f bytes in flight, the window is not full", flying)
	}
	for n := range uint32(20) {
		s.datagrams = append(s.datagrams, 5000+n)
	}
	l.e[0].wake = l.now
	sent := l.e[0].number
	l.run(23.005, nil)
	if n := l.e[0].number - sent; n == 0 || l.e[0].path.s.inFlight < flying+float64(n)*200 {
		t.Errorf("%d packets left, %.0f bytes in flight after %.0f", n, l.e[0].path.s.inFlight, flying)
	}
	l.run(23.3, nil)
	if len(sink.got)-before < 20 {
		t.Errorf("%d datagrams of 20 arrived", len(sink.got)-before)
	}
}

// A path that takes smaller packets from now on: what was lost is cut again.
func TestSmallerPackets(t *testing.T) {
	l := newLab(t, direction(10, 60, .05), direction(10, 60, .05), 2)
	for b := range 8 {
		l.e[0].source.add(b, 300)
	}
	l.run(1, func() bool { return l.now > .9 && l.e[0].path.s.parity.n > 2 })
	if l.e[0].path.s.parity.n == 0 {
		t.Error("no sum of larger packets is to be sent")
	}
	l.e[0].room = 1280 - 76
	l.filter = func(_ int, _ uint64, b []byte) bool { return len(b) <= 1280-76 }
	l.run(30, l.finished)
	l.whole()
}

// Reordering teaches how long to wait: spurious repairs become rare.
func TestSpuriousRepairs(t *testing.T) {
	d := direction(30, 25, 0)
	d.Reorder, d.ReorderBy = .05, 12*time.Millisecond
	l := newLab(t, d, direction(30, 25, 0), 2)
	l.e[0].source.endless = 1
	l.e[0].source.add(0, 1)
	l.run(2, nil)
	early := l.e[0].peer.Counters()
	l.run(12, nil)
	late := l.e[0].peer.Counters()
	if early.Spurious == 0 {
		t.Error("nothing was repaired without need: this link teaches nothing")
	}
	if share := float64(late.Spurious-early.Spurious) / float64(late.Packets-early.Packets); share > .005 {
		t.Errorf("%.4f of the packets are repaired without need, of 0.05 that are reordered", share)
	}
}

// After a link that stopped, flows continue soon.
func TestStall(t *testing.T) {
	l := newLab(t, direction(20, 25, 0), direction(20, 25, 0), 2)
	l.e[0].source.endless = 2
	l.e[0].source.add(0, 1)
	l.e[0].source.add(1, 1)
	l.run(3, nil)
	l.filter = func(int, uint64, []byte) bool { return false }
	l.run(8, nil)
	l.filter = nil
	before := l.e[1].sink.frames
	l.run(9.5, func() bool { return l.e[1].sink.frames > before+50 })
	t.Logf("50 frames %.2f s after a stop of 5 s, %d restarts", l.now-8, l.e[1].sink.restarts)
	if l.e[1].sink.frames <= before+50 || l.e[1].sink.restarts > 0 {
		t.Errorf("%d frames 1.5 s after a stop of 5 s, %d buckets began again", l.e[1].sink.frames-before, l.e[1].sink.restarts)
	}
	l.run(11, nil)
	if n := l.e[0].path.s.backoff; n != 1 {
		t.Errorf("once packets arrive again a loss without an ACK is found %v times as late as before the stop", n)
	}
}

// More holes than an ACK has ranges: each is told before it is out of reach, also when ACKs are lost.
func TestMoreHolesThanRanges(t *testing.T) {
	l := newLab(t, direction(200, 50, .3), direction(200, 50, .3), 2)
	l.e[0].source.endless = 1
	l.e[0].source.add(0, 1)
	l.run(10, nil)
	c := l.e[0].peer.Counters()
	lost, computed := l.e[0].out.Counters().Loss, l.e[1].peer.Counters().Computed
	if c.Packets < 40_000 || c.Resent > (lost-computed-c.Sums*3/10)*(testRoom-streamHeader)*103/100 {
		t.Errorf("%d of %d packets are lost, %d of them sums, %d computed, %d bytes repaired", lost, c.Packets, c.Sums*3/10, computed, c.Resent)
	}
}

// A lost packet is computed from a sum where the line has room, without a round trip.
func TestParity(t *testing.T) {
	l := newLab(t, direction(100, 50, .03), direction(100, 50, .03), 2)
	s := l.e[0].source
	s.endless = 4
	for b := range 4 {
		s.add(b, 1)
	}
	s.allowed = func(now float64) int { return int(now * 2e6 / 8 * 8) } // 16 of 100 Mbit/s
	l.run(20, nil)
	there, back := l.e[0].peer.Counters(), l.e[1].peer.Counters()
	if there.Sums == 0 || float64(back.Computed) < 0.6*0.03*float64(there.Packets) {
		t.Errorf("%d packets, %d sums, %d computed, %d repaired", there.Packets, there.Sums, back.Computed, there.Resent)
	}
	if loss := l.e[0].path.Control().Loss(); loss < .015 {
		t.Errorf("the controller sees %.3f lost: computed packets are lost ones", loss)
	}
	clean := newLab(t, direction(100, 50, 0), direction(100, 50, 0), 2)
	clean.e[0].source.add(0, 100)
	clean.run(5, nil)
	if n := clean.e[0].peer.Counters().Sums; n != 0 {
		t.Errorf("%d sums on a path that loses nothing", n)
	}
}

// A sum that was begun before the line was full does not have the sender look for its end again and again.
func TestSumOnAFullLine(t *testing.T) {
	l := newLab(t, direction(5, 50, .02), direction(5, 50, .02), 1)
	l.e[0].source.endless = 1
	l.e[0].source.add(0, 1)
	l.run(3, nil)
	c, steps := l.e[0].peer.Counters(), l.steps
	l.run(6, nil)
	packets := l.e[0].peer.Counters().Packets - c.Packets
	if c.Sums == 0 || l.steps-steps > 8*int(packets) {
		t.Errorf("%d sums, then %d steps for %d packets", c.Sums, l.steps-steps, packets)
	}
}

// An upload beside a download has the ACKs of that in its direction, which are as much as it on a thin line. When the line gets faster,
// so does the upload.
func TestUploadBesideACKs(t *testing.T) {
	for _, mbit := range []float64{0.3, 0.5, 0.6, 0.8} {
		back := direction(mbit, 25, 0)
		l := newLab(t, direction(200, 25, 0), back, 1)
		for _, e := range l.e {
			e.source.endless = 1
			e.source.add(0, 1)
			e.sink.cheap = true
		}
		l.run(5, nil)
		back.Rate = 20e6
		l.e[1].out.Set(l.duration(), back)
		l.run(10, nil)
		before := l.e[0].sink.bytes
		l.run(12, nil)
		if got := float64(l.e[0].sink.bytes-before) * 4e-6; got < 15 {
			t.Errorf("%.1f Mbit/s before, %.2f of 20 now", mbit, got)
		}
		l.consistent()
	}
}

// Small datagrams beside an upload that is limited by its rate leave with its packets: ACKs of the flows inside are as many as those.
func TestDatagramsRide(t *testing.T) {
	l := newLab(t, direction(2, 25, 0), direction(2, 25, 0), 1)
	s := l.e[0].source
	s.endless = 1
	s.add(0, 1)
	l.run(3, nil)
	packets := l.e[0].peer.Counters().Packets
	for n := range uint32(3000) {
		s.datagrams = append(s.datagrams, n)
		l.e[0].wake = l.now
		l.run(3+float64(n)*0.0015, nil)
	}
	l.run(8, nil)
	if got := l.e[0].peer.Counters().Packets - packets; got > 1500 || len(l.e[1].sink.got) < 2900 {
		t.Errorf("%d of 3000 datagrams arrived, in %d packets", len(l.e[1].sink.got), got)
	}
}

// An echo's answer carries the ACK of its request, and the next request that of the answer where it comes soon.
func TestACKsRide(t *testing.T) {
	for every, most := range map[float64]uint64{1: 300, 0.015: 210} {
		l := newLab(t, direction(100, 2, 0), direction(100, 2, 0), 1)
		const echoes = 100
		for n := range uint32(echoes) {
			start := l.now
			for i, e := range l.e {
				e.source.datagrams = append(e.source.datagrams, n)
				e.wake = l.now
				to := l.e[1-i].sink
				l.run(start+every, func() bool { return to.got[n] > 0 })
			}
			l.run(start+every, nil)
		}
		l.run(l.now+1, nil)
		if got := l.e[0].number + l.e[1].number; got > most || len(l.e[0].sink.got) != echoes {
			t.Errorf("%d packets for %d of %d echoes, one each %v s, want at most %d", got, len(l.e[0].sink.got), echoes, every, most)
		}
		l.consistent()
	}
}

// Both ends ask and answer 50 times a second, at whatever distance: few ACKs leave alone.
func TestACKsRideInBothDirections(t *testing.T) {
	const every, answer, echoes = 0.020, 0.0003, 200 // answer: that a pod takes
	for offset := 0.0005; offset < every; offset += 0.001 {
		l := newLab(t, direction(100, 25, 0), direction(100, 25, 0), 1)
		var asked, heard, answered [2]uint32
		var at [2]float64 // of the last request
		for l.now < every*echoes {
			next := l.now + answer
			for i, e := range l.e {
				for e.sink.got[2*heard[i]] > 0 {
					at[i] = l.now
					heard[i]++
				}
				if answered[i] < heard[i] && l.now >= at[i]+answer {
					e.source.datagrams, e.wake = append(e.source.datagrams, 2*answered[i]+1), l.now
					answered[i]++
				}
				if l.now >= float64(asked[i])*every+float64(i)*offset {
					e.source.datagrams, e.wake = append(e.source.datagrams, 2*asked[i]), l.now
					asked[i]++
				}
			}
			l.run(next, nil)
		}
		if got, most := l.e[0].number+l.e[1].number, uint64(4*echoes*105/100); got > most || answered[0] < echoes-5 {
			t.Errorf("%.1f ms apart: %d packets for %d requests in each direction, want at most %d", 1000*offset, got, answered[0], most)
		}
	}
}

// ACKs tell of a packet often enough, however late it comes, and not forever: the holes of seconds ago would make each ACK long.
func TestOldRuns(t *testing.T) {
	for late := uint64(2); late < 3*ackTells; late++ { // packet 50 comes that much later
		p := NewPeer(newSource(t, 1), &testSink{t: t}, NewMemory(1<<20)).NewPath(testOverhead)
		now, told, most := 0.0, 0, 0
		arrive := func(n uint64) {
			now += ackEvery
			p.Receive(n, appendDatagram(nil, []byte{1, 2, 3, 4}), now, now)
			a, below := p.r.ack(now), uint64(p.r.newest)+1
			for _, run := range a.runs[:a.n] {
				below -= uint64(run.missing)
				if below > 50 && below-uint64(run.arrived) <= 50 {
					told++
				}
				below -= uint64(run.arrived)
			}
			most = max(most, a.n)
			if a.n == 0 {
				t.Fatal("an ACK of nothing")
			}
		}
		for n := range uint64(400) {
			if n%10 == 0 || n == 51 {
				continue // lost, or 50
			}
			arrive(n)
			if n == 50+late || n == 51+late && n%10 == 1 {
				arrive(50)
			}
		}
		if told < ackTells || told > 3*ackTells || most > 12 {
			t.Errorf("%d later: %d ACKs tell of it; one has %d runs", late, told, most)
		}
	}
}

// fullDatagrams always has a datagram of full size.
type fullDatagrams struct {
	b [testRoom - datagramHeader]byte
}

func (*fullDatagrams) Waits() (stream, datagram bool)   { return false, true }
func (*fullDatagrams) Stream(float64) (pull.Frame, int) { return nil, 0 }
func (s *fullDatagrams) Datagram(_ float64, room int) []byte {
	if room < len(s.b) {
		return nil
	}
	return s.b[:]
}

// Datagrams that leave no room for an ACK beside them do not keep it back.
func TestACKsBesideDatagrams(t *testing.T) {
	p := NewPeer(&fullDatagrams{}, &testSink{t: t}, NewMemory(1<<20)).NewPath(testOverhead)
	acks, datagrams := 0, 0
	for number, now := uint64(0), 0.0; now < 1; now += 0.001 {
		p.Receive(uint64(now*1000), appendDatagram(nil, []byte{1, 2, 3, 4}), now, now)
		for {
			b, _ := p.Next(now, number, nil, testRoom)
			if len(b) == 0 {
				break
			}
			number++
			if b[0] == kindAck {
				acks++
			} else {
				datagrams++
			}
		}
	}
	if acks < 100 || datagrams < 100 {
		t.Errorf("%d ACKs and %d datagrams in a second", acks, datagrams)
	}
}
