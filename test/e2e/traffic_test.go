package e2e

import (
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"edgemesh/test/lab"
)

// bulkWhilePathMoves makes a relayed path by keeping the sites apart, and lets
// them come together in the middle of a transfer.
func (s *sites) bulkWhilePathMoves(t *testing.T) {
	undo, err := s.a.Block(s.b)
	ok(t, err)
	if err := s.pod3.Ping(t.Context(), s.pod2.IP4().String(), time.Second); err != nil {
		t.Error(err)
	}
	if _, err := s.edge3.WaitPath(within(t, 10*time.Second), s.edge2, "relayed"); err != nil {
		ok(t, undo())
		t.Fatal(err)
	}
	datagrams := lasting(t, s.pod3.NS, "udp", s.pod2.IP4(), "--interval", "20ms")
	const size = 200_000_000
	var b lab.Bulk
	var bulkErr error
	var wg sync.WaitGroup
	// 120 Mbit/s: 13 s, so that it is under way when the path moves.
	wg.Go(func() {
		bulkErr = s.pod3.Tool(within(t, 60*time.Second), &b, "bulk", "--bytes", fmt.Sprint(size), "--mbps", "120",
			s.pod2.IP4().String())
	})
	time.Sleep(time.Second) // sleep: of the transfer before the path moves
	ok(t, lab.Until(within(t, 5*time.Second), 100*time.Millisecond, func() error { return isForwarded(t, s.edge3, s.edge2) }))
	before, err := s.edge3.Status(t.Context())
	ok(t, err)
	ok(t, undo())
	start := time.Now()
	_, pathErr := s.edge3.WaitPath(within(t, 20*time.Second), s.edge2, "punched")
	moved := time.Since(start)
	wg.Wait()
	if bulkErr != nil || !b.Match || b.Bytes != size {
		t.Errorf("200 MB while the path moved: %+v: %v", b, bulkErr)
	}
	if p := before.Peer("edge-2"); p.Path != "relayed" || p.TxBytes < 1_000_000 {
		t.Errorf("the transfer did not begin relayed: %+v", p)
	}
	if pathErr != nil {
		t.Errorf("the path did not move while data flowed: %v", pathErr)
	} else if moved > time.Duration(b.Seconds*float64(time.Second)) {
		t.Error("the path moved after the transfer")
	}
	g, err := datagrams()
	if err != nil || g.Lost > 0 || g.Doubled > 0 {
		t.Errorf("datagrams while the path moved: %+v: %v", g, err)
	}
	t.Logf("moved to punched %d ms after the sites came together; %.0f Mbit/s, longest stall %.0f ms",
		moved.Milliseconds(), b.Mbps, b.StallMs)
	// And as fast as it gets, in the other direction.
	var back lab.Bulk
	err = s.pod3.Tool(within(t, 60*time.Second), &back, "bulk", "--pull", "--bytes", fmt.Sprint(size),
		s.pod2.IP4().String())
	if err != nil || !back.Match {
		t.Errorf("200 MB back: %+v: %v", back, err)
	}
	t.Logf("and back at %.0f Mbit/s with checksums", back.Mbps)
}

func (s *sites) allPairs(t *testing.T) {
	count := 0
	for _, from := range s.allPods() {
		for _, to := range s.allPods() {
			if from == to {
				continue
			}
			curlPods(t, from, to, 3*time.Second)
			count += len(pairs(from, to))
		}
	}
	t.Logf("%d curls, IPv4-only, IPv6-only and dual-stack pods", count)
}

// nodeToPod curls remote pods from nodes; the source must be the node's gateway,
// so that answers find back.
func (s *sites) nodeToPod(t *testing.T) {
	for _, n := range s.lab.Nodes() {
		for _, to := range s.allPods() {
			for _, addr := range to.Addrs {
				var source netip.Addr
				for _, b := range n.PodCIDRs {
					if p := netip.MustParsePrefix(b); p.Addr().Is4() == addr.Is4() {
						source = p.Addr().Next()
					}
				}
				if !source.IsValid() {
					continue
				}
				curl(t, n.NS, to, addr, source, 3*time.Second)
				if addr.Is6() {
					continue
				}
				// Also from an address outside the cluster, as kube-proxy makes them.
				out, err := n.Run(t.Context(), "curl", "-sS", "-m", "3", "--interface", n.Addr.String(),
					fmt.Sprintf("http://%s:%d/", addr, lab.ServePort))
				if to.Node != n && (err != nil || !strings.Contains(out, `"`+source.String()+`"`)) {
					t.Errorf("%s as %s → %s: the server said %q, want it to see %s; %v", n.Name, n.Addr, to.Name,
						out, source, err)
				}
			}
		}
	}
}

// dnat redirects a port of the node to pods, as hostPort and NodePort do, and
// curls it from a host of the LAN.
func (s *sites) dnat(t *testing.T) {
	h, _, err := s.a.AddHost("client")
	ok(t, err)
	for port, to := range map[string]*lab.Pod{"8081": s.pod1, "8082": s.pod2, "8083": s.podCloud} {
		ok(t, s.edge1.Script(fmt.Sprintf("iptables -w -t nat -A PREROUTING -i eth0 -p tcp --dport %s -j DNAT --to-destination %s:%d",
			port, to.IP4(), lab.ServePort)))
		var r lab.Reply
		err := h.Tool(t.Context(), &r, "get", "http://"+s.edge1.Addr.String()+":"+port+"/")
		if err != nil || r.Name != to.Name {
			t.Errorf("port %s of edge-1, which leads to pod %s: %+v %v", port, to.Name, r, err)
		}
	}
	ok(t, s.edge1.Script("iptables -w -t nat -F PREROUTING"))
}

func (s *sites) toInternet(t *testing.T) {
	_, err := s.lab.WAN.Serve(within(t, 5*time.Second), "internet")
	ok(t, err)
	internet := netip.MustParseAddr(lab.InternetAddr)
	for _, tc := range []struct {
		from *lab.Pod
		as   netip.Addr
	}{{s.pod1, s.a.WAN}, {s.podCloud, s.cloud1.Addr}} {
		r, err := tc.from.Get(t.Context(), internet, 2*time.Second)
		if err != nil || r.Client != tc.as {
			t.Errorf("%s to the internet: seen as %s, want %s; %v", tc.from.Name, r.Client, tc.as, err)
		}
	}
}

func (s *sites) udp(t *testing.T) {
	for _, tc := range []struct{ from, to *lab.Pod }{{s.pod1, s.pod2}, {s.pod1, s.podCloud}, {s.podCloud, s.pod2}} {
		for _, addrs := range pairs(tc.from, tc.to) {
			for _, size := range []string{"0", "1", "1472", "1473", "9000", "60000"} {
				var u lab.Echoed
				err := tc.from.Tool(t.Context(), &u, "udp", "--size", size, "--count", "10", addrs[1].String())
				if err != nil {
					t.Errorf("%s → %s, %s bytes: %d of %d came back: %v", tc.from.Name, addrs[1], size, u.Received,
						u.Sent, err)
				}
			}
		}
	}
}

// fullPing is the payload, in bytes, of the largest echo request to addr that
// needs no fragments.
func fullPing(addr netip.Addr) int {
	if addr.Is6() {
		return 1500 - 48 // IPv6 and ICMPv6 headers
	}
	return 1500 - 28
}

func (s *sites) dfPing(t *testing.T) {
	together(t, []*lab.Pod{s.pod2, s.podCloud, s.near1}, func(t *testing.T, to *lab.Pod) {
		for _, addrs := range pairs(s.pod1, to) {
			fits := fullPing(addrs[1])
			if err := s.pod1.Ping(t.Context(), addrs[1].String(), time.Second, "-M", "do", "-s",
				fmt.Sprint(fits)); err != nil {
				t.Errorf("full size to %s: %v", to.Name, err)
			}
			if s.pod1.Ping(t.Context(), addrs[1].String(), time.Second, "-M", "do", "-s", fmt.Sprint(fits+1)) == nil {
				t.Errorf("more than the MTU to %s passed with DF", to.Name)
			}
		}
	})
}
