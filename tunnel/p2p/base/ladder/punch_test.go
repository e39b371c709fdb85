package ladder

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// Where bytes are paid for, direct paths are opened only for large transfers.
func TestThrifty(t *testing.T) {
	s := newScene(t, true)
	s.up(1, relayedTCP)
	punched := func(moved uint64) bool {
		s.now += time.Second
		acts := s.tell(Wake{Samples: []Sample{{Path: 1, Moved: moved, Carrier: Never}}, Thrifty: true})
		return slices.ContainsFunc(acts, func(a string) bool { return strings.HasPrefix(a, "Punch") })
	}
	s.tell(Wake{Samples: []Sample{{Path: 1, Carrier: Never}}, Thrifty: true})
	s.tell(Punched{})
	s.run(10 * time.Second)
	s.tell(Punched{})
	for range 20 {
		if punched(s.m.paths.find(1).moved + 500) {
			t.Fatal("punched for a few packets")
		}
	}
	if punched(s.m.paths.find(1).moved + 100*bulkBytes) {
		t.Error("punched for a burst")
	}
	if !punched(s.m.paths.find(1).moved + 2*bulkBytes) {
		t.Error("not punched for bulk")
	}
}

// What is missing is told with what the next attempt waits for.
func TestPlan(t *testing.T) {
	s := newScene(t, true)
	if _, ok := s.m.Plan(s.now); ok {
		t.Error("something is missing of a peer without paths")
	}
	s.up(1, relayedTCP)
	if p, ok := s.m.Plan(s.now); !ok || !p.Running || !p.Mine {
		t.Errorf("%+v, %v while the first attempt runs", p, ok)
	}
	s.tell(Punched{})
	if p, ok := s.m.Plan(s.now); !ok || p.Running || p.Traffic || p.Next <= s.now {
		t.Errorf("%+v, %v after it has failed", p, ok)
	}
	if p, _ := s.m.Plan(s.now + demandFor); !p.Traffic {
		t.Errorf("%+v without traffic", p)
	}
	s.up(2, directTCP)
	s.up(3, directQUIC)
	if p, ok := s.m.Plan(s.now); ok {
		t.Errorf("%+v with both", p)
	}
	s = newScene(t, false)
	s.up(1, relayedTCP)
	s.run(time.Second)
	if p, ok := s.m.Plan(s.now); !ok || p.Mine || p.Running {
		t.Errorf("%+v, %v where the peer begins", p, ok)
	}
}

// Where IPv6 worked and both still have it, its return is found within half a minute although IPv4 is punched, after some
// minutes more slowly; not without traffic, and not where IPv6 never worked.
func TestIPv6ComesBack(t *testing.T) {
	for name, c := range map[string]struct{ both, worked, idle, want bool }{
		"worked":       {both: true, worked: true, want: true},
		"never worked": {both: true},
		"one has none": {worked: true},
		"idle":         {both: true, worked: true, idle: true},
	} {
		s := newScene(t, true)
		s.busy, s.nat = true, true
		// attempts is how many fail in half a minute.
		attempts := func() (n int) {
			for end := s.now + 30*time.Second; s.now < end; {
				for _, act := range s.run(100 * time.Millisecond) {
					if strings.HasPrefix(act, "Punch[") {
						n++
						s.react(s.tell(Punched{}))
					}
				}
			}
			return n
		}
		s.tell(IPv6{Both: c.both})
		s.up(1, relayedTCP)
		s.tell(Punched{})
		if c.worked {
			s.up(2, Link{Transport: TCP, IPv6: true})
			delete(s.alive, 2)
			s.tell(Down{2})
		}
		s.up(3, directTCP)
		s.up(4, directQUIC)
		s.tell(Punched{})
		attempts()
		attempts()
		if s.busy = !c.idle; c.idle {
			attempts()
		}
		for range 2 {
			if n := attempts(); n > 2 || n > 0 != c.want {
				t.Errorf("%s: %d attempts in 30 s", name, n)
			}
		}
		for range 6 {
			attempts()
		}
		late := 0
		for range 20 {
			late += attempts()
		}
		if late > 4 || late > 0 != c.want {
			t.Errorf("%s: %d attempts in 10 min, though IPv6 does not come back", name, late)
		}
	}
}

// The NATs of IPv4 do not end attempts between two nodes with IPv6 after the first two: a firewall may let the third one through.
func TestNATsSayLessOfIPv6(t *testing.T) {
	for both, want := range map[bool]int{false: hopelessTries, true: doubtfulTries} {
		s := newScene(t, true)
		s.busy, s.nat = true, true
		s.tell(NATs{Mine: NATRandom, Theirs: NATRandom})
		s.tell(IPv6{Both: both})
		s.up(1, relayedTCP)
		s.tell(Punched{})
		n := 1
		for end := s.now + 5*time.Minute; s.now < end; {
			for _, act := range s.run(100 * time.Millisecond) {
				if strings.HasPrefix(act, "Punch[") {
					n++
					s.react(s.tell(Punched{}))
				}
			}
		}
		if n != want {
			t.Errorf("both with IPv6: %v: %d attempts, want %d", both, n, want)
		}
	}
}

// What one transport does over IPv6 says nothing of the other: many firewalls let one of them through.
func TestIPv6OverOneTransport(t *testing.T) {
	s := newScene(t, true)
	s.busy, s.nat = true, true
	s.tell(IPv6{Both: true})
	s.up(1, Link{Transport: QUIC, IPv6: true})
	s.up(2, directTCP)
	if want := s.m.Wanted(); len(want) > 0 {
		t.Errorf("%v wanted, though only QUIC has worked over IPv6", want)
	}
}

// Two nodes without an IP version in common look again every few minutes, and immediately when an uplink changes.
func TestApart(t *testing.T) {
	s := newScene(t, true)
	s.busy = true
	attempts := func(d Time) (n int) {
		for end := s.now + d; s.now < end; {
			for _, act := range s.run(100 * time.Millisecond) {
				if strings.HasPrefix(act, "Punch[") {
					n++
					s.react(s.tell(Punched{Apart: true}))
				}
			}
		}
		return n
	}
	s.up(1, relayedTCP)
	s.tell(Punched{Apart: true})
	if n := attempts(4 * time.Minute); n > 0 {
		t.Errorf("%d attempts in 4 min", n)
	}
	if n := attempts(20 * time.Minute); n < 3 || n > 5 {
		t.Errorf("%d attempts in 20 min", n)
	}
	if acts := s.tell(NetChanged{}); !slices.Contains(acts, "Punch[tcp quic]") {
		t.Errorf("%v after a change", acts)
	}
}

// What an end's change of addresses cuts is no flapping, however often: the new path is used as soon as it is proven, and the next
// attempt follows without a pause. The peer notices by a nudge before or after it finds the paths silent, or dead.
func TestMovedIsNoFlapping(t *testing.T) {
	for name, cut := range map[string]func(s *scene, tcp, quic PathID){
		"own address": func(s *scene, tcp, quic PathID) {
			s.tell(Broken{Path: tcp, Unbound: true})
			s.tell(Broken{Path: quic, Unbound: true})
			s.tell(NetChanged{})
		},
		"nudge before silence": func(s *scene, tcp, quic PathID) {
			s.tell(Nudged{})
			s.run(1200 * ms)
			s.tell(Broken{Path: tcp})
			s.tell(Broken{Path: quic})
		},
		"nudge after": func(s *scene, tcp, quic PathID) {
			s.tell(Broken{Path: tcp})
			s.tell(Broken{Path: quic})
			s.run(200 * ms)
			s.tell(Nudged{})
		},
	} {
		for _, coordinator := range []bool{true, false} {
			s := newScene(t, coordinator)
			s.busy, s.alive[1] = true, 0
			s.up(1, relayedTCP)
			for round := range PathID(5) {
				tcp, quic := 2+2*round, 3+2*round
				s.up(tcp, directTCP)
				s.up(quic, directQUIC)
				s.tell(Punched{})
				if got := s.m.Best(StreamLane, nil); got != tcp {
					t.Fatalf("%s, coordinator %t, round %d: path %d is used, want the new one", name, coordinator, round, got)
				}
				s.run(8 * time.Second)
				delete(s.alive, tcp)
				delete(s.alive, quic)
				cut(s, tcp, quic)
				if s.m.punch.next > s.now {
					t.Errorf("%s, coordinator %t, round %d: the next attempt follows after %v", name, coordinator, round, s.m.punch.next-s.now)
				}
			}
		}
	}
}

// Both ends say that their addresses have changed: the loss is no flapping at the other one, whichever begins attempts.
func TestBothNudge(t *testing.T) {
	for _, coordinator := range []bool{true, false} {
		s := newScene(t, coordinator)
		s.up(1, relayedTCP)
		s.tell(Nudged{})
		if acts := s.tell(NetChanged{}); !slices.Contains(acts, "Nudge") {
			t.Errorf("coordinator %t: %v, want a nudge, though the peer's was obeyed a moment ago", coordinator, acts)
		}
		if acts := s.tell(NetChanged{}); slices.Contains(acts, "Nudge") {
			t.Errorf("coordinator %t: %v, want no second nudge a moment later", coordinator, acts)
		}
	}
}
