package host

import (
	"context"
	"encoding/binary"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"edgemesh/agent/host/rtnetlink"
	"edgemesh/internal/cni/conf"
	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/nstest"
	"edgemesh/test/fair"
)

// inVXLAN is what a UDP packet to VXLAN's port carries: a packet to our device.
func inVXLAN(packet []byte) string {
	out := binary.BigEndian.AppendUint64(nil, 8<<56|mesh.VXLANID<<8)
	to, from := mesh.VTEPAddr("self"), mesh.VTEPAddr("peer")
	out = append(append(out, to[:]...), from[:]...)
	kind := uint16(unix.ETH_P_IP)
	if packet[0]>>4 == 6 {
		kind = unix.ETH_P_IPV6
	}
	return string(append(binary.BigEndian.AppendUint16(out, kind), packet...))
}

// TestStrangersVXLAN: a peer's VXLAN comes in, and a stranger's with the same packet in it does
// not: also where the host tracks no connections, or has no pods of the outer packets' IP version.
func TestStrangersVXLAN(t *testing.T) {
	t.Parallel()
	v4, v6 := planOf("10.244.1.0/24", "10.244.0.0/16"), planOf("fd00:1::/64", "fd00::/16")
	v4.LAN, v6.LAN = dual().LAN, dual().LAN
	v4.LAN.Bits, v6.LAN.Bits = [2][]int{{24}}, [2][]int{nil, {64}}
	over6 := func(w mesh.Host) mesh.Host {
		w.LAN.IPv6Underlay = true
		return w
	}
	untracked := "iptables-nft -t raw -A PREROUTING -p udp -j CT --notrack\nip6tables-nft -t raw -A PREROUTING -p udp -j CT --notrack"
	for name, c := range map[string]struct {
		prepare string
		w       mesh.Host
	}{
		"tracked": {"", dual()}, "untracked": {untracked, dual()}, "untracked, over IPv6": {untracked, over6(dual())},
		"IPv4 over IPv6": {"", over6(v4)}, "IPv6 over IPv4": {"", v6}, "IPv4 over IPv6, untracked": {untracked, over6(v4)},
		"IPv6 over IPv4, untracked": {untracked, v6},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLabOf(t, c.prepare, c.w)
			node, peer, stranger, far, to, block := nodeLAN4, "192.168.1.51", lanHost4, far4, podA4, "10.244.2.0/24"
			if c.w.LAN.IPv6Underlay {
				node, peer, stranger = nodeLAN6, "2001:db8:1::51", lanHost6
			}
			if c.w.Blocks[0].Addr().Is6() {
				far, to, block = far6, podA6, "fd00:2::/64"
			}
			l.in(l.lan, func() { run(t, "ip addr add "+peer+" dev lan0 "+nodad(version{podA: peer})) })
			mustSetPaths(t, l.host, mesh.Paths{Senders: []mesh.Sender{{Block: netip.MustParsePrefix(block), Underlay: netip.MustParseAddr(peer), Local: netip.MustParseAddr(node), Pods: true}}})
			a := l.listen(l.podA, to, serverPort)
			inner := func(says string) string {
				return inVXLAN(udpPacket(netip.MustParseAddrPort(at(far, 7)), netip.MustParseAddrPort(at(to, serverPort)), says))
			}
			vtep := func(from, says string) {
				if err := send(l.listen(l.lan, from, 0), inner(says), node, mesh.VXLANPort); err != nil {
					t.Fatal(err)
				}
			}
			vtep(peer, "first")
			l.receive(a, "first")
			l.droppedByGuard("vxlan", func() { vtep(stranger, "forged") })
			// Nor does a pod's.
			pod, via := podB4, gateway4
			if c.w.LAN.IPv6Underlay {
				pod, via = podB6, gateway6
			}
			l.in(l.podB, func() {
				run(t, "ip neigh replace "+via+" lladdr "+conf.BridgeMAC(BridgeName).String()+" dev eth0 nud permanent")
			})
			if err := send(l.listen(l.podB, pod, 0), inner("forged by a pod"), node, mesh.VXLANPort); err != nil {
				t.Fatal(err)
			}
			vtep(peer, "last")
			b := make([]byte, 100)
			if n, _, err := a.ReadFromUDPAddrPort(b); err != nil || string(b[:n]) != "last" {
				t.Errorf("%q came in, %v", b[:n], err)
			}
		})
	}
}

// TestVXLANOnOneLink: between two nodes of one link, a packet with the right inner and outer addresses and another host's MAC does
// not come in, and what leaves crosses no router. Across routers, which the membership must trust, neither holds.
func TestVXLANOnOneLink(t *testing.T) {
	t.Parallel()
	for name, v6 := range map[string]bool{"over IPv4": false, "over IPv6": true} {
		t.Run(name, func(t *testing.T) {
			w, node, peer := dual(), nodeLAN4, lanHost4
			if w.LAN.IPv6Underlay = v6; v6 {
				node, peer = nodeLAN6, lanHost6
			}
			l := newLabOf(t, "", w)
			var mac [6]byte
			l.in(l.lan, func() {
				link, err := net.InterfaceByName("lan0")
				if err != nil {
					t.Fatal(err)
				}
				mac = [6]byte(link.HardwareAddr)
			})
			pod, there := l.listen(l.podA, podA4, serverPort), l.listen(l.lan, peer, mesh.VXLANPort)
			says := func(text string) {
				inner := inVXLAN(udpPacket(netip.MustParseAddrPort(at(far4, 7)), netip.MustParseAddrPort(at(podA4, serverPort)), text))
				if err := send(there, inner, node, mesh.VXLANPort); err != nil {
					t.Fatal(err)
				}
			}
			sender := mesh.Sender{Block: netip.MustParsePrefix("10.244.2.0/24"), Underlay: netip.MustParseAddr(peer), Local: netip.MustParseAddr(node), Pods: true}
			vtep := mesh.VTEP{Gateways: []netip.Addr{netip.MustParseAddr("10.244.2.1")}, MAC: mesh.VTEPAddr("peer"), Underlay: sender.Underlay, Local: sender.Local}
			set := func(mac [6]byte, pods, routed bool) {
				sender.MAC, sender.Pods, vtep.Routed = mac, pods, routed
				mustSetPaths(t, l.host, mesh.Paths{Senders: []mesh.Sender{sender}, VTEPs: []mesh.VTEP{vtep}, Routes: []mesh.PathRoute{overVXLAN(vtep)}})
			}
			wantHopLimit(t, there, v6)
			ttl := func() int {
				if err := send(pod, "out", far4, 7); err != nil {
					t.Fatal(err)
				}
				return hopLimit(t, there, v6)
			}
			set(mac, true, false)
			says("first")
			l.receive(pod, "first")
			if n := ttl(); n != 1 {
				t.Errorf("on one link: the outer packet's TTL is %d", n)
			}
			others := mac
			others[5] ^= 1
			set(others, true, false)
			l.droppedByGuard("vxlan", func() { says("another MAC") })
			set(mac, false, false)
			l.droppedByGuard("vxlan", func() { says("no probe") })
			set([6]byte{}, true, true)
			says("routed")
			l.receive(pod, "routed")
			if n := ttl(); n < 2 {
				t.Errorf("across routers: the outer packet's TTL is %d", n)
			}
			l.nothing(pod, "forged")
		})
	}
}

// overVXLAN is the route to far4's block behind a peer's end.
func overVXLAN(v mesh.VTEP) mesh.PathRoute {
	return mesh.PathRoute{Block: netip.MustParsePrefix("10.244.2.0/24"), Hop: mesh.Hop{Kind: mesh.VXLAN, Via: v.Gateways[0]}, MTU: 1400}
}

// TestOnlyTheDeviceSendsVXLAN: a peer takes what comes from this node's address to VXLAN's port for this node's own. Neither pods,
// whom this node translates, nor programs on it without privileges can send that, also with VXLAN's header in the second segment of
// a datagram that the kernel cuts. The device sends, and the port is as good as any other elsewhere.
func TestOnlyTheDeviceSendsVXLAN(t *testing.T) {
	t.Parallel()
	for name, v6 := range map[string]bool{"over IPv4": false, "over IPv6": true} {
		t.Run(name, func(t *testing.T) {
			w, node, gateway, peer, other, pod := dual(), nodeLAN4, gateway4, lanHost4, "192.168.1.51", podB4
			if w.LAN.IPv6Underlay = v6; v6 {
				node, gateway, peer, other, pod = nodeLAN6, gateway6, lanHost6, "2001:db8:1::51", podB6
			}
			l := newLabOf(t, `
iptables-nft -t nat -A PREROUTING -d 10.96.0.9 -p udp --dport 5210 -j DNAT --to-destination `+podA4+`
ip6tables-nft -t nat -A PREROUTING -d fd96::9 -p udp --dport 5210 -j DNAT --to-destination `+podA6+`
iptables-nft -t nat -A PREROUTING -d `+nodeLAN4+` -p udp --dport 5400 -j DNAT --to-destination `+podB4+`
ip6tables-nft -t nat -A PREROUTING -d `+nodeLAN6+` -p udp --dport 5400 -j DNAT --to-destination `+podB6, w)
			l.in(l.lan, func() { run(t, "ip addr add "+other+" dev lan0 "+nodad(version{podA: other})) })
			there, elsewhere := l.listen(l.lan, peer, mesh.VXLANPort), l.listen(l.lan, other, mesh.VXLANPort)
			vtep := mesh.VTEP{Gateways: []netip.Addr{netip.MustParseAddr("10.244.2.1")}, MAC: mesh.VTEPAddr("peer"), Underlay: netip.MustParseAddr(peer), Local: netip.MustParseAddr(node)}
			sender := l.listen(l.podA, podA4, serverPort)
			device := func(says string) {
				if err := send(sender, says, far4, 7); err != nil {
					t.Fatal(err)
				}
				b := make([]byte, 2048)
				there.SetReadDeadline(time.Now().Add(deadline))
				if n, _, err := there.ReadFromUDPAddrPort(b); err != nil || !strings.HasSuffix(string(b[:n]), says) {
					t.Errorf("want what the device sends (%s), and %q came, %v\n%s", says, b[:n], err, l.state())
				}
			}
			published := l.listen(l.podB, pod, 5400)
			forged := inVXLAN(udpPacket(netip.MustParseAddrPort(at(podA4, 7)), netip.MustParseAddrPort(at(far4, 7)), "forged"))
			from := map[string]*net.UDPConn{"pod": l.listen(l.podB, pod, 0), "program": l.listen(l.node, node, 0), "program, mesh address": l.listen(l.node, gateway, 0)}
			for _, routed := range []bool{false, true} {
				vtep.Routed = routed
				mustSetPaths(t, l.host, mesh.Paths{VTEPs: []mesh.VTEP{vtep}, Routes: []mesh.PathRoute{overVXLAN(vtep)}})
				device("first")
				for who, c := range from {
					if err := send(c, who, other, mesh.VXLANPort); err != nil { // another program's port
						t.Fatal(err)
					}
					l.receive(elsewhere, who)
					send(c, forged, peer, mesh.VXLANPort) //nolint:errcheck // a local one fails
					send(c, forged, other, mesh.VXLANPort)
					sendCut(t, c, strings.Repeat("x", len(forged))+forged, len(forged), netip.AddrPortFrom(vtep.Underlay, mesh.VXLANPort))
				}
				if err := send(there, "request", node, 5400); err != nil { // from the peer's address, as a host of the LAN can
					t.Fatal(err)
				}
				l.receive(published, "request")
				send(published, forged, peer, mesh.VXLANPort) //nolint:errcheck // an answer
				device("last")
				l.nothing(elsewhere, "forged")
			}
			service, a := "10.96.0.9", podA4
			if v6 {
				service, a = "fd96::9", podA6
			}
			serves := l.listen(l.podA, a, mesh.VXLANPort)
			if err := send(from["pod"], forged, service, mesh.VXLANPort); err != nil {
				t.Fatal(err)
			}
			l.receive(serves, forged)
		})
	}
}

// sendCut has the kernel cut a datagram into several.
func sendCut(t *testing.T, c *net.UDPConn, payload string, size int, to netip.AddrPort) {
	t.Helper()
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	set := func(size int) {
		raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_UDP, unix.UDP_SEGMENT, size) })
		if err != nil {
			t.Fatal(err)
		}
	}
	set(size)
	c.WriteToUDPAddrPort([]byte(payload), to) //nolint:errcheck // a local one fails
	set(0)
}

// wantHopLimit has the kernel report what hopLimit returns.
func wantHopLimit(t *testing.T, c *net.UDPConn, v6 bool) {
	t.Helper()
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	level, option := unix.IPPROTO_IP, unix.IP_RECVTTL
	if v6 {
		level, option = unix.IPPROTO_IPV6, unix.IPV6_RECVHOPLIMIT
	}
	raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), level, option, 1) })
	if err != nil {
		t.Fatal(err)
	}
}

// hopLimit receives a datagram and returns the TTL or hop limit that it came with.
func hopLimit(t *testing.T, c *net.UDPConn, v6 bool) int {
	t.Helper()
	kind := int32(unix.IP_TTL)
	if v6 {
		kind = unix.IPV6_HOPLIMIT
	}
	b, oob := make([]byte, 2048), make([]byte, 128)
	c.SetReadDeadline(time.Now().Add(deadline))
	_, n, _, _, err := c.ReadMsgUDPAddrPort(b, oob)
	if err != nil {
		t.Fatal(err)
	}
	all, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range all {
		if m.Header.Type == kind {
			return int(binary.NativeEndian.Uint32(m.Data))
		}
	}
	t.Fatal("no TTL")
	return 0
}

// TestStrangersFragments: a stranger's VXLAN over IPv6, cut so that its first fragment does not
// tell what is inside, does not come in, and a peer's does: where no rule of iptables has
// the kernel put fragments together before they are looked at.
func TestStrangersFragments(t *testing.T) {
	t.Parallel()
	w := planOf("10.244.1.0/24", "10.244.0.0/16")
	w.LAN = dual().LAN
	w.LAN.Bits, w.LAN.IPv6Underlay = [2][]int{{24}}, true
	l := newLabOf(t, "", w)
	const peer = "2001:db8:1::51"
	l.in(l.lan, func() { run(t, "ip addr add "+peer+" dev lan0 nodad") })
	mustSetPaths(t, l.host, mesh.Paths{Senders: []mesh.Sender{{Block: netip.MustParsePrefix("10.244.2.0/24"), Underlay: netip.MustParseAddr(peer), Local: netip.MustParseAddr(nodeLAN6), Pods: true}}})
	a := l.listen(l.podA, podA4, serverPort)
	var raw int
	l.in(l.lan, func() {
		var err error
		if raw, err = unix.Socket(unix.AF_INET6, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW); err != nil {
			t.Fatal(err)
		}
	})
	defer unix.Close(raw)
	id := uint32(0)
	vtep := func(from, says string) {
		p := inVXLAN(udpPacket(netip.MustParseAddrPort(at(far4, 7)), netip.MustParseAddrPort(at(podA4, serverPort)), says))
		whole := udpPacket(netip.MustParseAddrPort(at(from, 4000)), netip.MustParseAddrPort(at(nodeLAN6, mesh.VXLANPort)), p)
		id++
		for _, part := range [][2]int{{0, 8}, {8, len(whole) - 40}} { // RFC 8200, section 4.5
			fragment := append(append([]byte(nil), whole[:40]...), unix.IPPROTO_UDP, 0)
			fragment[6] = unix.IPPROTO_FRAGMENT
			more := uint16(1)
			if part[0] > 0 {
				more = 0
			}
			fragment = binary.BigEndian.AppendUint16(fragment, uint16(part[0])|more)
			fragment = binary.BigEndian.AppendUint32(fragment, id)
			fragment = append(fragment, whole[40+part[0]:40+part[1]]...)
			binary.BigEndian.PutUint16(fragment[4:], uint16(len(fragment)-40))
			if err := unix.Sendto(raw, fragment, 0, &unix.SockaddrInet6{Addr: netip.MustParseAddr(nodeLAN6).As16()}); err != nil {
				t.Fatal(err)
			}
		}
	}
	vtep(peer, "first")
	l.receive(a, "first")
	vtep(lanHost6, "forged")
	vtep(peer, "last")
	b := make([]byte, 100)
	if n, _, err := a.ReadFromUDPAddrPort(b); err != nil || string(b[:n]) != "last" {
		t.Errorf("%q came in, %v", b[:n], err)
	}
}

// TestForgedVXLANFromThePublicSide: a node has a LAN and a public link, and no reverse-path filter. From the public side comes
// what a peer on the LAN sends, its address included: to each of the node's addresses, as a pod's packet and as a probe.
func TestForgedVXLANFromThePublicSide(t *testing.T) {
	t.Parallel()
	const peer4, peer6, public4, public6 = "192.168.1.51", "2001:db8:1::51", "5.5.5.2", "2001:db8:5::2"
	for name, c := range map[string]struct {
		w                  mesh.Host
		node, peer, public string
	}{
		"IPv4": {dual(), nodeLAN4, peer4, public4},
		"IPv6": {func() mesh.Host { w := dual(); w.LAN.IPv6Underlay = true; return w }(), nodeLAN6, peer6, public6},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLabOf(t, "sysctl -qw net.ipv4.conf.all.rp_filter=0\nsysctl -qw net.ipv4.conf.default.rp_filter=0\nsysctl -qw net.ipv4.conf.up0.rp_filter=0", c.w)
			internet := l.namespace()
			l.wire("pub0", internet, "far0")
			run(t, "ip addr add "+public4+"/24 dev pub0\nip addr add "+public6+"/64 dev pub0 nodad")
			l.in(internet, func() { run(t, "ip addr add 5.5.5.9/24 dev far0") })
			frame := func(from nstest.Namespace, dev, to, dst string, port int, payload string) {
				l.raw(from, dev, hardware(t, to), udpPacket(netip.MustParseAddrPort(at(c.peer, 4000)), netip.MustParseAddrPort(at(dst, port)), payload))
			}
			probe := int(c.w.LAN.ProbePort)
			pod, gateway := l.listen(l.podA, podA4, serverPort), l.listen(l.node, gateway4, probe)
			plain := map[string]*net.UDPConn{c.node: l.listen(l.node, c.node, serverPort), c.public: l.listen(l.node, c.public, serverPort)}
			inner := func(to string, port int, says string) string {
				return inVXLAN(udpPacket(netip.MustParseAddrPort(at(far4, 7)), netip.MustParseAddrPort(at(to, port)), says))
			}
			for _, pods := range []bool{true, false} {
				to, port, in := podA4, serverPort, pod
				if !pods {
					to, port, in = gateway4, probe, gateway
				}
				mustSetPaths(t, l.host, mesh.Paths{Senders: []mesh.Sender{
					{Block: netip.MustParsePrefix("10.244.2.0/24"), Underlay: netip.MustParseAddr(c.peer), Local: netip.MustParseAddr(c.node), Pods: pods}}})
				for _, way := range []struct {
					what    string
					from    nstest.Namespace
					dev, by string
					dst     string
					is      bool
				}{
					{"the peer, on the LAN", l.lan, "lan0", "up0", c.node, true},
					{"public side, to the LAN's address", internet, "far0", "pub0", c.node, false},
					{"public side, to the public address", internet, "far0", "pub0", c.public, false},
					{"LAN, to the public address", l.lan, "lan0", "up0", c.public, false},
				} {
					// Control: this way leads to the node.
					frame(way.from, way.dev, way.by, way.dst, serverPort, way.what)
					l.receive(plain[way.dst], way.what)
					send := func() { frame(way.from, way.dev, way.by, way.dst, mesh.VXLANPort, inner(to, port, way.what)) }
					if way.is {
						send()
						l.receive(in, way.what)
						continue
					}
					l.droppedByGuard("vxlan", send)
					l.nothing(in, way.what)
				}
			}
		})
	}
}

// TestPortsOfNobody: what is plugged into the bridge without a pod's name carries nothing while it is to be shut, also after its carrier
// went and came.
func TestPortsOfNobody(t *testing.T) {
	t.Parallel()
	l := newLab(t, "")
	answered := func() (ok bool) {
		l.in(l.podA, func() { ok = exec.Command("ping", "-c1", "-W1", gateway4).Run() == nil })
		return ok
	}
	shut := func(shut bool) {
		t.Helper()
		if names, err := rtnetlink.ShutOthers(shut); err != nil || !slices.Equal(names, []string{"vethA", "vethB"}) {
			t.Fatalf("%v, %v", names, err)
		}
	}
	if shut(false); !answered() {
		t.Fatal("no answer while nothing is shut")
	}
	if shut(true); answered() {
		t.Error("it is shut, and there is an answer")
	}
	watcher, err := l.host.NewWatcher()
	if err != nil {
		t.Fatal(err)
	}
	changed := make(chan struct{}, 1)
	ctx, end := context.WithCancel(t.Context())
	var watch sync.WaitGroup
	watch.Go(func() {
		watcher.Run(ctx, func() {
			select {
			case changed <- struct{}{}:
			default:
			}
		})
	})
	defer watch.Wait()
	defer end()
	l.in(l.podA, func() { run(t, "ip link set eth0 down\nip link set eth0 up") })
	select {
	case <-changed:
	case <-time.After(deadline):
		t.Error("its carrier came, and the watcher does not say so")
	}
	fair.Eventually(t, deadline, "no answer although its carrier came", fair.True(func() bool { shut(true); return !answered() }))
	fair.Eventually(t, deadline, "an answer once it is open again", fair.True(func() bool { shut(false); return answered() }))
	name := func(of string) {
		if out, err := exec.Command("ip", "link", "set", "vethA", "alias", conf.PodAlias+of).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	name("of another") // which says not whose it is
	shut(true)
	name(podA4 + " eth0 0123456789ab")
	if names, err := rtnetlink.ShutOthers(true); err != nil || !slices.Equal(names, []string{"vethB"}) || !answered() {
		t.Errorf("with a pod's name: %v, %v", names, err)
	}
}
