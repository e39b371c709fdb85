package e2e

import (
	"fmt"
	"testing"
	"time"

	"edgemesh/test/lab"
	"edgemesh/test/tier"
)

// TestClockJumps sets one node's clock while it runs: by hours, as with NTP after a
// boot, by decades, and back to 1971. No path, relay or flow depends on it, nor does
// what is made while it is wrong.
func TestClockJumps(t *testing.T) {
	tier.Long(t) // the agent is compiled with a standard library of its own
	p := newPair(t, lab.EIM, lab.EIM)
	clock, err := p.n2.OwnClock()
	ok(t, err)
	p.n2.Agent.Kill()
	ok(t, p.n2.Start())
	curlPods(t, p.pod1, p.pod2, 5*time.Second)
	p.onPaths(t, 30*time.Second, "punched")

	toSeventyOne := time.Until(time.Date(1971, 1, 1, 0, 0, 0, 0, time.UTC))
	for _, ahead := range []time.Duration{3 * time.Hour, -3 * time.Hour, 40 * 365 * 24 * time.Hour, toSeventyOne} {
		t.Run(ahead.Truncate(time.Hour).String(), func(t *testing.T) {
			// Longer than a silent path is believed in, and than a probe's interval.
			before := p.steady(t)
			wait := pings(t, p.pod1, p.pod2.IP4(), 8*time.Second)
			ok(t, clock.Set(ahead))
			held(t, []float64{wait()}, worstBack)
			here, err := p.n1.Status(t.Context())
			ok(t, err)
			there, err := p.n2.Status(t.Context())
			ok(t, err)
			if is := here.Peer(p.n2.Name); !is.Since.Equal(*before.Since) {
				t.Errorf("the path was left: %s %s since %v, before %s %s since %v", is.Path, is.Transport,
					is.Since, before.Path, before.Transport, before.Since)
			}
			if r := there.Relays[0]; !r.Connected || !r.Reserved {
				t.Errorf("relay: %+v", r)
			}

			// Its peer starts again: handshake, certificates and punching with a wrong clock.
			p.n1.Agent.Kill()
			ok(t, p.n1.Start())
			curlPods(t, p.pod2, p.pod1, 5*time.Second)
			p.onPaths(t, 30*time.Second, "punched")
			// And the relay: reservations have ends.
			r := p.lab.Relays[0]
			r.Process.Kill()
			ok(t, r.Start())
			ok(t, r.WaitReservations(within(t, 20*time.Second), 2))
		})
	}
}

// steady waits until the first node has been on one punched path for some seconds, all
// of its lanes with it.
func (p *pair) steady(t *testing.T) lab.PeerStatus {
	t.Helper()
	var st lab.PeerStatus
	err := lab.Until(within(t, time.Minute), 200*time.Millisecond, func() error {
		all, err := p.n1.Status(t.Context())
		if err != nil {
			return err
		}
		st = all.Peer(p.n2.Name)
		if st.Path != "punched" || st.Since == nil || time.Since(*st.Since) < 7*time.Second {
			return fmt.Errorf("on %s %s since %v", st.Path, st.Transport, st.Since)
		}
		return nil
	})
	ok(t, err)
	return st
}
