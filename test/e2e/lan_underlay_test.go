package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"edgemesh/test/lab"
	"edgemesh/test/tier"
)

// TestLANUnderlayChanges changes a node's uplink under a native path: down for a
// moment, another address, another name. The path follows, and flows continue.
func TestLANUnderlayChanges(t *testing.T) {
	tier.All(t)
	beside(t)
	p := newLANPair(t, func(p *lanPair) {
		// Strict reverse-path filtering, as some distributions have it.
		for _, n := range []*lab.Node{p.n1, p.n2} {
			ok(t, n.Script(
				"sysctl -qw net.ipv4.conf.all.rp_filter=1",
				"sysctl -qw net.ipv4.conf.eth0.rp_filter=1"))
		}
	})
	p.native(t)
	for _, step := range []struct {
		name   string
		script []string
	}{
		{"down for a moment, again and again", []string{
			`for i in 1 2 3 4; do printf 'link set eth0 down\nlink set eth0 up\nroute replace default via 192.168.1.1\n' | ip -batch -; sleep 0.4; done`}},
		{"address changed", []string{
			"ip addr del " + p.n2.Addr.String() + "/24 dev eth0", "ip addr add 192.168.1.77/24 dev eth0",
			"ip route replace default via 192.168.1.1"}},
		{"renamed", []string{
			"ip link set eth0 down", "ip link set eth0 name lan0", "ip link set lan0 up",
			"ip route replace default via 192.168.1.1",
		}},
	} {
		flowing := flow(t, p.pod1, "tcp", 5*time.Second, p.pod2.IP4())
		ok(t, p.n2.Script(step.script...))
		time.Sleep(time.Second) // sleep: the change is noticed
		start := time.Now()
		p.both(t, 20*time.Second, "native")
		g, err := flowing()
		if err != nil || g.Lost > 0 || g.Doubled > 0 {
			t.Errorf("%s: TCP flow: %+v: %v", step.name, g, err)
		}
		t.Logf("%s: native after %d ms; longest gap of a TCP flow %.0f ms", step.name,
			time.Since(start).Milliseconds(), g.GapMs)
		curlPods(t, p.pod2, p.pod1, 3*time.Second)
	}
}

// TestTwoUplinks: a second LAN between the same nodes takes over when the first
// breaks.
func TestTwoUplinks(t *testing.T) {
	tier.Long(t)
	p := newLANPair(t, func(p *lanPair) {
		ok(t, p.lab.Wire(p.n1.NS, "eth1", "10.99.0.1/24", p.n2.NS, "eth1", "10.99.0.2/24"))
	})
	p.native(t)
	for range 2 {
		out, err := p.n1.Run(t.Context(), "ip", "route", "show", "table", "5210", "10.244.2.0/24")
		ok(t, err)
		link := "eth0"
		if strings.Contains(out, "dev eth1") {
			link = "eth1"
		}
		t.Logf("native over %s", link)
		flowing := flow(t, p.pod1, "tcp", 4*time.Second, p.pod2.IP4())
		ok(t, p.n1.Script("ip link set "+link+" down"))
		time.Sleep(300 * time.Millisecond) // sleep: the change is noticed
		p.both(t, 10*time.Second, "native")
		g, err := flowing()
		if err != nil || g.Lost > 0 || g.Doubled > 0 {
			t.Errorf("%s down: TCP flow: %+v: %v", link, g, err)
		}
		t.Logf("%s down: longest gap of a TCP flow %.0f ms", link, g.GapMs)
		ok(t, p.n1.Script("ip link set "+link+" up"))
		if link == "eth0" {
			ok(t, p.n1.Script("ip route replace default via 192.168.1.1"))
		}
		time.Sleep(time.Second) // sleep: the route is there
	}
}

// TestIPv6Underlay: the LAN has RFC 4193 addresses only. Pods of both IP versions go
// natively.
func TestIPv6Underlay(t *testing.T) {
	beside(t)
	p := newLANPair(t, func(p *lanPair) {
		ok(t, p.site.Router.Script("ip addr add fd99::1/64 dev lan0 nodad"))
		for i, n := range []*lab.Node{p.n1, p.n2} {
			// The IPv4 address stays as a way to the relay, but it is no private one.
			addr := []string{"100.64.1.11", "100.64.1.12"}[i]
			ok(t, n.Script("ip addr flush dev eth0 scope global", "ip addr add "+addr+"/24 dev eth0",
				"ip addr add fd99::"+[]string{"11", "12"}[i]+"/64 dev eth0 nodad"))
			ok(t, p.site.Router.Script("ip addr add 100.64.1.1/24 dev lan0 || true"))
			ok(t, n.Script("ip route replace default via 100.64.1.1"))
		}
	})
	curlPods(t, p.pod1, p.pod2, 3*time.Second)
	p.both(t, 15*time.Second, "native")
	says(t, p.n1, p.n2, "native", "")
	ok(t, lab.Until(within(t, 10*time.Second), 50*time.Millisecond, func() error {
		for _, addr := range p.pod2.Addrs {
			out, err := p.n1.Run(t.Context(), "ip", "route", "get", addr.String())
			if err == nil && !strings.Contains(out, "fd99::12 ") {
				err = fmt.Errorf("no native path of IPv6 to %s: %s", addr, out)
			}
			if err != nil {
				return err
			}
		}
		return nil
	}))
	curlPods(t, p.pod1, p.pod2, 3*time.Second)
	curlPods(t, p.pod2, p.pod1, 3*time.Second)
	for _, addrs := range pairs(p.pod1, p.pod2) {
		if err := p.pod1.Ping(t.Context(), addrs[1].String(), 2*time.Second, "-M", "do", "-s", "1400"); err != nil {
			t.Errorf("1400 bytes to %s: %v", addrs[1], err)
		}
	}
	// The same by VXLAN, whose outer packets are IPv6.
	ok(t, p.n1.Agent.Stop())
	p.n1.Config.LAN = map[string]any{"native": false}
	ok(t, p.n1.Start())
	ready(t, p.n1)
	curlPods(t, p.pod1, p.pod2, 5*time.Second)
	p.both(t, 20*time.Second, "vxlan")
	n := p.onWire(t, p.n1, "ip6 and udp port 5210", 4, func() {
		curlPods(t, p.pod1, p.pod2, 3*time.Second)
		curlPods(t, p.pod2, p.pod1, 3*time.Second)
	})
	if n < 4 {
		t.Errorf("%d packets of VXLAN over IPv6", n)
	}
}

// TestGlobalUnderlay: the nodes of a LAN have global IPv6 addresses there, and no private ones. Their packets take the tunnel, and
// status says what to do; once the membership trusts the prefix, they go natively, until it does not any longer.
func TestGlobalUnderlay(t *testing.T) {
	beside(t)
	p := newLANPair(t, func(p *lanPair) {
		ok(t, p.site.Router.Script("ip addr add 2a05:6:1::1/64 dev lan0 nodad", "ip addr add 100.64.1.1/24 dev lan0"))
		for i, n := range []*lab.Node{p.n1, p.n2} {
			// The IPv4 address stays as a way to the relay, but it is no private one.
			x := []string{"11", "12"}[i]
			ok(t, n.Script("ip addr flush dev eth0 scope global", "ip addr add 100.64.1."+x+"/24 dev eth0",
				"ip addr add 2a05:6:1::"+x+"/64 dev eth0 nodad", "ip route replace default via 100.64.1.1"))
		}
	})
	curlPods(t, p.pod1, p.pod2, 3*time.Second)
	p.both(t, 15*time.Second, "direct")
	says(t, p.n1, p.n2, "direct", "add a ULA to both, or list 2a05:6:1::/64 in the membership's lan.trusted")
	out, _, err := p.n1.AgentCommand(t.Context(), "doctor", "--json", "--runtime-dir", p.n1.Config.RuntimeDir)
	if contains(t, out, `"lan-global"`, "trusted: [2a05:6:1::/64]"); err != nil {
		t.Logf("doctor: %v", err)
	}
	p.lab.Cluster.LAN = &lab.Trust{Trusted: []string{"2a05:6:1::/48"}}
	ok(t, p.lab.WriteMembership())
	curlPods(t, p.pod1, p.pod2, 3*time.Second)
	p.both(t, 15*time.Second, "native")
	curlPods(t, p.pod1, p.pod2, 3*time.Second)
	curlPods(t, p.pod2, p.pod1, 3*time.Second)
	p.lab.Cluster.LAN = nil
	ok(t, p.lab.WriteMembership())
	p.both(t, 5*time.Second, "direct")
	curlPods(t, p.pod1, p.pod2, 3*time.Second)
}

// TestVXLANUnderlayComesLate: while the nodes boot there are IPv6 addresses alone. IPv4's
// come when the agents run already, and VXLAN takes them, as it does on other nodes.
func TestVXLANUnderlayComesLate(t *testing.T) {
	tier.Long(t)
	p := newLANPair(t, func(p *lanPair) {
		for i, n := range []*lab.Node{p.n1, p.n2} {
			n.Config.LAN = map[string]any{"native": false}
			ok(t, n.Script("ip addr flush dev eth0 scope global",
				"ip addr add "+[]string{"100.64.1.11", "100.64.1.12"}[i]+"/24 dev eth0",
				"ip addr add fd99::"+[]string{"11", "12"}[i]+"/64 dev eth0 nodad"))
			ok(t, p.site.Router.Script("ip addr add 100.64.1.1/24 dev lan0 || true"))
			ok(t, n.Script("ip route replace default via 100.64.1.1"))
		}
	})
	curlPods(t, p.pod1, p.pod2, 3*time.Second)
	p.both(t, 15*time.Second, "vxlan")
	for _, n := range []*lab.Node{p.n1, p.n2} {
		ok(t, n.Script("ip addr add "+n.Addr.String()+"/24 dev eth0"))
	}
	flowing := flow(t, p.pod1, "tcp", 5*time.Second, p.pod2.IP4())
	ok(t, lab.Until(within(t, 10*time.Second), 50*time.Millisecond, func() error {
		_, err := p.n1.Run(t.Context(), "sh", "-c",
			"bridge fdb show dev edgemesh-vx | grep -q 'dst "+p.n2.Addr.String()+"'")
		return err
	}))
	p.both(t, 15*time.Second, "vxlan")
	n := p.onWire(t, p.n1, "ip and udp port 5210", 4, func() { curlPods(t, p.pod2, p.pod1, 3*time.Second) })
	if n < 4 {
		t.Errorf("%d packets of VXLAN over IPv4", n)
	}
	g, err := flowing()
	if err != nil || g.Lost > 0 || g.Doubled > 0 {
		t.Errorf("TCP flow: %+v: %v", g, err)
	}
}
