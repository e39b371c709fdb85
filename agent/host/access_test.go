package host

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/nstest"
)

const (
	openPort    = 5300 // in hostPorts
	closedPort  = 5301
	servicePort = 5302
	openToAll   = 5303 // in hostPorts; sockets that are bound to no address
	closedToAll = 5304
	farNode4    = "10.244.2.1"
	farNode6    = "fd00:2::1"
)

// limited is dual, or kept's plan, with other nodes and what is closed to pods.
func limited(w mesh.Host, access mesh.HostAccess, lan bool) mesh.Host {
	w.Access = mesh.Access{HostAccess: access, HostPorts: []mesh.HostPort{{Port: openPort, Proto: "udp"}, {Port: openToAll, Proto: "udp"}}}
	if access.Closed() {
		for _, b := range []string{"10.244.2.0/24", "10.244.3.16/28", "fd00:2::/64", "fd00:3:0:0:1::/80"} {
			w.Nodes = append(w.Nodes, netip.MustParsePrefix(b))
		}
	}
	if !lan {
		w.LAN = mesh.LAN{}
	}
	return w
}

// TestHostAccess: who reaches a node by its address in the pod network, directly and through a Service's translation, with
// each backend and IP version, with our pods and with another plugin's.
func TestHostAccess(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		backend string
		keep    bool
		lan     bool
	}{{"nft", false, true}, {"legacy", false, false}, {"nft", true, false}} {
		for name, v := range versions(c.backend) {
			for _, mode := range []mesh.HostAccess{mesh.HostAll, mesh.HostNodes, mesh.HostNone} {
				t.Run(fmt.Sprint(c.backend, "/", name, "/keep ", c.keep, "/", mode), func(t *testing.T) {
					t.Parallel()
					w := limited(dual(), mode, c.lan)
					var l *lab
					if w.Keep = c.keep; c.keep {
						l = newKeepLab(t, "")
						mustSet(t, l.host, w)
					} else {
						l = newLabOf(t, fmt.Sprintf(hardened, c.backend), w)
					}
					wantUnchanged(t, l.host, w)
					l.hostAccess(v, mode)
				})
			}
		}
	}
}

// hostAccess sends from everyone to everything.
func (l *lab) hostAccess(v version, mode mesh.HostAccess) {
	t := l.t
	farNode, service := farNode4, "10.96.0.10"
	smallNode, samePod := "10.244.3.17", "10.244.2.17" // a pod that has what would be the gateway of a block as small
	if strings.Contains(v.podA, ":") {
		farNode, service = farNode6, "fd96::10"
		smallNode, samePod = "fd00:3:0:0:1::1", "fd00:2:0:0:1::1"
	}
	// A Service whose endpoint is the node itself, as for a pod in the host's network.
	for _, hook := range []string{"PREROUTING", "OUTPUT"} {
		run(t, fmt.Sprintf("%s -t nat -I %s -d %s -p udp --dport %d -j DNAT --to-destination %s", v.iptables, hook, service, servicePort, at(v.gateway, closedPort)))
	}
	if strings.Contains(service, ":") {
		run(t, "ip -6 route add "+service+" via "+v.lanHost)
	}
	open, closed := l.listen(l.node, v.gateway, openPort), l.listen(l.node, v.gateway, closedPort)
	uplink := l.listen(l.node, v.nodeLAN, closedPort)
	openAny, closedAny := l.listen(l.node, anyOf(v), openToAll), l.listen(l.node, anyOf(v), closedToAll)
	pod, local := l.listen(l.podA, v.podA, 0), l.listen(l.node, v.gateway, 0)
	lan := l.listen(l.lan, v.lanHost, 0)

	udp := func(c *net.UDPConn, to string, port int) func(string) {
		return func(says string) {
			if err := send(c, says, to, port); err != nil {
				t.Fatal(err)
			}
		}
	}
	tunnel := func(from string, port int) func(string) {
		return func(says string) { l.toTUN(at(from, 7), at(v.gateway, port), says) }
	}
	type access struct {
		what string
		send func(says string)
		in   *net.UDPConn
		is   bool
	}
	all := []access{
		{"own pod", udp(pod, v.gateway, closedPort), closed, mode == mesh.HostAll},
		{"own pod to an open port", udp(pod, v.gateway, openPort), open, true},
		{"own pod through a Service", udp(pod, service, servicePort), closed, mode == mesh.HostAll},
		{"own pod to the node's other address", udp(pod, v.nodeLAN, closedPort), uplink, true},
		{"far pod", tunnel(v.far, closedPort), closed, mode == mesh.HostAll},
		{"far pod to an open port", tunnel(v.far, openPort), open, true},
		{"far node", tunnel(farNode, closedPort), closed, mode != mesh.HostNone},
		{"far node with a smaller block", tunnel(smallNode, closedPort), closed, mode != mesh.HostNone},
		{"far pod whose address ends like that node's", tunnel(samePod, closedPort), closed, mode == mesh.HostAll},
		{"far node to an open port", tunnel(farNode, openPort), open, true},
		{"LAN host", udp(lan, v.gateway, closedPort), closed, mode == mesh.HostAll && l.host.wanted.Keep},
		{"LAN host to an open port", udp(lan, v.gateway, openPort), open, true},
		{"itself", udp(local, v.gateway, closedPort), closed, true},
		{"itself through a Service", udp(local, service, servicePort), closed, true},
	}
	everyone := []string{"255.255.255.255", "224.0.0.1", "10.244.1.255"}
	if strings.Contains(v.podA, ":") {
		everyone = []string{"ff02::1"}
	}
	for _, to := range everyone {
		all = append(all, access{"own pod to " + to, udp(pod, to, closedToAll), closedAny, mode == mesh.HostAll},
			access{"own pod to an open port of " + to, udp(pod, to, openToAll), openAny, true})
	}
	for _, x := range all {
		if x.is {
			x.send(x.what)
			l.receive(x.in, x.what)
			continue
		}
		l.dropped(v.iptables+"-save", "EDGEMESH-HOST", func() { x.send(x.what) })
		l.nothing(x.in, x.what)
	}

	if probes := l.listen(l.node, v.gateway, int(dual().LAN.ProbePort)); l.host.state.LAN.Native { // an agent proves a LAN path
		tunnel(farNode, int(dual().LAN.ProbePort))("probe")
		l.receive(probes, "probe")
	}

	// Answers to what the node itself asks, of own and far pods.
	asked := l.listen(l.podA, v.podA, serverPort)
	udp(local, v.podA, serverPort)("question")
	udp(asked, v.gateway, int(l.receive(asked, "question").Port()))("answer")
	l.receive(local, "answer")
	udp(local, v.far, serverPort)("far question")
	src, dst := l.fromTUN("far question")
	l.toTUN(dst.String(), src.String(), "far answer")
	l.receive(local, "far answer")

	l.in(l.podA, func() { run(t, "ping -c1 -W10 "+v.gateway) })

	// Nor does a pod get to another node in its own node's name, which a NodePort's masquerading gives it.
	run(t, fmt.Sprintf("%[1]s -t nat -I PREROUTING -d %[2]s -p udp --dport %[3]d -j DNAT --to-destination %[4]s\n%[1]s -t nat -I POSTROUTING -d %[5]s -j MASQUERADE",
		v.iptables, service, servicePort+1, at(farNode, closedPort), farNode))
	through := udp(pod, service, servicePort+1)
	if mode == mesh.HostNodes {
		l.dropped(v.iptables+"-save", "EDGEMESH-HOST", func() { through("masqueraded") })
		return
	}
	through("masqueraded")
	want := v.gateway
	if mode.Closed() && l.host.state.LAN.Native { // no pod gets that name
		want = v.podA
	}
	if src, _ := l.fromTUN("masqueraded"); src.Addr() != netip.MustParseAddr(want) {
		t.Errorf("masqueraded as %s, want %s: the test does not show what it should", src, want)
	}
}

// TestHostAccessEndsFlows: what pods have open when the ports are closed ends there, and what the node has open stays.
func TestHostAccessEndsFlows(t *testing.T) {
	t.Parallel()
	l := newLabOf(t, "", limited(dual(), mesh.HostAll, true))
	pod, node := l.listen(l.podA, podA4, 0), l.listen(l.node, gateway4, closedPort)
	server, client := l.listen(l.podA, podA4, serverPort), l.listen(l.node, gateway4, 0)
	exchange := func(from, to *net.UDPConn, at string, port int, says string) {
		t.Helper()
		if err := send(from, says, at, port); err != nil {
			t.Fatal(err)
		}
		asker := l.receive(to, says)
		if err := send(to, "answer: "+says, asker.Addr().String(), int(asker.Port())); err != nil {
			t.Fatal(err)
		}
		l.receive(from, "answer: "+says)
	}
	exchange(pod, node, gateway4, closedPort, "pod asks")
	exchange(client, server, podA4, serverPort, "node asks")
	mustSet(t, l.host, limited(dual(), mesh.HostNone, true))
	l.dropped("iptables-nft-save", "EDGEMESH-HOST", func() { send(pod, "pod asks again", gateway4, closedPort) })
	l.nothing(node, "a pod's flow from before")
	exchange(client, server, podA4, serverPort, "node asks again")
}

// TestHostAccessLinkLocal: nor does the bridge's link-local address open what is closed.
func TestHostAccessLinkLocal(t *testing.T) {
	t.Parallel()
	l := newLabOf(t, "", limited(dual(), mesh.HostAll, true))
	server := l.listen(l.node, "::", closedPort)
	_, bridge, _ := strings.Cut(run(t, "ip -6 -o addr show dev "+BridgeName+" scope link"), "inet6 ")
	bridge, _, _ = strings.Cut(bridge, "/")
	var pod *net.UDPConn
	l.in(l.podA, func() {
		link, err := net.InterfaceByName("eth0")
		if err != nil {
			t.Fatal(err)
		}
		to := &net.UDPAddr{IP: net.ParseIP(bridge), Port: closedPort, Zone: fmt.Sprint(link.Index)}
		if pod, err = net.DialUDP("udp", nil, to); err != nil {
			t.Fatal(err)
		}
	})
	defer pod.Close()
	pod.Write([]byte("all"))
	l.receive(server, "all")
	mustSet(t, l.host, limited(dual(), mesh.HostNone, true))
	l.dropped("ip6tables-nft-save", "EDGEMESH-HOST", func() { pod.Write([]byte("none")) })
	l.nothing(server, "a pod to the bridge's link-local address")
}

// TestPodDeny: pods do not reach what is denied, answer who is there, and reach everything else.
func TestPodDeny(t *testing.T) {
	t.Parallel()
	const metadata4, metadata6 = "169.254.169.254", "2001:db8:1::254"
	for _, c := range []struct {
		backend string
		keep    bool
	}{{"nft", false}, {"legacy", false}, {"nft", true}} {
		for name, v := range versions(c.backend) {
			t.Run(fmt.Sprint(c.backend, "/", name, "/keep ", c.keep), func(t *testing.T) {
				t.Parallel()
				var l *lab
				w := dual()
				if w.Keep = c.keep; c.keep {
					l = newKeepLab(t, "")
				} else {
					w.LAN = mesh.LAN{}
					l = newLabOf(t, fmt.Sprintf(hardened, c.backend), w)
				}
				metadata, site := metadata4, "192.168.0.0/16"
				if name == "IPv6" {
					metadata, site = metadata6, "2001:db8:1::50/128"
				} else {
					run(t, "ip route add "+metadata+" dev up0")
				}
				l.in(l.lan, func() { run(t, "ip addr add "+metadata+" dev lan0 "+nodad(v)) })
				if name == "IPv6" { // hosts of IPv4, as NAT64 shows them
					run(t, "ip -6 route add 64:ff9b::/32 dev up0")
					l.in(l.lan, func() {
						run(t, "ip addr add 64:ff9b::10.9.9.9 dev lan0 nodad\nip addr add 64:ff9b:1:2:3:4:10.9.9.9 dev lan0 nodad\nip addr add 64:ff9b::11.9.9.9 dev lan0 nodad")
					})
				}
				a, b := l.listen(l.podA, v.podA, serverPort), l.listen(l.podB, v.podB, serverPort)
				server, lan := l.listen(l.lan, metadata, serverPort), l.listen(l.lan, v.lanHost, serverPort)
				node, uplink := l.listen(l.node, anyOf(v), 0), l.listen(l.node, v.nodeLAN, closedPort)
				for port, to := range map[int]string{servicePort: at(v.lanHost, serverPort), servicePort + 1: at(v.nodeLAN, closedPort)} {
					run(t, fmt.Sprintf("%s -t nat -I PREROUTING -d %s -p udp --dport %d -j DNAT --to-destination %s", v.iptables, v.gateway, port, to))
				}
				far := func(port int, says string) { l.toTUN(at(v.far, 7), at(v.gateway, port), says) }
				say := func(c *net.UDPConn, says, to string, port int) {
					t.Helper()
					if err := send(c, says, to, port); err != nil {
						t.Fatal(err)
					}
				}
				// Control: nothing is denied yet.
				say(a, "metadata", metadata, serverPort)
				l.receive(server, "metadata")
				say(a, "site", v.lanHost, serverPort)
				l.receive(lan, "site")
				far(servicePort, "far pod through a Service")
				l.receive(lan, "far pod through a Service")
				far(servicePort+1, "far pod to the node")
				l.receive(uplink, "far pod to the node")

				w.Access.PodDenyCIDRs = []netip.Prefix{netip.PrefixFrom(netip.MustParseAddr(metadata), netip.MustParseAddr(metadata).BitLen())}
				mustSet(t, l.host, w)
				wantUnchanged(t, l.host, w)
				deny := func(what string, send func()) {
					t.Helper()
					l.dropped(v.iptables+"-save", "EDGEMESH-DENY", send)
				}
				deny("metadata", func() { say(a, "denied", metadata, serverPort) })
				say(a, "site, still", v.lanHost, serverPort)
				l.receive(lan, "site, still")
				say(node, "the node itself", metadata, serverPort)
				l.receive(server, "the node itself")

				// The whole site, and all that is private: pods stay.
				for _, p := range []string{site, "10.0.0.0/8", "fd00::/8"} {
					w.Access.PodDenyCIDRs = append(w.Access.PodDenyCIDRs, netip.MustParsePrefix(p))
				}
				mustSet(t, l.host, w)
				deny("site", func() { say(a, "denied", v.lanHost, serverPort) })
				if name == "IPv6" {
					deny("a denied IPv4 host through NAT64", func() { say(a, "denied", "64:ff9b::10.9.9.9", serverPort) })
					deny("likewise, a prefix for local use", func() { say(a, "denied", "64:ff9b:1:2:3:4:10.9.9.9", serverPort) })
					other := l.listen(l.lan, "64:ff9b::11.9.9.9", serverPort)
					say(a, "another one", "64:ff9b::11.9.9.9", serverPort)
					l.receive(other, "another one")
				}
				if name == "IPv4" {
					deny("the node's address in the site", func() { say(a, "denied", v.nodeLAN, serverPort) })
					deny("that address for a far pod", func() { far(servicePort+1, "denied") })
					l.nothing(uplink, "denied")
				}
				// Nor is it reached through a Service's translation, nor by a far pod through this node's.
				deny("site", func() { say(a, "denied", v.gateway, servicePort) })
				deny("site for a far pod", func() { far(servicePort, "denied") })
				say(a, "to a pod", v.podB, serverPort)
				l.receive(b, "to a pod")
				say(a, "to a far pod", v.far, serverPort)
				l.fromTUN("to a far pod")
				say(a, "to the node", v.gateway, serverPort)

				// Who is there may ask, through a hostPort.
				run(t, fmt.Sprintf("%s -t nat -I PREROUTING -d %s -p udp --dport %d -j DNAT --to-destination %s", v.iptables, v.nodeLAN, nodePort, at(v.podA, serverPort)))
				say(lan, "question", v.nodeLAN, nodePort)
				from := l.receive(a, "question")
				say(a, "answer", from.Addr().String(), int(from.Port()))
				l.receive(lan, "answer")
				l.nothing(server, "denied")
				l.nothing(lan, "denied")
			})
		}
	}
}

// TestLoopbackOfTheHost: pods, and members with packets from the LAN, do not reach 127.0.0.0/8 of the host, though
// route_localnet is on, as portmap and kube-proxy set it.
func TestLoopbackOfTheHost(t *testing.T) {
	t.Parallel()
	noLAN := dual()
	noLAN.LAN = mesh.LAN{}
	for _, c := range []struct {
		name, backend string
		w             mesh.Host
	}{{"guard", "nft", dual()}, {"chains", "nft", noLAN}, {"chains", "legacy", noLAN}, {"keep", "nft", kept()}} {
		t.Run(c.name+"/"+c.backend, func(t *testing.T) {
			t.Parallel()
			var l *lab
			bridge := BridgeName
			if c.w.Keep {
				l, bridge = newKeepLab(t, ""), "cni0"
			} else {
				l = newLabOf(t, fmt.Sprintf(hardened, c.backend), c.w)
			}
			run(t, "sysctl -qw net.ipv4.conf.all.route_localnet=1\nsysctl -qw net.ipv4.conf.all.rp_filter=2") // as while peers are probed
			loopback, gateway := l.listen(l.node, "127.0.0.1", closedPort), l.listen(l.node, gateway4, closedPort)
			link, err := net.InterfaceByName(bridge)
			if err != nil {
				t.Fatal(err)
			}
			pod := func(says, to string) {
				l.raw(l.podA, "eth0", link.HardwareAddr, udpPacket(netip.MustParseAddrPort(at(podA4, 7)), netip.MustParseAddrPort(at(to, closedPort)), says))
			}
			pod("control", gateway4)
			l.receive(gateway, "control")
			guarded := c.name == "guard"
			if guarded {
				l.droppedByGuard("pods", func() { pod("to loopback", "127.0.0.1") })
			} else {
				l.dropped("iptables-"+c.backend+"-save", "EDGEMESH-SOURCE", func() { pod("to loopback", "127.0.0.1") })
			}
			l.nothing(loopback, "a pod to the host's loopback")
			if guarded {
				l.membersLoopback(loopback)
			}
			// Without us the same packet arrives.
			run(t, "nft flush ruleset\niptables-"+c.backend+" -t raw -F")
			pod("without us", "127.0.0.1")
			l.receive(loopback, "without us")
		})
	}
}

// membersLoopback is TestLoopbackOfTheHost for a member of the LAN, natively and inside VXLAN.
func (l *lab) membersLoopback(loopback *net.UDPConn) {
	t := l.t
	var mac, node net.HardwareAddr
	l.in(l.lan, func() { mac = hardware(t, "lan0") })
	node = hardware(t, "up0")
	block := netip.MustParsePrefix("10.244.2.0/24")
	mustSetPaths(t, l.host, mesh.Paths{Senders: []mesh.Sender{
		{Block: block, Link: "up0", MAC: [6]byte(mac), Pods: true},
		{Block: block, Underlay: netip.MustParseAddr(lanHost4), Local: netip.MustParseAddr(nodeLAN4), Pods: true},
	}})
	pod := l.listen(l.podB, podB4, closedPort)
	packet := func(says, to string) []byte {
		return udpPacket(netip.MustParseAddrPort(at(far4, 7)), netip.MustParseAddrPort(at(to, closedPort)), says)
	}
	vxlan := l.listen(l.lan, lanHost4, 0)
	for chain, send := range map[string]func(says, to string){
		"lan4":     func(says, to string) { l.raw(l.lan, "lan0", node, packet(says, to)) },
		"unpacked": func(says, to string) { send(vxlan, inVXLAN(packet(says, to)), nodeLAN4, mesh.VXLANPort) },
	} {
		send("control "+chain, podB4)
		l.receive(pod, "control "+chain)
		l.droppedByGuard(chain, func() { send("to loopback", "127.0.0.1") })
	}
	l.nothing(loopback, "a member to the host's loopback")
	mustSetPaths(t, l.host, mesh.Paths{})
}

func hardware(t *testing.T, name string) net.HardwareAddr {
	t.Helper()
	link, err := net.InterfaceByName(name)
	if err != nil {
		t.Fatal(err)
	}
	return link.HardwareAddr
}

// raw sends an IP packet in a frame of our own making, past the sender's routing.
func (l *lab) raw(from nstest.Namespace, dev string, to net.HardwareAddr, packet []byte) {
	l.t.Helper()
	l.in(from, func() {
		link, err := net.InterfaceByName(dev)
		if err != nil {
			l.t.Fatal(err)
		}
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			l.t.Fatal(err)
		}
		defer unix.Close(fd)
		kind := uint16(unix.ETH_P_IP)
		if packet[0]>>4 == 6 {
			kind = unix.ETH_P_IPV6
		}
		addr := unix.SockaddrLinklayer{Protocol: kind<<8 | kind>>8, Ifindex: link.Index, Halen: 6}
		copy(addr.Addr[:], to)
		if err := unix.Sendto(fd, packet, 0, &addr); err != nil {
			l.t.Fatal(err)
		}
	})
}

// TestGuestsReachNoMeshAddress: with hostAccess all, too, a host of the LAN reaches no port of the node under its address in the pod
// network, unless hostPorts or forward name it; what else comes in there does.
func TestGuestsReachNoMeshAddress(t *testing.T) {
	t.Parallel()
	for name, v := range versions("nft") {
		t.Run(name, func(t *testing.T) {
			l := newLabOf(t, "ip link add docker0 type bridge\nip addr add 172.17.0.1/16 dev docker0\nip link set docker0 up", dual())
			const published = 5310
			run(t, fmt.Sprintf("%s -t nat -A PREROUTING -d %s -p udp --dport %d -j DNAT --to-destination %s", v.iptables, v.nodeLAN, published, at(v.gateway, closedPort)))
			var mac [6]byte
			l.in(l.lan, func() {
				run(t, "ip addr add "+v.far+" dev lan0 "+nodad(v))
				link, err := netlink.LinkByName("lan0")
				if err != nil {
					t.Fatal(err)
				}
				mac = [6]byte(link.Attrs().HardwareAddr)
			})
			block := "10.244.2.0/24"
			if strings.Contains(v.far, ":") {
				block = "fd00:2::/64"
			}
			mustSetPaths(t, l.host, mesh.Paths{Senders: []mesh.Sender{{Block: netip.MustParsePrefix(block), Link: "up0", MAC: mac, Pods: true}}})
			port, guest, peer := l.listen(l.node, v.gateway, closedPort), l.listen(l.lan, v.lanHost, 0), l.listen(l.lan, v.far, 0)
			must := func(err error) {
				if err != nil {
					t.Fatal(err)
				}
			}
			closed := func() {
				t.Helper()
				l.dropped(v.iptables+"-save", "EDGEMESH-HOST", func() { must(send(guest, "guest", v.gateway, closedPort)) })
				l.nothing(port, "a guest's")
			}
			closed()
			must(send(guest, "to a published port", v.nodeLAN, published))
			l.receive(port, "to a published port")
			must(send(peer, "a neighbour's pod", v.gateway, closedPort))
			l.receive(port, "a neighbour's pod")
			own := l.listen(l.node, v.gateway, 0)
			must(send(own, "question", v.lanHost, guest.LocalAddr().(*net.UDPAddr).Port))
			from := l.receive(guest, "question")
			must(send(guest, "answer", from.Addr().String(), int(from.Port())))
			l.receive(own, "answer")
			l.in(l.lan, func() { run(t, "ping -c1 -W10 -I "+v.lanHost+" "+v.gateway) })
			if v.gateway == gateway4 {
				c := l.namespace()
				l.wire("vethc", c, "eth0")
				run(t, "ip link set vethc master docker0")
				l.in(c, func() { run(t, "ip addr add 172.17.0.2/16 dev eth0\nip route add default via 172.17.0.1") })
				must(send(l.listen(c, "172.17.0.2", 0), "container", v.gateway, closedPort))
				l.receive(port, "container")
			}
			closed()

			w := forwarding(dual())
			w.Forward.Ports = []mesh.HostPort{{Port: closedPort, Proto: "udp"}}
			mustSet(t, l.host, w)
			wantUnchanged(t, l.host, w)
			another := l.listen(l.lan, v.lanHost, 0) // the other's are no answers, but known
			must(send(another, "forwarded", v.gateway, closedPort))
			l.receive(port, "forwarded")
		})
	}
}
