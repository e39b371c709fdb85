package host

import (
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"edgemesh/internal/membership/mesh"
)

// TestNativeSenders: what a peer on the LAN may send is bound to its block, its MAC and the
// interface, and as long as it is only being probed, to probes.
func TestNativeSenders(t *testing.T) {
	t.Parallel()
	l := newLab(t, "")
	var mac [6]byte
	l.in(l.lan, func() {
		link, err := netlink.LinkByName("lan0")
		if err != nil {
			t.Fatal(err)
		}
		mac = [6]byte(link.Attrs().HardwareAddr)
	})
	probe := int(dual().LAN.ProbePort)
	for name, v := range versions("nft") {
		l.in(l.lan, func() { run(t, "ip addr add "+v.far+" dev lan0 "+nodad(v)) })
		pod, gateway, peer := l.listen(l.podA, v.podA, probe), l.listen(l.node, v.gateway, probe), l.listen(l.lan, v.far, 5002)
		block, other, chain := "10.244.2.0/24", "10.244.3.0/24", "lan4"
		if strings.Contains(v.podA, ":") {
			block, other, chain = "fd00:2::/64", "fd00:3::/64", "lan6"
		}
		good := mesh.Sender{Block: netip.MustParsePrefix(block), Link: "up0", MAC: mac, Pods: true}
		probed, elsewhere, cloned, stolen := good, good, good, good
		probed.Pods = false
		elsewhere.Link = "lo" // any other that is up
		cloned.MAC[5] ^= 1
		stolen.Block = netip.MustParsePrefix(other)
		for _, c := range []struct {
			what         string
			s            mesh.Sender
			probes, pods bool
		}{
			{"in use", good, true, true}, {"being probed", probed, true, false}, {"another interface", elsewhere, true, false},
			{"another MAC", cloned, false, false}, {"another block", stolen, false, false},
		} {
			what := name + ", " + c.what
			mustSetPaths(t, l.host, mesh.Paths{Senders: []mesh.Sender{c.s}})
			for to, is := range map[string]bool{v.gateway: c.probes, v.podA: c.pods} {
				if !is {
					l.droppedByGuard(chain, func() { send(peer, what, to, probe) })
				}
			}
			if !c.pods && c.probes { // another port of the node's
				l.droppedByGuard(chain, func() { send(peer, what, v.gateway, probe+1) })
			}
			for at, is := range map[string]bool{v.gateway: c.probes, v.podA: c.pods} {
				if !is {
					continue
				}
				if err := send(peer, what, at, probe); err != nil {
					t.Fatal(err)
				}
				if at == v.gateway {
					l.receive(gateway, what)
				} else {
					l.receive(pod, what)
				}
			}
			l.nothing(pod, what)
			l.nothing(gateway, what)
		}
		what := name + ", withdrawn"
		mustSetPaths(t, l.host, mesh.Paths{Senders: []mesh.Sender{good}})
		if err := send(peer, what+" soon", v.podA, probe); err != nil {
			t.Fatal(err)
		}
		l.receive(pod, what+" soon")
		mustSetPaths(t, l.host, mesh.Paths{})
		l.droppedByGuard(chain, func() { send(peer, what, v.podA, probe) })
		l.nothing(pod, what)
	}
}

// TestProbesAreNoTraffic: what pods send on a path that is in use is counted, and no probe that comes the same way, or both ends would prove it as
// often as in traffic forever.
func TestProbesAreNoTraffic(t *testing.T) {
	t.Parallel()
	l := newLab(t, "")
	var mac [6]byte
	l.in(l.lan, func() {
		run(t, "ip addr add "+far4+" dev lan0\nip addr add "+far6+" dev lan0 nodad\nip addr add 192.168.1.51 dev lan0")
		link, err := netlink.LinkByName("lan0")
		if err != nil {
			t.Fatal(err)
		}
		mac = [6]byte(link.Attrs().HardwareAddr)
	})
	probe, underlay := int(dual().LAN.ProbePort), l.listen(l.lan, "192.168.1.51", 0)
	var senders []mesh.Sender
	for _, block := range []string{"10.244.2.0/24", "fd00:2::/64"} {
		b := netip.MustParsePrefix(block)
		senders = append(senders, mesh.Sender{Block: b, Link: "up0", MAC: mac, Pods: true},
			mesh.Sender{Block: b, Underlay: netip.MustParseAddr("192.168.1.51"), Local: netip.MustParseAddr(nodeLAN4), Pods: true})
	}
	mustSetPaths(t, l.host, mesh.Paths{Senders: senders})
	count := func() map[mesh.Inlet]mesh.Count {
		t.Helper()
		counts, err := l.host.Traffic()
		if err != nil {
			t.Fatal(err)
		}
		return counts
	}
	for _, x := range []struct{ far, pod, gateway string }{{far4, podA4, gateway4}, {far6, podA6, gateway6}} {
		peer, pod, gateway := l.listen(l.lan, x.far, 0), l.listen(l.podA, x.pod, serverPort), l.listen(l.node, x.gateway, probe)
		packets := func(what, to string, port int, on *net.UDPConn) {
			t.Helper()
			if err := send(peer, what+", native", to, port); err != nil {
				t.Fatal(err)
			}
			l.receive(on, what+", native")
			inner := inVXLAN(udpPacket(netip.MustParseAddrPort(at(x.far, 7)), netip.MustParseAddrPort(at(to, port)), what+", VXLAN"))
			if err := send(underlay, inner, nodeLAN4, mesh.VXLANPort); err != nil {
				t.Fatal(err)
			}
			l.receive(on, what+", VXLAN")
		}
		for _, c := range []struct {
			what, to string
			port     int
			at       *net.UDPConn
			counted  uint64
		}{{"first", x.pod, serverPort, pod, 0}, {"pod", x.pod, serverPort, pod, 1}, {"probe", x.gateway, probe, gateway, 0}} {
			before, seen := count(), 0
			packets(c.what, c.to, c.port, c.at)
			for in, after := range count() {
				if in.Out || !in.Block.Contains(netip.MustParseAddr(x.far)) {
					continue
				}
				seen++
				// the first one has the host look for its neighbour
				if got := after.Packets - before[in].Packets; c.what != "first" && got != c.counted {
					t.Errorf("%s of %+v: %d packets counted, want %d", c.what, in, got, c.counted)
				}
			}
			if seen != 2 {
				t.Errorf("%d counters, want native and VXLAN", seen)
			}
		}
	}
}

// TestReversePathFilter: firewalld's default for IPv6 drops nothing that was let in, by whatever path this node itself
// sends. No mark is left when packets are routed, and who may send what stays as it is.
func TestReversePathFilter(t *testing.T) {
	t.Parallel()
	prepare := "nft add table inet filtering\nnft add chain inet filtering marked { type filter hook forward priority raw ; }\n" +
		"nft add rule inet filtering marked meta mark != 0 drop\n"
	for _, at := range []string{"raw + 10", "mangle + 10"} { // of its releases
		chain := strings.Fields(at)[0]
		prepare += "nft add chain inet filtering " + chain + " { type filter hook prerouting priority " + at + " ; }\n" +
			"nft add rule inet filtering " + chain + " icmpv6 type { nd-router-advert, nd-neighbor-solicit } accept\n" +
			"nft add rule inet filtering " + chain + " meta nfproto ipv6 fib saddr . mark . iif oif missing drop\n"
	}
	l := newLab(t, prepare)
	var mac [6]byte
	l.in(l.lan, func() {
		run(t, "ip addr add "+far6+" dev lan0 nodad\nip addr add 192.168.1.51 dev lan0")
		link, err := netlink.LinkByName("lan0")
		if err != nil {
			t.Fatal(err)
		}
		mac = [6]byte(link.Attrs().HardwareAddr)
	})
	probe, block := int(dual().LAN.ProbePort), netip.MustParsePrefix("fd00:2::/64")
	pod, gateway, peer := l.listen(l.podA, podA6, serverPort), l.listen(l.node, gateway6, probe), l.listen(l.lan, far6, 5002)
	native := mesh.PathRoute{Block: block, Hop: mesh.Hop{Kind: mesh.Native, Link: "up0", Via: netip.MustParseAddr(lanHost6)}, MTU: 1500}
	vxlan := mesh.PathRoute{Block: block, Hop: mesh.Hop{Kind: mesh.VXLAN, Via: netip.MustParseAddr("fd00:2::1")}, MTU: 1450}
	senders := []mesh.Sender{
		{Block: block, Link: "up0", MAC: mac, Pods: true},
		{Block: block, Underlay: netip.MustParseAddr("192.168.1.51"), Local: netip.MustParseAddr(nodeLAN4), Pods: true},
	}
	for what, routes := range map[string][]mesh.PathRoute{"tunnel": nil, "native": {native}, "VXLAN": {vxlan}} {
		mustSetPaths(t, l.host, mesh.Paths{Senders: senders, Routes: routes})
		if err := errors.Join(send(peer, what+": probe", gateway6, probe), send(peer, what+": native", podA6, serverPort)); err != nil {
			t.Fatal(err)
		}
		l.receive(gateway, what+": probe")
		l.receive(pod, what+": native")
		inner := inVXLAN(udpPacket(netip.MustParseAddrPort(at(far6, 7)), netip.MustParseAddrPort(at(podA6, serverPort)), what+": VXLAN"))
		if err := send(l.listen(l.lan, "192.168.1.51", 0), inner, nodeLAN4, mesh.VXLANPort); err != nil {
			t.Fatal(err)
		}
		l.receive(pod, what+": VXLAN")
		l.toTUN(at(far6, 7), at(podA6, serverPort), what+": tunnel")
		l.receive(pod, what+": tunnel")
	}
	l.droppedByGuard("lan6", func() {
		mustSetPaths(t, l.host, mesh.Paths{Senders: senders[1:]})
		_ = send(peer, "no sender", podA6, serverPort)
	})
	l.nothing(pod, "no sender")
}
