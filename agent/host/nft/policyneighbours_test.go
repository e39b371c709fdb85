package nft

import (
	"encoding/binary"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"edgemesh/agent/host/plan"
	policy "edgemesh/agent/policy/compile"
	"edgemesh/internal/cni/conf"
	"edgemesh/internal/nstest"
)

// bridged are two pods on one bridge, as frames: what one sends, and what arrives at the other.
type bridged struct {
	t        *testing.T
	out, in  int // sockets
	from, to net.HardwareAddr
	sent     int
}

// frame is what a pod sends; what it says stands at its end.
func (b *bridged) frame(to net.HardwareAddr, kind uint16, packet []byte, says string) {
	b.t.Helper()
	f := slices.Concat(to, b.from, binary.BigEndian.AppendUint16(nil, kind), packet, []byte(says))
	if _, err := unix.Write(b.out, f); err != nil {
		b.t.Fatalf("%s: %v", says, err)
	}
	b.sent++
}

// arrived returns what was said in frames that arrived until one says last.
func (b *bridged) arrived(last string) (all []string) {
	b.t.Helper()
	buf := make([]byte, 2048)
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); {
		n, err := unix.Read(b.in, buf)
		if err != nil {
			continue
		}
		_, says, found := strings.Cut(string(buf[:n]), "says:")
		if found && says == last {
			return all
		}
		if found {
			all = append(all, says)
		}
	}
	b.t.Fatalf("%q did not arrive after %q", last, all)
	return nil
}

func newBridged(t *testing.T, bridge string, addrs [2][]string) *bridged {
	t.Helper()
	node := nstest.Enter(t)
	nstest.Run(t, "ip link add "+bridge+" type bridge nf_call_iptables 1 nf_call_ip6tables 1 mcast_snooping 0\nip link set "+bridge+" up")
	b := &bridged{t: t}
	for i, name := range []string{"a", "b"} {
		ns, err := nstest.New()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { ns.Close() })
		if err := node.Set(); err != nil {
			t.Fatal(err)
		}
		attrs := netlink.NewLinkAttrs()
		attrs.Name = name
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerNamespace: netlink.NsFd(int(ns))}); err != nil {
			t.Fatal(err)
		}
		nstest.Run(t, "ip link set dev "+name+" master "+bridge+" up")
		if err := ns.Set(); err != nil {
			t.Fatal(err)
		}
		for _, a := range addrs[i] {
			nstest.Run(t, "ip addr add "+a+" dev eth0 nodad")
		}
		nstest.Run(t, "ip link set eth0 up")
		l, err := net.InterfaceByName("eth0")
		if err != nil {
			t.Fatal(err)
		}
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, int(unix.ETH_P_ALL<<8))
		if err == nil {
			err = unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: unix.ETH_P_ALL << 8, Ifindex: l.Index})
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(fd) })
		_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 100000})
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20)
		if i == 0 {
			b.out, b.from = fd, l.HardwareAddr
		} else {
			b.in, b.to = fd, l.HardwareAddr
		}
		if err := node.Set(); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

const body = 40 // bytes of payload before what a frame says

// v6 sends an IPv6 packet.
func (b *bridged) v6(next int, hopLimit byte, src, dst netip.Addr, payload []byte, says string) {
	b.t.Helper()
	h := make([]byte, 40)
	h[0], h[6], h[7] = 0x60, byte(next), hopLimit
	payload = append(payload, make([]byte, body-len(payload))...)
	binary.BigEndian.PutUint16(h[4:], uint16(len(payload)+len(says)))
	copy(h[8:], src.AsSlice())
	copy(h[24:], dst.AsSlice())
	b.frame(b.to, unix.ETH_P_IPV6, append(h, payload...), says)
}

// enforceClosed closes two pods of shop to each other and everybody else.
func enforceClosed(t *testing.T) {
	t.Helper()
	var pods []policy.Pod
	at := map[netip.Addr]string{}
	for _, x := range []struct{ name, v4, v6 string }{{"a", "10.1.1.2", "fd00::2"}, {"b", "10.1.1.3", "fd00::3"}} {
		p := policy.Pod{Namespace: "shop", Name: x.name, Addrs: []netip.Addr{netip.MustParseAddr(x.v4), netip.MustParseAddr(x.v6)}}
		pods = append(pods, p)
		for _, a := range append(p.Addrs, linkLocal(x.v4)) {
			at[a] = "shop/" + x.name
		}
	}
	rules := policy.Compile(parsed(t, []string{`{podSelector: {}, policyTypes: [Ingress, Egress]}`}), pods, func(g policy.Group) []policy.Member { return nil })
	if err := NewPolicies(slog.New(slog.DiscardHandler)).Enforce(enforcing(rules, at)); err != nil {
		t.Fatal(err)
	}
}

// TestOtherBridges: what the machines on another program's bridge need of their routers, and before they have an address, passes.
func TestOtherBridges(t *testing.T) {
	b := newBridged(t, "br0", [2][]string{{"192.0.2.2/24"}, {"192.0.2.3/24"}})
	enforceClosed(t)
	router, all := netip.MustParseAddr("fe80::1"), netip.MustParseAddr("ff02::1")
	b.v6(unix.IPPROTO_ICMPV6, 255, router, all, []byte{134, 0, 0, 0, 0, 0, 0, 0}, "says:advertisement")
	b.v6(unix.IPPROTO_ICMPV6, 255, router, all, []byte{133, 0, 0, 0, 0, 0, 0, 0}, "says:solicitation")
	b.v6(unix.IPPROTO_UDP, 1, netip.IPv6Unspecified(), all, nil, "says:without an address")
	b.v6(unix.IPPROTO_ICMPV6, 255, router, all, []byte{135, 0, 0, 0, 0, 0, 0, 0}, "says:end")
	if got, want := b.arrived("end"), []string{"advertisement", "solicitation", "without an address"}; !slices.Equal(got, want) {
		t.Errorf("on another bridge %q arrived, want %q", got, want)
	}
}

// linkLocal is the address on the link of a pod that has addr.
func linkLocal(addr string) netip.Addr { return conf.LinkLocal(conf.PodMAC(netip.MustParseAddr(addr))) }

// TestClosedPodsOfOneBridge: between two pods that may reach nobody nothing passes of any protocol, type or header but what neighbours and
// the listeners of groups need.
func TestClosedPodsOfOneBridge(t *testing.T) {
	b := newBridged(t, plan.BridgeName, [2][]string{{"10.1.1.2/24", "fd00::2/64"}, {"10.1.1.3/24", "fd00::3/64"}})
	enforceClosed(t)
	a4, b4 := netip.MustParseAddr("10.1.1.2").AsSlice(), netip.MustParseAddr("10.1.1.3").AsSlice()
	a6, b6, ll, group := netip.MustParseAddr("fd00::2"), netip.MustParseAddr("fd00::3"), linkLocal("10.1.1.2"), netip.MustParseAddr("ff02::16")
	v4 := func(protocol int, says string) {
		h := make([]byte, 20)
		h[0], h[8], h[9] = 0x45, 64, byte(protocol)
		binary.BigEndian.PutUint16(h[2:], uint16(20+body+len(says)))
		copy(h[12:], a4)
		copy(h[16:], b4)
		sum := 0
		for i := 0; i < 20; i += 2 {
			sum += int(binary.BigEndian.Uint16(h[i:]))
		}
		binary.BigEndian.PutUint16(h[10:], ^uint16(sum+sum>>16))
		b.frame(b.to, unix.ETH_P_IP, append(h, make([]byte, body)...), says)
	}
	var want []string
	last := 0
	step := func(what string) {
		t.Helper()
		last++
		end := fmt.Sprintf("end %d", last)
		b.v6(unix.IPPROTO_ICMPV6, 255, a6, b6, append([]byte{135, 0, 0, 0, 0, 0, 0, 0}, b6.AsSlice()...), "says:"+end)
		if got := b.arrived(end); !slices.Equal(got, want) {
			t.Errorf("%s: %d frames arrived, want %d: %q, want %q", what, len(got), len(want), got, want)
		}
		want = nil
	}
	for p := range 256 {
		v4(p, fmt.Sprintf("says:IPv4 %d", p))
	}
	step("IPv4 of every protocol")
	for p := range 256 {
		b.v6(p, 64, a6, b6, []byte{unix.IPPROTO_NONE, 0, 1, 4, 0, 0, 0, 0}, fmt.Sprintf("says:IPv6 %d", p))
	}
	step("IPv6 of every next header")
	for _, c := range []struct {
		what     string
		hopLimit byte
		code     byte
		src, dst netip.Addr
		pass     []int
	}{
		{"as any packet", 64, 0, a6, b6, nil},
		{"as a neighbour", 255, 0, a6, b6, []int{135, 136}},
		{"as a neighbour, link-local", 255, 0, ll, b6, []int{135, 136}},
		{"as a neighbour with a code", 255, 1, a6, b6, nil},
		{"routed once", 254, 0, a6, b6, nil},
		{"as a listener", 1, 0, ll, group, []int{130, 131, 132, 143}},
		{"as a listener without an address", 1, 0, netip.IPv6Unspecified(), group, []int{130, 131, 132, 143}},
		{"as a listener, to a pod", 1, 0, ll, b6, nil},
		{"as a listener with a global address", 1, 0, a6, group, nil},
	} {
		for kind := range 256 {
			says := fmt.Sprintf("ICMPv6 %d", kind)
			b.v6(unix.IPPROTO_ICMPV6, c.hopLimit, c.src, c.dst, append([]byte{byte(kind), c.code, 0, 0, 0, 0, 0, 0}, b6.AsSlice()...), "says:"+says)
			if slices.Contains(c.pass, kind) {
				want = append(want, says)
			}
		}
		step("ICMPv6 of every type " + c.what)
	}
}
