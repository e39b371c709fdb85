package e2e

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"edgemesh/test/lab"
)

// lanHost tries from a host on site A's LAN, and from one on the WAN, what a
// router would let it do.
func (s *sites) lanHost(t *testing.T) {
	h, hostAddr, err := s.a.AddHost("laptop")
	ok(t, err)
	_, err = h.Serve(within(t, 5*time.Second), "laptop")
	ok(t, err)
	via := s.edge1.Addr.String()
	ok(t, h.Script("ip route add 10.244.0.0/16 via "+via))
	together(t, []*lab.Pod{s.pod1, s.pod2, s.podCloud}, func(t *testing.T, to *lab.Pod) {
		noAnswer(t, h, to.IP4(), "a LAN host routes to pod "+to.Name)
		if h.Ping(t.Context(), to.IP4().String(), time.Second) == nil {
			t.Errorf("a LAN host pings pod %s through the node", to.Name)
		}
		forge(t, h, hostAddr, to, to.IP4())              // as itself
		forge(t, h, s.pod3.IP4(), to, to.IP4())          // as a remote pod
		forge(t, h, s.near1.IP4(), to, to.IP4())         // as a pod of the node
		forge(t, h, gateway(s.pod1.IP4()), to, to.IP4()) // as the node
	})
	// The gateway is the node's own address: it is not for the LAN either.
	if h.Ping(t.Context(), gateway(s.pod1.IP4()).String(), time.Second) == nil {
		t.Log("note: the bridge's gateway address answers the LAN")
	}
	// What pods ask for themselves does come back.
	r, err := s.pod1.Get(t.Context(), hostAddr, 2*time.Second)
	if err != nil || r.Client != s.edge1.Addr {
		t.Errorf("a pod to a host of its LAN: seen as %s, want %s; %v", r.Client, s.edge1.Addr, err)
	}
}

func (s *sites) podSpoof(t *testing.T) {
	podCannotSpoof(t, s.pod1, s.near1, s.pod2)     // a neighbour, towards another node
	podCannotSpoof(t, s.pod1, s.podCloud, s.pod2)  // a pod of a third node
	podCannotSpoof(t, s.pod1, s.podCloud, s.near1) // the same, towards its own node
	cannotClaim(t, s.pod1, s.near1, s.podCloud)
	cannotClaim(t, s.pod1, s.podCloud, s.near1)
	// Nor the node's root: the tunnel takes only packets of own pods.
	forge(t, s.edge1.NS, s.podCloud.IP4(), s.pod2, s.pod2.IP4())
}

// watchInside lets tcpdump look for packets of the agents' own connections on
// the node's TUN.
func (s *sites) watchInside(t *testing.T, n *lab.Node) {
	t.Helper()
	var ports []string
	for _, m := range s.lab.Nodes() {
		out, err := m.Run(t.Context(), "ss", "-Hltnp")
		ok(t, err)
		for line := range strings.Lines(out) {
			f := strings.Fields(line)
			if len(f) < 4 || !strings.Contains(line, fmt.Sprintf("pid=%d,", m.Agent.PID())) ||
				strings.HasPrefix(f[3], "127.") {
				continue
			}
			ports = append(ports, "port "+f[3][strings.LastIndex(f[3], ":")+1:])
		}
	}
	if len(ports) < len(s.lab.Nodes()) {
		t.Fatalf("agents' ports: %v", ports)
	}
	ports = append(ports, "port 4501")
	p, err := n.NS.Start("inside-"+n.Name, "tcpdump", "-lnni", "edgemesh-tun", strings.Join(ports, " or "))
	ok(t, err)
	s.inner = append(s.inner, p)
}

func (s *sites) nothingInside(t *testing.T) {
	for _, p := range s.inner {
		ok(t, p.Stop())
		log := p.Tail(1000)
		if !strings.Contains(log, "0 packets captured") {
			t.Errorf("%s: packets of the agents' own connections inside the tunnel:\n%s", p.Name, log)
		}
	}
	var ranges []netip.Prefix
	for _, r := range s.lab.Cluster.PodCIDRs {
		ranges = append(ranges, netip.MustParsePrefix(r))
	}
	for _, n := range s.lab.Nodes() {
		out, err := n.Run(t.Context(), "ss", "-Htunap")
		ok(t, err)
		for line := range strings.Lines(out) {
			if !strings.Contains(line, fmt.Sprintf("pid=%d,", n.Agent.PID())) {
				continue
			}
			for _, f := range strings.Fields(line)[4:6] {
				ap, err := netip.ParseAddrPort(f)
				if err != nil {
					continue // "*:*"
				}
				if slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Contains(ap.Addr().Unmap()) }) {
					t.Errorf("%s: the agent has a socket inside the cluster's range: %s", n.Name, line)
				}
			}
		}
	}
}

func (s *sites) noLeaks(t *testing.T) {
	leaks, err := s.lab.Leaks(t.Context())
	ok(t, err)
	if len(leaks) > 0 {
		t.Errorf("packets with addresses of the cluster's ranges outside the tunnel: %v", leaks)
	}
}
