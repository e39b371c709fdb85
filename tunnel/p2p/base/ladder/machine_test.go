package ladder

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

const (
	ms = time.Millisecond
	// epoch is when the tests begin.
	epoch = 1000 * time.Second
)

var (
	relayedTCP = Link{Relayed: true, Relay: "r", Transport: TCP}
	directTCP  = Link{Transport: TCP}
	directQUIC = Link{Transport: QUIC}
)

// scene is a machine and the time it lives in.
type scene struct {
	t   *testing.T
	m   *Machine
	now Time
	// alive has the paths that answer, with what their streams have moved.
	alive map[PathID]uint64
	busy  bool
	kept  bool           // one is the other's relay
	bare  bool           // nobody has streams
	seals PathID         // which path has sealed packets that carry
	other map[PathID]int // streams of no lane
	nat   bool           // direct paths over IPv4 are translated
	due   []Time         // answers on their way, see play
	log   []string
}

func newScene(t *testing.T, coordinator bool) *scene {
	return &scene{t: t, m: New(Config{Coordinator: coordinator, Seed: 1}), now: epoch, alive: make(map[PathID]uint64)}
}

// tell hands over an event and returns the actions by name.
func (s *scene) tell(e Event) []string {
	s.t.Helper()
	acts := s.m.Handle(s.now, e)
	if next := s.m.Next(); next <= s.now {
		s.t.Fatalf("%T at %v: wants to be woken at %v: livelock", e, s.now, next)
	}
	var names []string
	for _, a := range acts {
		names = append(names, name(a))
		s.log = append(s.log, fmt.Sprintf("%v %s", s.now-epoch, name(a)))
	}
	return names
}

// name shows an action in a few letters.
func name(a Action) string {
	n := strings.TrimPrefix(fmt.Sprintf("%T", a), "ladder.")
	switch a := a.(type) {
	case Try:
		return fmt.Sprintf("%s%d", n, a.Path)
	case Probe:
		return fmt.Sprintf("%s%d", n, a.Path)
	case Close:
		return fmt.Sprintf("%s%d", n, a.Path)
	case Moved:
		switch {
		case a.Unused:
			return "Unused"
		case a.Lost:
			return "Lost"
		}
	case Punch:
		return fmt.Sprintf("%s%v", n, a.Want)
	}
	return n
}

// run lets time pass, waking the machine when it wants; living paths answer
// immediately, and carry data where the scene is busy.
func (s *scene) run(d time.Duration) (acts []string) {
	s.t.Helper()
	end := s.now + d
	for s.m.Next() <= end {
		s.now = s.m.Next()
		acts = append(acts, s.react(s.tell(Wake{Samples: s.samples(), Kept: s.kept}))...)
	}
	s.now = end
	return acts
}

func (s *scene) samples() []Sample {
	var out []Sample
	n := map[bool]int{false: 1}[s.bare]
	for _, id := range s.m.Ranked(StreamLane) {
		moved, ok := s.alive[id]
		if ok && s.busy && s.m.Best(StreamLane, nil) == id {
			moved++
			s.alive[id] = moved
		}
		out = append(out, Sample{Path: id, Moved: moved, Heard: s.now, Carrier: Never, Streams: n, Lanes: n - s.other[id], Sealed: id == s.seals})
	}
	return out
}

// react answers probes on living paths.
func (s *scene) react(acts []string) []string {
	out := slices.Clone(acts)
	for _, a := range acts {
		var id PathID
		if n, _ := fmt.Sscanf(a, "Probe%d", &id); n == 1 {
			if _, ok := s.alive[id]; ok {
				out = append(out, s.react(s.tell(Answer{Path: id, Last: true, Direct: !s.nat || s.m.paths.find(id).link.IPv6}))...)
			}
		}
	}
	return out
}

// up brings a path that lives and is proven.
func (s *scene) up(id PathID, l Link) {
	s.t.Helper()
	s.alive[id] = 0
	s.tell(Up{Path: id, Link: l})
	s.react(s.tell(Ready{Path: id}))
}

// states bring a coordinator's machine where its name says.
var states = []struct {
	name State
	make func(s *scene)
}{
	{Idle, func(*scene) {}},
	{Connecting, func(s *scene) { s.tell(Open{ID: 1}) }},
	{Trying, func(s *scene) { s.tell(Up{1, relayedTCP}); s.tell(Ready{1}) }},
	{Relayed, func(s *scene) { s.up(1, relayedTCP); s.tell(Punched{}) }},
	{Direct, func(s *scene) { s.up(1, relayedTCP); s.up(2, directTCP); s.up(3, directQUIC); s.tell(Punched{}) }},
	{Gone, func(s *scene) { s.tell(Refuse{}) }},
}

// events are tried in every state: path 1 is the relayed one, 2 and 3 the direct
// ones, 9 a new one.
var events = []struct {
	name string
	e    Event
}{
	{"open", Open{ID: 2}}, {"disconnect", Disconnect{}}, {"refuse", Refuse{}}, {"admit", Admit{}},
	{"up relayed", Up{9, relayedTCP}}, {"up direct", Up{9, directQUIC}}, {"ready 1", Ready{1}},
	{"down 1", Down{1}}, {"down 2", Down{2}}, {"ask 1", Ask{1}}, {"suspect 1", Suspect{1}}, {"suspect 2", Suspect{2}},
	{"broken 1", Broken{Path: 1, Why: "why"}}, {"broken 2", Broken{Path: 2, Why: "why"}},
	{"answer 1", Answer{Path: 1, Last: true}}, {"answer 7", Answer{Path: 7, Last: true}},
	{"connected", Connected{}}, {"standby done", StandbyDone{}}, {"punched", Punched{}}, {"punched in part", Punched{Later: true}},
	{"nats", NATs{NATRandom, NATRandom}}, {"net changed", NetChanged{}}, {"nudged", Nudged{}},
	{"silence", nil},
}

// want has, by state, what every event leads to: the next state, and the actions.
var want = map[State]map[string]string{
	Idle: {
		"open": "connecting: Connect", "refuse": "gone:", "up relayed": "trying:", "up direct": "trying:",
		"": "idle:",
	},
	Connecting: {
		"refuse": "gone: Fail", "up relayed": "trying: Try9", "up direct": "trying: Try9", "connected": "idle: Fail",
		"": "connecting:",
	},
	Trying: {
		"open": "trying: Try1", "refuse": "gone: Close1 Lost", "down 1": "idle: Lost", "broken 1": "idle: Close1 Lost",
		"answer 1": "relayed: Punch[tcp quic]", "silence": "idle: Close1 Lost", "": "trying:",
	},
	Relayed: {
		"open": "relayed: Try1", "refuse": "gone: Close1 Lost", "down 1": "idle: Lost", "broken 1": "idle: Close1 Lost",
		"ask 1": "relayed: Probe1", "suspect 1": "trying: Probe1", "net changed": "relayed: Nudge Probe1",
		"disconnect": "idle: Close1 Unused", "silence": "idle: Close1 Lost", "": "relayed:",
	},
	Direct: {
		"open": "direct: Try2", "refuse": "gone: Close1 Close2 Close3 Lost",
		"down 2": "direct: Lost Probe3 Punch[tcp]", "broken 2": "relayed: Close2 Lost Probe1 Probe3 Punch[tcp]",
		"broken 1": "direct: Close1", "suspect 2": "direct: Moved Probe2 Probe3", "suspect 1": "direct: Probe1", "ask 1": "direct: Probe1",
		"net changed": "direct: Nudge Probe1 Probe2 Probe3", "disconnect": "idle: Close1 Close2 Close3 Unused",
		"silence": "idle: Close3 Close2 Lost Close1 Lost", "": "direct:",
	},
	Gone: {
		"open": "gone: Fail", "admit": "idle:", "up relayed": "gone: Close9", "up direct": "gone: Close9",
		"": "gone:",
	},
}

// TestTransitions holds every pair of state and event.
func TestTransitions(t *testing.T) {
	for _, st := range states {
		for _, ev := range events {
			s := newScene(t, true)
			st.make(s)
			if st.name != Trying { // the paths are quiet then
				s.run(4 * time.Second)
			}
			if got := s.m.State(); got != st.name {
				t.Fatalf("state %v, want %v", got, st.name)
			}
			var acts []string
			if ev.name == "silence" {
				clear(s.alive)
				acts = slices.DeleteFunc(s.run(2*restMost), func(a string) bool { return a != "Lost" && !strings.HasPrefix(a, "Close") })
			} else {
				acts = s.tell(ev.e)
			}
			got := strings.Join(acts, " ")
			got = strings.TrimSpace(fmt.Sprintf("%v: %s", s.m.State(), got))
			wanted, ok := want[st.name][ev.name]
			if !ok {
				wanted = want[st.name][""]
			}
			if got != wanted {
				t.Errorf("%v, %s: %q, want %q", st.name, ev.name, got, wanted)
			}
		}
	}
}

// TestKept: a peer that is this node's relay stays connected however idle, and needs
// no circuit beside that.
func TestKept(t *testing.T) {
	s := newScene(t, true)
	s.kept, s.bare = true, true
	s.up(2, directTCP)
	s.up(3, directQUIC)
	s.run(time.Second)
	if acts := s.run(10 * time.Minute); slices.ContainsFunc(acts, func(a string) bool { return !strings.HasPrefix(a, "Probe") }) {
		t.Errorf("idle for ten minutes: %v", acts)
	}
	s.up(1, relayedTCP) // as the peer may make one
	if acts := s.run(10 * time.Minute); !slices.Contains(acts, "Close1") || slices.Contains(acts, "Close2") || slices.Contains(acts, "Close3") {
		t.Errorf("a circuit that nobody needs: %v", acts)
	}
	s.kept = false
	if acts := s.run(10 * time.Minute); !slices.Contains(acts, "Close2") || !slices.Contains(acts, "Close3") {
		t.Errorf("after the peer has stopped being a relay: %v", acts)
	}
}
