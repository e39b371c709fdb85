package e2e

import (
	"fmt"
	"testing"
	"time"

	"edgemesh/test/lab"
	"edgemesh/test/tier"
)

// TestPortMapping lets a node behind a symmetric NAT ask its router for a port:
// another one behind a symmetric NAT, which could not be punched, reaches it there, directly.
func TestPortMapping(t *testing.T) {
	tier.All(t)
	beside(t)
	for _, tc := range []struct {
		name string
		o    lab.UPnP
		by   string
	}{{"UPnP", lab.UPnP{IGD: true}, "UPnP"}, {"PCP", lab.UPnP{PCP: true}, "PCP"}} {
		t.Run(tc.name, func(t *testing.T) {
			l := newLab(t)
			relay(t, l, "relay")
			a, b := site(t, l, "site-1", lab.Symmetric), site(t, l, "site-2", lab.Symmetric)
			p := &pair{lab: l, n1: node(t, a, "edge-1", lab.NodeOptions{}), n2: node(t, b, "edge-2", lab.NodeOptions{})}
			_, err := a.StartUPnP(tc.o)
			ok(t, err)
			start := time.Now()
			startAll(t, l)
			p.pod1, p.pod2 = pod(t, p.n1, "one"), pod(t, p.n2, "two")
			curlPods(t, p.pod1, p.pod2, time.Second)
			for _, n := range [][2]*lab.Node{{p.n1, p.n2}, {p.n2, p.n1}} {
				st, err := n[0].WaitPath(within(t, 15*time.Second), n[1], "direct")
				if err != nil {
					t.Error(err)
				}
				t.Logf("%s: %s over %s %d ms after the start; %s", n[0].Name, st.Path, st.Transport,
					time.Since(start).Milliseconds(), st.Reason)
			}
			maps, err := a.Mappings(t.Context())
			ok(t, err)
			if len(maps) != 2 {
				t.Errorf("mappings: %q", maps)
			}
			ok(t, p.n1.Agent.Stop())
			err = lab.Until(within(t, 5*time.Second), 50*time.Millisecond, func() error {
				maps, err := a.Mappings(t.Context())
				if err == nil && len(maps) > 0 {
					err = fmt.Errorf("still mapped after the agent's end: %q", maps)
				}
				return err
			})
			if err != nil {
				t.Error(err)
			}
			// Switched off, the router is left alone.
			p.n1.Config.Discovery = map[string]bool{"portMapping": false}
			ok(t, p.n1.Start())
			ready(t, p.n1)
			curlPods(t, p.pod1, p.pod2, 3*time.Second)
			time.Sleep(5 * time.Second) // sleep: nothing is mapped meanwhile
			if maps, err := a.Mappings(t.Context()); err != nil || len(maps) > 0 {
				t.Errorf("mapped although switched off: %q, %v", maps, err)
			}
		})
	}
}
