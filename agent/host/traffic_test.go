package host

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"edgemesh/internal/membership/mesh"
)

// hardened is a host that makes it as hard as it can: a dropping FORWARD policy
// with docker's kind of rules, strict reverse path filter, bridged frames seen by
// iptables. %s is the backend.
const hardened = `
iptables-%[1]s -P FORWARD DROP
iptables-%[1]s -N DOCKER-USER
iptables-%[1]s -A DOCKER-USER -j RETURN
iptables-%[1]s -A FORWARD -j DOCKER-USER
iptables-%[1]s -A FORWARD -m conntrack --ctstate INVALID -j DROP
iptables-%[1]s -A FORWARD -j REJECT
ip6tables-%[1]s -P FORWARD DROP
ip6tables-%[1]s -A FORWARD -j REJECT
sysctl -qw net.ipv4.conf.all.rp_filter=1
sysctl -qw net.ipv4.conf.default.rp_filter=1
sysctl -qw net.ipv4.conf.up0.rp_filter=1
sysctl -qw net.bridge.bridge-nf-call-iptables=1
sysctl -qw net.bridge.bridge-nf-call-ip6tables=1`

// version is one IP version's addresses and tools.
type version struct {
	podA, podB, far, gateway, lanHost, nodeLAN, iptables string
}

func versions(backend string) map[string]version {
	return map[string]version{
		"IPv4": {podA4, podB4, far4, gateway4, lanHost4, nodeLAN4, "iptables-" + backend},
		"IPv6": {podA6, podB6, far6, gateway6, lanHost6, nodeLAN6, "ip6tables-" + backend},
	}
}

func at(addr string, port int) string {
	return netip.AddrPortFrom(netip.MustParseAddr(addr), uint16(port)).String()
}

// TestTraffic shows on a hardened host, with each backend and IP version, with paths on
// the LAN and without, that pods reach what they should and that the LAN does not reach them.
func TestTraffic(t *testing.T) {
	t.Parallel()
	noLAN := dual()
	noLAN.LAN = mesh.LAN{}
	for _, backend := range []string{"nft", "legacy"} {
		for name, v := range versions(backend) {
			for guarded, plan := range map[string]mesh.Host{"guard": dual(), "chains": noLAN} {
				t.Run(backend+"/"+name+"/"+guarded, func(t *testing.T) {
					t.Parallel()
					l := newLabOf(t, fmt.Sprintf(hardened, backend), plan)
					if is := backendsOf(t, v.iptables); !slices.Equal(is, []string{backend}) {
						t.Fatalf("our chains are in %q, the host uses %s", is, backend)
					}
					wantUnchanged(t, l.host, plan)
					l.allowed(v)
					l.forbidden(v, plan.LAN.Native)
				})
			}
		}
	}
}

// allowed is everything that has to work.
func (l *lab) allowed(v version) {
	t := l.t
	a, b := l.listen(l.podA, v.podA, serverPort), l.listen(l.podB, v.podB, serverPort)
	lan, node := l.listen(l.lan, v.lanHost, serverPort), l.listen(l.node, v.nodeLAN, 0)
	source := func(what string, have netip.AddrPort, want string) {
		t.Helper()
		if have.Addr() != netip.MustParseAddr(want) {
			t.Errorf("%s: source is %s, want %s", what, have.Addr(), want)
		}
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}

	must(send(a, "to neighbour", v.podB, serverPort))
	source("pod to pod on the bridge", l.receive(b, "to neighbour"), v.podA)

	must(send(a, "to far pod", v.far, serverPort))
	src, dst := l.fromTUN("to far pod")
	source("pod to far pod", src, v.podA)
	l.toTUN(dst.String(), src.String(), "far answer")
	source("far pod's answer", l.receive(a, "far answer"), v.far)

	l.toTUN(at(v.far, 7), at(v.podB, serverPort), "from far pod")
	source("far pod to pod", l.receive(b, "from far pod"), v.far)

	must(send(a, "to LAN", v.lanHost, serverPort))
	masqueraded := l.receive(lan, "to LAN")
	source("pod to outside", masqueraded, v.nodeLAN)
	must(send(lan, "LAN answer", v.nodeLAN, int(masqueraded.Port())))
	source("outside's answer", l.receive(a, "LAN answer"), v.lanHost)

	// The node: own pods see the gateway; far pods see the gateway even when a
	// process is bound to another address of the host.
	free := l.listen(l.node, anyOf(v), 0)
	must(send(free, "node to pod", v.podA, serverPort))
	source("node to pod", l.receive(a, "node to pod"), v.gateway)
	must(send(free, "node to far pod", v.far, serverPort))
	src, _ = l.fromTUN("node to far pod")
	source("node to far pod", src, v.gateway)
	must(send(node, "bound node to far pod", v.far, serverPort))
	src, dst = l.fromTUN("bound node to far pod")
	source("node to far pod, bound to the uplink", src, v.gateway)
	l.toTUN(dst.String(), src.String(), "answer to bound node")
	source("far pod's answer to it", l.receive(node, "answer to bound node"), v.far)

	// A hostPort for an own pod keeps the client's address; one for a far pod
	// gets a source of the cluster.
	run(t, fmt.Sprintf("%[1]s -t nat -I PREROUTING -p udp --dport %[2]d -j DNAT --to-destination %[3]s\n%[1]s -t nat -I PREROUTING -p udp --dport %[4]d -j DNAT --to-destination %[5]s",
		v.iptables, nodePort, at(v.podA, serverPort), nodePort+1, at(v.far, serverPort)))
	must(send(lan, "to hostPort", v.nodeLAN, nodePort))
	source("LAN to hostPort", l.receive(a, "to hostPort"), v.lanHost)
	run(t, fmt.Sprintf("%s -t nat -I PREROUTING -p udp --dport %d -j DNAT --to-destination %s", v.iptables, mesh.VXLANPort, at(v.podA, serverPort)))
	must(send(lan, "to hostPort of VXLAN's", v.nodeLAN, mesh.VXLANPort))
	source("LAN to a hostPort that is VXLAN's, too", l.receive(a, "to hostPort of VXLAN's"), v.lanHost)
	must(send(lan, "to NodePort", v.nodeLAN, nodePort+1))
	src, dst = l.fromTUN("to NodePort")
	source("LAN to NodePort of a far pod", src, v.gateway)
	l.toTUN(dst.String(), src.String(), "NodePort answer")
	source("NodePort's answer", l.receive(lan, "NodePort answer"), v.nodeLAN)
}

func anyOf(v version) string {
	if strings.Contains(v.podA, ":") {
		return "::"
	}
	return "0.0.0.0"
}

// forbidden is everything that must not work. Every packet is seen to be
// dropped by the chain that is meant for it.
func (l *lab) forbidden(v version, guarded bool) {
	t := l.t
	a := l.listen(l.podA, v.podA, 5001)
	vx := l.listen(l.podA, v.podA, mesh.VXLANPort)
	lan := l.listen(l.lan, v.lanHost, 5001)
	save := v.iptables + "-save"

	forged := func(chain, ofGuard string, send func()) {
		t.Helper()
		if guarded {
			l.droppedByGuard(ofGuard, send)
			return
		}
		l.dropped(save, chain, send)
	}
	fromLAN := "lan4"
	if strings.Contains(v.podA, ":") {
		fromLAN = "lan6"
	}
	l.dropped(save, "EDGEMESH-FORWARD", func() { send(lan, "LAN to pod", v.podA, 5001) })
	l.dropped(save, "EDGEMESH-FORWARD", func() { send(lan, "LAN to far pod", v.far, 5001) })
	l.nothing(a, "a LAN host routes to a pod")

	// The LAN host takes a far pod's address, and an own pod's.
	l.in(l.lan, func() {
		run(t, "ip addr add "+v.far+" dev lan0 "+nodad(v)+"\nip addr add "+v.podB+" dev lan0 "+nodad(v))
	})
	for _, stolen := range []string{v.far, v.podB} {
		thief := l.listen(l.lan, stolen, 5002)
		forged("EDGEMESH-RANGE", fromLAN, func() {
			send(thief, "spoofed to pod", v.podA, 5001)
			send(thief, "spoofed to node", v.nodeLAN, 5001)
		})
		if guarded { // nor to VXLAN's port, which has a chain of its own
			l.droppedByGuard(fromLAN, func() { send(thief, "spoofed to VXLAN's port", v.podA, mesh.VXLANPort) })
		}
	}
	l.nothing(vx, "a LAN host with a pod's address, to VXLAN's port")
	l.nothing(a, "a LAN host with a pod's address")
	l.in(l.lan, func() { run(t, "ip addr del "+v.far+" dev lan0\nip addr del "+v.podB+" dev lan0") })

	// A pod takes an address outside the node's block: of the cluster, of the LAN.
	for stolen, by := range map[string]string{v.far: "EDGEMESH-RANGE", v.lanHost: "EDGEMESH-SOURCE"} {
		l.in(l.podB, func() { run(t, "ip addr add "+stolen+" dev eth0 "+nodad(v)) })
		thief := l.listen(l.podB, stolen, 5002)
		forged(by, "pods", func() { send(thief, "spoofed by pod", v.gateway, 5001) })
		l.in(l.podB, func() { run(t, "ip addr del "+stolen+" dev eth0") })
	}

	if guarded { // and the node's own, which the kernel does not look for then
		l.in(l.podB, func() { run(t, "ip addr add "+v.gateway+" dev eth0 "+nodad(v)) })
		thief := l.listen(l.podB, v.gateway, 5002)
		l.droppedByGuard("pods", func() { send(thief, "spoofed by pod", v.nodeLAN, 5001) })
		l.in(l.podB, func() { run(t, "ip addr del "+v.gateway+" dev eth0") })
	}

	// The tunnel delivers something for nobody here: it must not pass on.
	l.dropped(save, "EDGEMESH-FORWARD", func() { l.toTUN(at(v.far, 7), at(v.lanHost, 5001), "through us") })
	l.nothing(lan, "a far pod uses the node as a router")

	// The agent's own sockets never enter the tunnel, nor leave by the uplink.
	marked := l.listen(l.node, anyOf(v), 0)
	setMark(t, marked)
	l.dropped(save, "EDGEMESH-OUTPUT", func() { send(marked, "tunnel in tunnel", v.far, 5001) })

	if saw := l.lanSaw(); saw != "" {
		t.Errorf("packets for the cluster's range left by the uplink:\n%s", saw)
	}
}

func nodad(v version) string {
	if strings.Contains(v.podA, ":") {
		return "nodad"
	}
	return ""
}

// TestNothingLeaksWithoutTUN: the agent is gone and the TUN with it.
func TestNothingLeaksWithoutTUN(t *testing.T) {
	t.Parallel()
	l := newLab(t, "")
	l.tun.Close() // not persistent here: the kernel removes it
	if out := run(t, "ip -br link"); strings.Contains(out, TUNName) {
		t.Fatalf("the TUN is still there:\n%s", out)
	}
	for _, v := range versions("nft") {
		a, node := l.listen(l.podA, v.podA, 5001), l.listen(l.node, anyOf(v), 0)
		lan := l.listen(l.lan, v.lanHost, 5001)
		if err := send(node, "leak", v.far, 5001); err == nil {
			t.Errorf("the node could send to %s", v.far)
		}
		if err := send(a, "leak", v.far, 5001); err != nil {
			t.Fatal(err)
		}
		// What the pod sends next on the same way arrives: the other is lost.
		if err := send(a, "after it", v.lanHost, 5001); err != nil {
			t.Fatal(err)
		}
		l.receive(lan, "after it")
	}
	if saw := l.lanSaw(); saw != "" {
		t.Errorf("packets for the cluster's range left by the uplink:\n%s", saw)
	}
}

func TestMSSIsClamped(t *testing.T) {
	t.Parallel()
	l := newLab(t, "ip link set up0 mtu 1400")
	for name, v := range versions("nft") {
		headers := 40
		if name == "IPv6" {
			headers = 60
		}
		// 12 bytes of timestamps are in every segment.
		if mss := l.mss(l.podA, l.lan, v.lanHost); mss == 0 || mss > 1400-headers {
			t.Errorf("%s: the LAN may send segments of %d bytes to a pod behind an MTU of 1400", name, mss)
		}
		if mss := l.mss(l.podA, l.podB, v.podB); mss != 1500-headers-12 {
			t.Errorf("%s: segments on the bridge have %d bytes, want %d", name, mss, 1500-headers-12)
		}
	}
}
