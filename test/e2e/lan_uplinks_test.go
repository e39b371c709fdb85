package e2e

import (
	"strings"
	"testing"
	"time"

	"edgemesh/test/lab"
	"edgemesh/test/tier"
)

// TestLANUplinkKinds: the address of one node stands on a bridge with the uplink in it, as
// on a host of virtual machines, the other's on an interface above the uplink, with a MAC of
// its own. (This kernel has neither VLAN nor bonding.)
func TestLANUplinkKinds(t *testing.T) {
	tier.Long(t)
	var guest *lab.NS
	p := newLANPair(t, func(p *lanPair) {
		ok(t, p.n1.Script(
			"ip addr flush dev eth0",
			"ip link add port0 link eth0 type macvlan mode passthru",
			"ip link set port0 up", "ip link add br0 type bridge", "ip link set port0 master br0",
			"ip link set br0 up", "ip addr add "+p.n1.Addr.String()+"/24 dev br0",
			"ip route add default via 192.168.1.1"))
		// eth0 answers ARP for the address of lan1, too: which of them packets come in on is luck.
		ok(t, p.n2.Script(
			"ip addr flush dev eth0",
			"ip link add lan1 link eth0 type macvlan mode bridge",
			"ip link set lan1 up", "ip addr add "+p.n2.Addr.String()+"/24 dev lan1",
			"ip route add default via 192.168.1.1"))
		var err error
		guest, err = p.n1.NewNS("guest")
		ok(t, err)
		ok(t, p.n1.Script("ip link add veth-guest type veth peer name eth0 netns "+guest.Full,
			"ip link set veth-guest master br0 up"))
		ok(t, guest.Script("ip addr add 192.168.1.200/24 dev eth0", "ip link set eth0 up",
			"ip route add default via 192.168.1.1"))
	})
	p.native(t)
	for _, c := range []struct {
		from *lab.Node
		to   *lab.Pod
		link string
	}{{p.n1, p.pod2, "br0"}, {p.n2, p.pod1, "lan1"}} {
		out, err := c.from.Run(t.Context(), "ip", "route", "get", c.to.IP4().String())
		ok(t, err)
		contains(t, out, "dev "+c.link)
	}
	curlPods(t, p.pod1, p.pod2, 3*time.Second)
	curlPods(t, p.pod2, p.pod1, 3*time.Second)
	// The guest has its LAN, and no way into the pod network.
	for _, addr := range []string{"192.168.1.1", p.n2.Addr.String(), lab.InternetAddr} {
		if err := guest.Ping(t.Context(), addr, 2*time.Second); err != nil {
			t.Errorf("the guest on the bridge loses %s: %v", addr, err)
		}
	}
	ok(t, guest.Script("ip route add "+lab.DefaultRange4+" via "+p.n1.Addr.String()))
	noAnswer(t, guest, p.pod1.IP4(), "the guest on the bridge routes to a pod")
	forge(t, guest, p.pod2.IP4(), p.pod1, p.pod1.IP4())
}

// TestWiredAndMobile: a node has a LAN and a modem. When the LAN's link goes away, flows
// continue through the tunnel over the modem, and come back; no pod's address is ever seen there.
func TestWiredAndMobile(t *testing.T) {
	tier.Long(t)
	p := newLANPair(t, func(p *lanPair) {
		carrier, err := p.lab.AddCarrier("carrier", lab.Symmetric)
		ok(t, err)
		ok(t, p.lab.Wire(p.n1.NS, "wwan0", "100.64.9.2/24", carrier.Router, "modem0", "100.64.9.1/24"))
		ok(t, p.n1.Script("ip route replace default via 192.168.1.1 dev eth0 metric 100",
			"ip route del default metric 0 2>/dev/null || true",
			"ip route add default via 100.64.9.1 dev wwan0 metric 700"))
	})
	p.native(t)
	dump, err := p.n1.NS.Start("modem", "tcpdump", "--immediate-mode", "-lnni", "wwan0",
		"net "+lab.DefaultRange4+" or net "+lab.DefaultRange6+" or udp port 5210")
	ok(t, err)
	for range 2 {
		flowing := flow(t, p.pod1, "tcp", 15*time.Second, p.pod2.IP4())
		ok(t, p.n1.Script("ip link set eth0 down"))
		p.both(t, 15*time.Second, "relayed", "punched", "direct")
		curlPods(t, p.pod2, p.pod1, 10*time.Second)
		ok(t, p.n1.Script(
			"ip link set eth0 up",
			"ip route replace default via 192.168.1.1 dev eth0 metric 100"))
		p.both(t, 40*time.Second, "native")
		g, err := flowing()
		if err != nil || g.Lost > 0 || g.Doubled > 0 {
			t.Errorf("TCP flow: %+v: %v", g, err)
		}
		t.Logf("longest gap of a TCP flow %.0f ms", g.GapMs)
	}
	ok(t, dump.Stop())
	if log := dump.Tail(1000); strings.Contains(log, " > ") {
		t.Errorf("packets of pods or of VXLAN on the modem:\n%s", log)
	}
}
