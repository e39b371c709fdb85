package ladder

import (
	"strings"
	"testing"
	"time"
)

// duplex is a machine whose paths carry exchanges: data go out and are answered after a round trip, unless the paths are cut.
type duplex struct {
	*scene
	rtt         Time
	cut         bool
	moved       map[PathID]uint64
	heard, sent Time // on the path in use
	closed      Time // when path 1 was
}

func newDuplex(t *testing.T, coordinator bool) *duplex {
	d := &duplex{scene: newScene(t, coordinator), rtt: 20 * ms, moved: make(map[PathID]uint64)}
	d.up(1, directTCP)
	d.up(2, directQUIC)
	d.tell(Punched{})
	d.heard, d.sent = d.now, d.now
	return d
}

// exchange sends and receives so many bytes.
func (d *duplex) exchange(bytes uint64) {
	d.moved[d.m.Best(StreamLane, nil)] += bytes
	d.sent = d.now
	d.wake()
	if !d.cut {
		d.run(d.rtt)
		d.heard = d.now
		d.wake()
	}
}

// run lets time pass; probes are answered after a round trip.
func (d *duplex) run(dur time.Duration) {
	for end := d.now + dur; ; {
		next := d.m.Next()
		if len(d.due) > 0 {
			next = min(next, d.due[0])
		}
		if next > end {
			d.now = end
			return
		}
		d.now = max(d.now, next)
		if len(d.due) > 0 && d.due[0] <= d.now {
			d.due = d.due[1:]
			d.heard = d.now
			for _, p := range d.m.paths {
				d.do(d.tell(Answer{Path: p.id, Last: true}))
			}
			continue
		}
		d.wake()
	}
}

func (d *duplex) wake() {
	var samples []Sample
	for _, id := range d.m.Ranked(StreamLane) {
		s := Sample{Path: id, Moved: d.moved[id], Carrier: Never, RTT: d.rtt, Heard: d.now, Sent: d.now}
		if id == d.m.Best(StreamLane, nil) {
			s.Heard, s.Sent = d.now-d.heard, d.now-d.sent
		}
		s.Streams = d.other[id] + 1
		s.Lanes = 1
		samples = append(samples, s)
	}
	d.do(d.tell(Wake{Samples: samples}))
}

// do answers what the machine orders; every attempt to get the second path succeeds.
func (d *duplex) do(acts []string) {
	for _, a := range acts {
		switch {
		case a == "Close1":
			d.closed = d.now
		case strings.HasPrefix(a, "Probe") && !d.cut:
			d.due = append(d.due, d.now+d.rtt)
		case strings.HasPrefix(a, "Punch["):
			id := PathID(100 + len(d.log))
			d.do(d.tell(Up{id, directQUIC}))
			d.do(d.tell(Ready{id}))
			d.do(d.tell(Punched{}))
		}
	}
}

func (d *duplex) count(prefix string) (n int) {
	for _, line := range d.log {
		if _, act, _ := strings.Cut(line, " "); strings.HasPrefix(act, prefix) {
			n++
		}
	}
	return n
}

// A second path that goes between the exchanges of a peer is not punched for each of them.
func TestExchangesAreNoBulk(t *testing.T) {
	for name, c := range map[string]struct {
		bytes uint64
		each  Time
		lane  bool // each opens a lane for datagrams
		most  int
	}{
		"a scrape of 40 kB each 30 s":  {40_000, 30 * time.Second, false, 1},
		"1.3 kB each 30 s":             {1300, 30 * time.Second, false, 1},
		"1.3 kB each 5 s":              {1300, 5 * time.Second, false, 1},
		"a datagram each 30 s":         {200, 30 * time.Second, true, 6},
		"40 kB over seconds each 30 s": {0, 30 * time.Second, false, 6},
	} {
		d := newDuplex(t, true)
		for end := d.now + 30*time.Minute; d.now < end; d.run(c.each) {
			for i := range 20 { // bulk for five seconds
				if c.bytes == 0 {
					d.exchange(bulkBytes / 2)
					d.run(250*ms - d.rtt)
				} else if i == 0 {
					d.exchange(c.bytes)
				}
			}
			if c.lane {
				d.tell(Open{ID: 9, Lane: DatagramLane})
				d.do(d.tell(Opened{ID: 9}))
			}
		}
		n := d.count("Punch[")
		t.Logf("%s: %d punches, %d paths closed", name, n, d.count("Close"))
		if n > c.most || d.count("Close") == 0 || d.m.State() != Direct {
			t.Errorf("%s: %d punches in half an hour, want at most %d", name, n, c.most)
		}
	}
	d := newDuplex(t, true)
	d.run(30 * time.Second)
	d.exchange(100)
	for range 80 { // bulk
		d.exchange(2 * bulkBytes)
		d.run(time.Second)
	}
	if n := d.count("Punch["); n != 2 {
		t.Errorf("%d punches for a minute of bulk, want the first and one", n)
	}
}

// The other side's closing of second paths is no flapping: a new direct path is used without a pause.
func TestClosedSecondIsNoFlap(t *testing.T) {
	s := newScene(t, false)
	s.up(1, relayedTCP)
	s.up(2, directTCP)
	for id := range PathID(8) {
		s.up(10+id, directQUIC)
		s.run(16 * time.Second)
		delete(s.alive, 10+id)
		s.tell(Down{10 + id})
	}
	delete(s.alive, 2)
	s.tell(Down{2})
	s.up(3, directTCP)
	if got := s.m.Best(StreamLane, nil); got != 3 {
		t.Errorf("path %d is used, want the new direct one: %d flaps", got, s.m.punch.flaps)
	}
}

// A second path with a stream that belongs to no lane stays as long as that.
func TestSecondWithStreamStays(t *testing.T) {
	s := newScene(t, true)
	s.other = map[PathID]int{3: 1}
	s.up(2, directTCP)
	s.up(3, directQUIC)
	s.run(10 * time.Minute)
	if s.m.paths.find(3) == nil {
		t.Fatal("the path of an open stream was closed")
	}
	s.other = nil
	s.run(2 * time.Minute)
	if s.m.paths.find(3) != nil {
		t.Error("a second path stays without streams")
	}
}

// However sparse traffic is, a path that is cut is given up as soon as one with more: within 1.3 s; and what has been silent for
// longer, within 1.3 s of the first packet. Peers with an exchange now and then are not probed for it.
func TestSparseTraffic(t *testing.T) {
	for _, rtt := range []Time{20 * ms, 120 * ms, 600 * ms} {
		var longest Time
		for _, each := range []Time{200 * ms, 500 * ms, time.Second, 2 * time.Second, 30 * time.Second} {
			for part := range Time(8) { // of the pause, after which the path is cut
				d := newDuplex(t, false)
				d.rtt = rtt
				for range 10 {
					d.exchange(100)
					d.run(max(each-rtt, ms))
				}
				before := d.count("Probe1")
				if each == 30*time.Second && rtt < answerMost && before > 5 {
					t.Errorf("round trip %v: %d probes in ten exchanges, 30 s apart", rtt, before)
				}
				d.exchange(100)
				d.run(max(each-rtt, 8*ms) * part / 8)
				d.cut, d.due = true, nil
				from, sent := d.now, false
				for d.run(max(each-rtt, 8*ms) * (8 - part) / 8); d.closed == 0 && d.now < from+each+5*time.Second; d.run(each) {
					if each > BusyFor && !sent { // nothing was missed before
						from, sent = d.now, true
					}
					d.exchange(100)
				}
				dead := d.closed - from
				longest = max(longest, dead)
				if d.closed == 0 || dead > 1300*ms {
					t.Errorf("round trip %v, a packet each %v, cut after %d/8: dead after %v", rtt, each, part, dead)
				}
			}
		}
		t.Logf("round trip %v: dead after %v at most", rtt, longest)
	}
}
