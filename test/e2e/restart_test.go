package e2e

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"edgemesh/test/lab"
	"edgemesh/test/tier"
)

func (s *sites) agentKilled(t *testing.T) {
	leaksBefore, err := s.lab.Leaks(t.Context())
	ok(t, err)
	tcp := flow(t, s.pod1, "tcp", 8*time.Second, s.pod2.IP4())
	back := flow(t, s.podCloud, "tcp", 8*time.Second, s.pod1.IP6())
	s.edge1.Agent.Kill()

	curlPods(t, s.pod1, s.near1, time.Second)
	noAnswer(t, s.near1.NS, s.podCloud.IP4(), "while the agent is dead")
	noAnswer(t, s.near1.NS, s.podCloud.IP6(), "while the agent is dead")
	noAnswer(t, s.near1.NS, netip.MustParseAddr("10.244.200.1"), "an address of nobody")
	noAnswer(t, s.edge1.NS, s.podCloud.IP4(), "from the node while the agent is dead")
	leaks, err := s.lab.Leaks(t.Context())
	ok(t, err)
	if fmt.Sprint(leaks) != fmt.Sprint(leaksBefore) {
		t.Errorf("while the agent was dead packets got out: %v", leaks)
	}
	if p, err := s.edge1.AddPod(t.Context(), "meanwhile"); err != nil {
		t.Errorf("a pod made while the agent is dead: %v", err)
	} else {
		ok(t, p.Delete(t.Context()))
	}

	ok(t, s.edge1.Start())
	start := time.Now()
	ctx := within(t, 8*time.Second)
	err = lab.Until(ctx, 20*time.Millisecond, func() error {
		return tryCurl(ctx, s.pod1.NS, s.pod2, s.pod2.IP4(), s.pod1.IP4(), time.Second)
	})
	if err != nil {
		t.Errorf("after the restart: %v", err)
	}
	t.Logf("first curl %d ms after the restart", time.Since(start).Milliseconds())
	for name, wait := range map[string]func() (lab.Gaps, error){"to edge-2": tcp, "from cloud-1": back} {
		g, err := wait()
		if err != nil || g.Lost > 0 || g.Reordered > 0 || g.Doubled > 0 {
			t.Errorf("TCP flow %s did not survive: %+v: %v", name, g, err)
		}
		t.Logf("TCP flow %s: longest gap %.0f ms", name, g.GapMs)
	}
	curlPods(t, s.pod1, s.pod2, 2*time.Second)
	curlPods(t, s.pod2, s.pod1, 2*time.Second)
	ready(t, s.edge1)
}

func (s *sites) relayRestarted(t *testing.T) {
	s.relay.Process.Kill()
	curlPods(t, s.pod1, s.pod2, 2*time.Second) // punched paths do not need it
	ok(t, s.relay.Start())
	start := time.Now()
	if err := s.relay.WaitReservations(within(t, 5*time.Second), len(s.lab.Nodes())); err != nil {
		t.Errorf("5 s after the relay's restart: %v", err)
	}
	t.Logf("all reservations back after %d ms", time.Since(start).Milliseconds())
}

func (s *sites) secondAgent(t *testing.T) {
	elapsed := stopwatch(t)
	_, stderr, err := s.edge1.AgentCommand(within(t, 5*time.Second), "run", "--config", s.edge1.ConfigFile())
	var exit *lab.ExitError
	if !errors.As(err, &exit) || exit.Code != 1 && exit.Code != 2 {
		t.Fatalf("a second agent on one state dir: %v", err)
	}
	if took := elapsed(); took > 2*time.Second {
		t.Errorf("refused after %v", took)
	}
	contains(t, stderr, s.edge1.Config.StateDir)
	curlPods(t, s.pod1, s.pod2, 2*time.Second) // the first continues
}

// TestRelayRestarts kills the relay for different times, with and without a
// circuit in use: reservations must always be back in time, and what was forwarded beside the circuit is again.
func TestRelayRestarts(t *testing.T) {
	tier.Long(t)
	p := newPair(t, lab.Symmetric, lab.Symmetric)
	r := p.lab.Relays[0]
	curlPods(t, p.pod1, p.pod2, 3*time.Second)
	for _, down := range []time.Duration{
		0, 500 * time.Millisecond, time.Second, 2 * time.Second, 3 * time.Second, 6 * time.Second,
	} {
		for _, busy := range []bool{false, true} {
			var wait, pings func() (lab.Gaps, error)
			if busy {
				pings = lasting(t, p.pod1.NS, "icmp", p.pod2.IP4())
				p.forwarded(t)
				wait = flow(t, p.pod1, "tcp", down+6*time.Second, p.pod2.IP4())
			}
			r.Process.Kill()
			time.Sleep(down) // sleep: the relay is down
			ok(t, r.Start())
			start := time.Now()
			if err := r.WaitReservations(within(t, 5*time.Second), 2); err != nil {
				t.Errorf("down for %v, busy %v: 5 s after the relay's restart: %v", down, busy, err)
			}
			took := time.Since(start)
			gap := "-"
			if busy {
				g, err := wait()
				if err != nil || g.Lost > 0 {
					t.Errorf("down for %v: flow %+v: %v", down, g, err)
				}
				p.forwarded(t)
				other, err := pings()
				ok(t, err)
				gap = fmt.Sprintf("%.0f ms, pings' %.0f ms", g.GapMs, other.GapMs)
			}
			t.Logf("down for %v, busy %v: reservations back after %d ms, flow's gap %s", down, busy,
				took.Milliseconds(), gap)
			curlPods(t, p.pod1, p.pod2, 5*time.Second)
		}
	}
}
