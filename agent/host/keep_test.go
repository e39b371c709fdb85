package host

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"edgemesh/agent/findings"
	"edgemesh/agent/host/rtnetlink"
	"edgemesh/internal/membership/mesh"
	"edgemesh/test/fair"
)

// kept is dual, with another plugin's pods.
func kept() mesh.Host {
	w := dual()
	w.Keep = true
	return w
}

// newKeepLab is newLab on a node whose pods are on cni0, as the reference bridge
// plugin with host-local makes them, masquerading included, and whose plugin has
// a route to another node of its own, which is the LAN host.
func newKeepLab(t *testing.T, prepare string) *lab {
	t.Helper()
	l := newBareLab(t, prepare)
	mustSet(t, l.host, kept()) // before the plugin has made its bridge
	run(t, `
ip link add cni0 type bridge
ip link set cni0 up
ip addr add `+gateway4+`/24 dev cni0
ip -6 addr add `+gateway6+`/64 dev cni0 nodad
iptables-nft -t nat -N CNI-abc
iptables-nft -t nat -A CNI-abc -d 10.244.1.0/24 -j ACCEPT
iptables-nft -t nat -A CNI-abc ! -d 224.0.0.0/4 -j MASQUERADE
iptables-nft -t nat -A POSTROUTING -s 10.244.1.0/24 -j CNI-abc
ip6tables-nft -t nat -A POSTROUTING -s fd00:1::/64 ! -d fd00:1::/64 -j MASQUERADE
iptables-nft -I FORWARD -s 10.244.1.0/24 -j ACCEPT
iptables-nft -I FORWARD -d 10.244.1.0/24 -j ACCEPT
ip6tables-nft -I FORWARD -s fd00:1::/64 -j ACCEPT
ip6tables-nft -I FORWARD -d fd00:1::/64 -j ACCEPT
ip route add 10.244.9.0/24 via `+lanHost4+`
ip -6 route add fd00:9::/64 via `+lanHost6)
	l.podOn("cni0", l.podA, "vethA", podA4, podA6)
	l.podOn("cni0", l.podB, "vethB", podB4, podB6)
	mustSet(t, l.host, kept()) // the node has addresses among its pods now
	return l
}

// TestKeep shows that pods of another plugin reach far pods, and are reached,
// with their own addresses; that the rest stays with that plugin; and that
// nobody outside gets further than on a node of ours.
func TestKeep(t *testing.T) {
	t.Parallel()
	for name, v := range versions("nft") {
		t.Run(name, func(t *testing.T) {
			l := newKeepLab(t, fmt.Sprintf(hardened, "nft"))
			wantUnchanged(t, l.host, kept())
			l.keptAllowed(v)
			l.keptForbidden(v)
		})
	}
}

func (l *lab) keptAllowed(v version) {
	t := l.t
	a, b := l.listen(l.podA, v.podA, serverPort), l.listen(l.podB, v.podB, serverPort)
	lan, node := l.listen(l.lan, v.lanHost, serverPort), l.listen(l.node, v.nodeLAN, 0)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	source := func(what string, have netip.AddrPort, want string) {
		t.Helper()
		if have.Addr() != netip.MustParseAddr(want) {
			t.Errorf("%s: source is %s, want %s", what, have.Addr(), want)
		}
	}
	must(send(a, "to neighbour", v.podB, serverPort))
	source("pod to pod on cni0", l.receive(b, "to neighbour"), v.podA)
	must(send(a, "to far pod", v.far, serverPort))
	src, dst := l.fromTUN("to far pod")
	source("pod to far pod", src, v.podA)
	l.toTUN(dst.String(), src.String(), "far answer")
	source("far pod's answer", l.receive(a, "far answer"), v.far)
	l.toTUN(at(v.far, 7), at(v.podB, serverPort), "from far pod")
	source("far pod to pod", l.receive(b, "from far pod"), v.far)
	must(send(a, "to LAN", v.lanHost, serverPort))
	source("pod to outside, masqueraded by its plugin", l.receive(lan, "to LAN"), v.nodeLAN)

	must(send(node, "bound node to far pod", v.far, serverPort))
	src, dst = l.fromTUN("bound node to far pod")
	source("node to far pod, bound to the uplink", src, v.gateway)
	l.toTUN(dst.String(), src.String(), "answer to bound node")
	source("far pod's answer to it", l.receive(node, "answer to bound node"), v.far)

	// A pod on another node of the plugin: by the plugin's own route, in both directions.
	other := map[bool]string{true: "fd00:9::5", false: "10.244.9.5"}[nodad(v) != ""]
	l.in(l.lan, func() {
		run(t, "ip addr add "+other+" dev lan0 "+nodad(v))
		// The kernel takes packets for it a little later: a work queue's affair.
		fair.Eventually(t, deadline, "the kernel takes packets for "+other, fair.True(func() bool {
			return strings.Contains(run(t, "ip route get "+other), "local")
		}))
	})
	otherPod := l.listen(l.lan, other, serverPort)
	must(send(otherPod, "from the plugin's other pod", v.podA, serverPort))
	source("the plugin's other pod", l.receive(a, "from the plugin's other pod"), other)
	must(send(a, "to the plugin's other pod", other, serverPort))
	l.receive(otherPod, "to the plugin's other pod")
}

func (l *lab) keptForbidden(v version) {
	t := l.t
	a := l.listen(l.podA, v.podA, serverPort+1)
	// The LAN takes the address of one of the plugin's pods, and of a far one.
	for _, spoofed := range []string{v.podB, v.far} {
		l.in(l.lan, func() { run(t, "ip addr add "+spoofed+" dev lan0 "+nodad(v)) })
		c := l.listen(l.lan, spoofed, 0)
		l.dropped(v.iptables+"-save", "EDGEMESH-SOURCE", func() {
			if err := send(c, "spoofed", v.podA, serverPort+1); err != nil {
				t.Fatal(err)
			}
		})
		l.nothing(a, "spoofed source "+spoofed)
	}
	// A host of the LAN routes through us into the tunnel.
	lan := l.listen(l.lan, v.lanHost, 0)
	l.in(l.lan, func() { run(t, "ip addr del "+v.far+" dev lan0\nip addr del "+v.podB+" dev lan0") })
	l.dropped(v.iptables+"-save", "EDGEMESH-FORWARD", func() {
		if err := send(lan, "through", v.far, serverPort); err != nil {
			t.Fatal(err)
		}
	})
	// A far pod uses us as a router.
	l.dropped(v.iptables+"-save", "EDGEMESH-FORWARD", func() {
		l.toTUN(at(v.far, 7), at(v.lanHost, serverPort), "out")
	})
	// An own address that nobody has a route to goes nowhere.
	run(t, "ip link del cni0")
	mustSet(t, l.host, kept())
	before := l.lanSaw()
	c := l.listen(l.node, anyOf(v), 0)
	if err := send(c, "to nobody", v.podA, serverPort); err == nil {
		t.Error("a pod without a route was sent something")
	}
	if after := l.lanSaw(); after != before {
		t.Errorf("packets for the cluster's ranges reached the LAN:\n%s\nbefore:\n%s", after, before)
	}
}

// TestKeepFormerNodeIP: where another plugin has the pods, the TUN keeps what kubelet reports of a former block, unless that
// plugin has it, or may give it to a pod.
func TestKeepFormerNodeIP(t *testing.T) {
	t.Parallel()
	enter(t)
	h := newHost(t)
	makeTUN(t)
	w := kept()
	for _, a := range []string{"10.244.7.1", "10.244.8.1", "10.244.1.77", "fd00:7::1", "192.168.1.10"} {
		w.Former = append(w.Former, netip.MustParseAddr(a))
	}
	run(t, "ip link add cni0 type bridge\nip addr add 10.244.8.1/24 dev cni0")
	has := func(want ...string) {
		t.Helper()
		out := run(t, "ip -o addr show dev edgemesh-tun scope global")
		if strings.Count(out, "inet") != len(want) {
			t.Errorf("the TUN has\n%s, want %v", out, want)
		}
		wantContains(t, "TUN", out, want...)
	}
	mustSet(t, h, w)
	has(" 10.244.7.1/32 ", " fd00:7::1/128 ")
	wantUnchanged(t, h, w)
	w.Former = nil
	mustSet(t, h, w)
	has()
}

// TestKeepNeedsNoBridge goes from our pods to another plugin's and back.
func TestKeepNeedsNoBridge(t *testing.T) {
	t.Parallel()
	enter(t)
	h := newHost(t)
	openTUN(t)
	mustSet(t, h, dual())
	run(t, "ip link add pod type veth peer name podp\nip link set pod master edgemesh-br")
	if _, err := h.Set(t.Context(), kept()); !errors.Is(err, rtnetlink.ErrPodsLeft) {
		t.Errorf("with a pod on the bridge: %v", err)
	}
	if out := run(t, "ip -br link"); !strings.Contains(out, BridgeName) {
		t.Error("the bridge of a running pod was deleted")
	}
	run(t, "ip link del pod")
	mustSet(t, h, kept())
	if out := run(t, "ip -br link"); strings.Contains(out, BridgeName) {
		t.Errorf("the bridge is left:\n%s", out)
	}
	wantUnchanged(t, h, kept())
	for _, f := range h.Check(t.Context(), kept()) {
		if f.Severity != findings.OK {
			t.Errorf("finding %+v", f)
		}
	}
	mustSet(t, h, dual())
	wantUnchanged(t, h, dual())
	if out := run(t, "ip rule"); strings.Contains(out, "suppress_prefixlength") {
		t.Errorf("rules of keep mode are left:\n%s", out)
	}
	mustSet(t, h, kept())
	if err := h.Cleanup(t.Context()); err != nil {
		t.Fatal(err)
	}
	if out := run(t, "ip rule\nip -6 rule"); strings.Contains(out, "52") {
		t.Errorf("rules are left:\n%s", out)
	}
}
