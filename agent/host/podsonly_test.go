package host

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	"edgemesh/internal/membership/mesh"
	"edgemesh/tunnel/inet"
)

// onLAN is the lab with a member on the LAN, whose block and address are v.far's, by a native path and VXLAN.
func (l *lab) onLAN(v version) (paths mesh.Paths, farNode string) {
	block, farNode := netip.MustParsePrefix("10.244.2.0/24"), farNode4
	if strings.Contains(v.podA, ":") {
		block, farNode = netip.MustParsePrefix("fd00:2::/64"), farNode6
	}
	var mac [6]byte
	l.in(l.lan, func() {
		mac = [6]byte(hardware(l.t, "lan0"))
		run(l.t, "ip addr add "+v.far+" dev lan0 "+nodad(v)+"\nip addr add "+farNode+" dev lan0 "+nodad(v))
	})
	return mesh.Paths{
		Senders: []mesh.Sender{
			{Block: block, Link: "up0", MAC: mac, Pods: true},
			{Block: block, Underlay: netip.MustParseAddr(lanHost4), Local: netip.MustParseAddr(nodeLAN4), MAC: mac, Pods: true},
		},
		Routes: []mesh.PathRoute{{Block: block, Hop: mesh.Hop{Kind: mesh.Native, Link: "up0", Via: netip.MustParseAddr(v.lanHost)}, MTU: 1500}},
	}, farNode
}

// TestNodesAreNoSendersOnTheLAN: with a member's MAC, and inside VXLAN with its outer address, too, a LAN host sends as a pod of
// that member, but not as its node where hostAccess trusts nodes more than pods. Probes pass.
func TestNodesAreNoSendersOnTheLAN(t *testing.T) {
	t.Parallel()
	for _, mode := range []mesh.HostAccess{mesh.HostAll, mesh.HostNodes, mesh.HostNone} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			l := newLabOf(t, "", limited(dual(), mode, true))
			for _, v := range versions("nft") {
				l.forgedNodes(v, mode != mesh.HostAll)
			}
		})
	}
}

func (l *lab) forgedNodes(v version, closed bool) {
	t := l.t
	paths, farNode := l.onLAN(v)
	mustSetPaths(t, l.host, paths)
	version := "4"
	if strings.Contains(v.podA, ":") {
		version = "6"
	}
	probePort := int(dual().LAN.ProbePort)
	pod, node, probes := l.listen(l.podA, v.podA, serverPort), l.listen(l.node, v.gateway, closedPort), l.listen(l.node, v.gateway, probePort)
	vtep := l.listen(l.lan, lanHost4, 0)
	for chain, send := range map[string]func([]byte){
		"lan" + version: func(p []byte) { l.raw(l.lan, "lan0", hardware(t, "up0"), p) },
		"vxlan": func(p []byte) {
			if err := send(vtep, inVXLAN(p), nodeLAN4, mesh.VXLANPort); err != nil {
				t.Fatal(err)
			}
		},
	} {
		packet := func(from, to string, port int, says string) []byte {
			return udpPacket(netip.MustParseAddrPort(at(from, 7)), netip.MustParseAddrPort(at(to, port)), says)
		}
		// Controls: the same tool gets in where it may.
		send(packet(v.far, v.podA, serverPort, chain+" as a pod"))
		l.receive(pod, chain+" as a pod")
		send(packet(farNode, v.gateway, probePort, chain+" probe"))
		l.receive(probes, chain+" probe")
		forged := map[*net.UDPConn][]byte{
			node: packet(farNode, v.gateway, closedPort, chain+" to the node"), pod: packet(farNode, v.podA, serverPort, chain+" to a pod"),
		}
		for to, p := range forged {
			if closed {
				l.droppedByGuard(chain, func() { send(p) })
				l.nothing(to, chain)
				continue
			}
			send(p)
			l.receive(to, string(p[len(p)-len(chain)-map[bool]int{true: len(" to the node"), false: len(" to a pod")}[to == node]:]))
		}
		if closed && version == "4" { // an option stands where a header without options has the port of probes
			l.droppedByGuard(chain, func() { send(withOption(packet(farNode, v.gateway, closedPort, "option"), probePort)) })
			l.nothing(node, chain+" with an option")
		}
	}
}

// withOption puts an IPv4 option of four bytes into a packet, the last two of which are a port.
func withOption(p []byte, port int) []byte {
	out := append(append([]byte(nil), p[:20]...), 0x88, 4, byte(port>>8), byte(port)) // stream ID (RFC 791)
	out = append(out, p[20:]...)
	out[0], out[10], out[11] = 0x46, 0, 0
	binary.BigEndian.PutUint16(out[2:], uint16(len(out)))
	binary.BigEndian.PutUint16(out[10:], inet.Checksum(0, out[:24]))
	return out
}

// TestNodesSendThroughTheTunnel: where hostAccess closes nodes to pods, what the node itself sends to a member on the LAN takes the
// tunnel, also what kube-proxy gives the node's address; what pods send takes the native path, in a pod's name whatever masquerades it.
func TestNodesSendThroughTheTunnel(t *testing.T) {
	t.Parallel()
	for _, backend := range []string{"nft", "legacy"} {
		for name, v := range versions(backend) {
			t.Run(backend+"/"+name, func(t *testing.T) {
				t.Parallel()
				newLabOf(t, fmt.Sprintf(hardened, backend), limited(dual(), mesh.HostAll, true)).nodesSend(v)
			})
		}
	}
}

func (l *lab) nodesSend(v version) {
	t := l.t
	paths, _ := l.onLAN(v)
	mustSetPaths(t, l.host, paths)
	service := "10.96.0.10"
	if strings.Contains(v.podA, ":") {
		service = "fd96::10"
		run(t, "ip -6 route add "+service+" via "+v.lanHost)
	}
	// As kube-proxy does for a NodePort, and where it masquerades all.
	for _, rule := range []string{
		"-I PREROUTING -d " + v.nodeLAN + " -p udp --dport " + fmt.Sprint(nodePort), "-I PREROUTING -d " + service + " -p udp --dport " + fmt.Sprint(servicePort),
		"-I OUTPUT -d " + service + " -p udp --dport " + fmt.Sprint(servicePort),
	} {
		run(t, fmt.Sprintf("%[1]s -t nat %[2]s -j DNAT --to-destination %[3]s\n%[1]s -t nat %[2]s -j MARK --set-xmark 0x4000/0x4000", v.iptables, rule, at(v.far, serverPort)))
	}
	run(t, v.iptables+" -t nat -A POSTROUTING -m mark --mark 0x4000/0x4000 -j MASQUERADE")
	there := l.listen(l.lan, v.far, serverPort)
	pod, node, lan := l.listen(l.podA, v.podA, 0), l.listen(l.node, v.gateway, 0), l.listen(l.lan, v.lanHost, 0)
	say := func(c *net.UDPConn, says, to string, port int) {
		t.Helper()
		if err := send(c, says, to, port); err != nil {
			t.Fatal(err)
		}
	}
	all := []struct {
		what string
		from *net.UDPConn
		to   string
		port int
	}{
		{"node", node, v.far, serverPort}, {"node to a Service", l.listen(l.node, anyOf(v), 0), service, servicePort}, {"LAN host to a NodePort", lan, v.nodeLAN, nodePort},
	}
	run(t, "ping -w 10 -c 1 "+v.lanHost) // a neighbour that is not known yet may cost a packet
	say(node, "open", v.far, serverPort) // the same packet where nothing is closed
	l.receive(there, "open")
	say(pod, "open to a Service", service, servicePort) // its connection continues, in the pod's name
	if from := l.receive(there, "open to a Service"); from.Addr() != netip.MustParseAddr(v.gateway) {
		t.Errorf("masqueraded: from %s", from)
	}
	mustSet(t, l.host, limited(dual(), mesh.HostNodes, true))
	wantUnchanged(t, l.host, limited(dual(), mesh.HostNodes, true))
	for _, what := range []string{"first", "second of the connection"} {
		for _, x := range all {
			says := x.what + ", " + what
			say(x.from, says, x.to, x.port)
			if src, dst := l.fromTUN(says); src.Addr() != netip.MustParseAddr(v.gateway) || dst.Addr() != netip.MustParseAddr(v.far) {
				t.Errorf("%s: from %s to %s in the tunnel", says, src, dst)
			}
		}
		for to, port := range map[string]int{v.far: serverPort, service: servicePort} {
			says := "pod to " + to + ", " + what
			say(pod, says, to, port)
			from := l.receive(there, says)
			if from.Addr() != netip.MustParseAddr(v.podA) {
				t.Errorf("%s: from %s", says, from)
			}
			say(there, "answer: "+says, from.Addr().String(), int(from.Port()))
			if at := l.receive(pod, "answer: "+says); at.Addr() != netip.MustParseAddr(to) {
				t.Errorf("%s: the answer is from %s", says, at)
			}
		}
	}
	// Nothing is left of it where nodes are open again.
	mustSet(t, l.host, limited(dual(), mesh.HostAll, true))
	if out := run(t, "ip rule\nip -6 rule"); strings.Contains(out, "lookup 5211") {
		t.Errorf("rules:\n%s", out)
	}
	say(node, "open again", v.far, serverPort)
	l.receive(there, "open again")
}
