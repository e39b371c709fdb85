package ladder

import (
	"slices"
	"testing"
	"time"
)

// TestEndOfAPath: what ends while a stream is open on it is lost, as when the relay crashes or the peer's agent is killed; not
// where nothing needed it. A side that closes its streams for lack of use, and then the connection, loses nothing at the other.
func TestEndOfAPath(t *testing.T) {
	for name, c := range map[string]struct {
		bare  bool
		quiet time.Duration
		want  string
	}{
		"a stream is open":    {false, 10 * time.Second, "Lost"},
		"no stream":           {true, 10 * time.Second, "Unused"},
		"used a moment ago":   {true, time.Second, "Lost"},
		"idle at both ends":   {false, 5 * time.Minute, "Unused"},
		"idle without stream": {true, 45 * time.Second, "Unused"},
	} {
		s := newScene(t, true)
		s.bare = c.bare
		s.up(1, relayedTCP)
		s.tell(Punched{})
		s.run(c.quiet)
		if acts := s.tell(Down{1}); !slices.Equal(acts, []string{c.want}) {
			t.Errorf("%s: %v, want %s", name, acts, c.want)
		}
	}
	// A path that ends quietly while another one stays is a change.
	s := newScene(t, true)
	s.bare = true
	s.up(1, relayedTCP)
	s.up(2, directTCP)
	s.tell(Punched{})
	s.run(10 * time.Second)
	if acts := s.tell(Down{2}); len(acts) == 0 || acts[0] != "Moved" {
		t.Errorf("direct path closed beside a relayed one: %v, want Moved", acts)
	}
	if acts := s.tell(Down{1}); !slices.Contains(acts, "Unused") {
		t.Errorf("the last path: %v, want Unused", acts)
	}
}

// TestLanesKeepTheirTransport: where one of TCP and QUIC is direct and the other punched, bulk stays on TCP and datagrams on QUIC.
func TestLanesKeepTheirTransport(t *testing.T) {
	for _, direct := range []Transport{TCP, QUIC} {
		s := newScene(t, true)
		s.up(1, relayedTCP)
		for id, l := range map[PathID]Link{2: directTCP, 3: directQUIC} {
			s.up(id, l)
			s.tell(Answer{Path: id, Last: true, Direct: l.Transport == direct})
		}
		for lane, want := range map[Lane]PathID{StreamLane: 2, DatagramLane: 3} {
			if got := s.m.Best(lane, nil); got != want {
				t.Errorf("%v is direct: lane %v uses path %d, want %d", direct, lane, got, want)
			}
		}
	}
	// Of the same transport, the direct one.
	s := newScene(t, true)
	s.up(1, directTCP)
	s.tell(Answer{Path: 1, Last: true})
	s.up(2, directTCP)
	if got := s.m.Best(StreamLane, nil); got != 2 {
		t.Errorf("path %d, want the direct one before the punched one", got)
	}
}

// Of two direct paths that carry nothing the one is kept that streams use, or that sealed packets carry them beside.
func TestSecondIsClosed(t *testing.T) {
	for seals, closed := range map[PathID]string{0: "Close2", 1: "Close2", 2: "Close1"} {
		s := newScene(t, true)
		s.seals = seals
		s.up(1, directTCP)
		s.up(2, directQUIC)
		acts := s.run(secondAfter + BusyFor + time.Second)
		for _, a := range []string{"Close1", "Close2"} {
			if slices.Contains(acts, a) != (a == closed) {
				t.Errorf("sealed packets beside %d: %v, not %s alone", seals, acts, closed)
			}
		}
	}
}

// As long as there is bulk beside sealed packets, TCP stays for trials.
func TestSecondStaysForTrials(t *testing.T) {
	s := newScene(t, true)
	s.seals = 2
	s.up(1, directTCP)
	s.up(2, directQUIC)
	for range 60 {
		s.alive[2] += 64 << 10
		if acts := s.run(time.Second); slices.Contains(acts, "Close1") {
			t.Fatalf("after %v of bulk: %v", s.now-epoch, acts)
		}
	}
	if acts := s.run(demandFor + secondAfter); !slices.Contains(acts, "Close1") {
		t.Errorf("after bulk: %v", acts)
	}
}
