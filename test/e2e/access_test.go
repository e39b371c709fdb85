package e2e

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"edgemesh/test/lab"
)

// TestHostAccess goes through what hostAccess, hostPorts and podDenyCIDRs may say, in the membership's file and while all is
// running: each takes effect within 2 s, and the nodes' native path stays.
func TestHostAccess(t *testing.T) {
	beside(t)
	p := newLANPair(t, nil)
	for _, n := range []*lab.Node{p.n1, p.n2} {
		server, err := n.NS.Serve(t.Context(), n.Name)
		ok(t, err)
		t.Cleanup(func() { ok(t, server.Stop()) })
	}
	curlPods(t, p.pod1, p.pod2, 3*time.Second)
	p.both(t, 15*time.Second, "native")
	node2, lan2 := gateway(p.pod2.IP4()), p.n2.Addr
	asks := func(from *lab.NS, addr netip.Addr) bool {
		_, err := from.Get(t.Context(), addr, 300*time.Millisecond)
		return err == nil
	}
	for _, c := range []struct {
		access                     string
		ports, deny                []string
		own, far, node, itself, by bool // who reaches the second node at its address in the pod network; by: pods at the other one
	}{
		{"all", nil, nil, true, true, true, true, true},
		{"nodes", nil, nil, false, false, true, true, true},
		{"none", nil, nil, false, false, false, true, true},
		{"none", []string{fmt.Sprintf("%d/tcp", lab.ServePort)}, nil, true, true, true, true, true},
		{"nodes", []string{fmt.Sprintf("%d/udp", lab.ServePort)}, []string{"192.168.0.0/16"}, false, false, true, true, false},
		{"", nil, nil, true, true, true, true, true},
	} {
		what := fmt.Sprintf("%s, hostPorts %v, podDenyCIDRs %v", c.access, c.ports, c.deny)
		p.lab.Cluster.HostAccess, p.lab.Cluster.HostPorts, p.lab.Cluster.PodDeny = c.access, c.ports, c.deny
		ok(t, p.lab.WriteMembership())
		for _, x := range []struct {
			who  string
			from *lab.NS
			at   netip.Addr
			is   bool
		}{
			{"own pod", p.pod2.NS, node2, c.own}, {"far pod", p.pod1.NS, node2, c.far}, {"other node", p.n1.NS, node2, c.node},
			{"itself", p.n2.NS, node2, c.itself}, {"own pod, at its LAN address", p.pod2.NS, lan2, c.by},
			{"far pod, at its LAN address", p.pod1.NS, lan2, c.by},
		} {
			err := lab.Until(within(t, 2*time.Second), 20*time.Millisecond, func() error {
				if asks(x.from, x.at) != x.is {
					return errors.New("not yet")
				}
				return nil
			})
			if err != nil {
				t.Errorf("%s: %s: answered %v, want %v", what, x.who, !x.is, x.is)
			}
		}
		curlPods(t, p.pod1, p.pod2, 3*time.Second)
		curl(t, p.n1.NS, p.pod2, p.pod2.IP4(), netip.Addr{}, 3*time.Second) // the answer is the node's own
		ok(t, p.pod1.Ping(t.Context(), node2.String(), 2*time.Second))
	}
	p.both(t, time.Second, "native")
}
