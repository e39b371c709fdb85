package antispoof

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"

	"edgemesh/internal/cni/conf"
	"edgemesh/internal/cni/nstest"
)

// Numbers of filter.c.
const (
	pass, drop = -1, 2 // TC_ACT_UNSPEC, TC_ACT_SHOT

	ethARP  = 0x0806
	ethIPv4 = 0x0800
	ethIPv6 = 0x86dd

	protoHopByHop = 0
	protoRouting  = 43
	protoFragment = 44
	protoAH       = 51
	protoICMPv6   = 58
	protoDestOpts = 60

	icmpRouterSol    = 133
	icmpRouterAdv    = 134
	icmpNeighbourSol = 135
	icmpNeighbourAdv = 136
	icmpRedirect     = 137
	icmpMLDv2Report  = 143

	maxExtHeaders = 6
)

var (
	mac   = net.HardwareAddr{0x0a, 0x58, 10, 1, 1, 5}
	other = net.HardwareAddr{0x0a, 0x58, 10, 1, 1, 6}
	own4  = netip.MustParseAddr("10.1.1.5")
	own6  = netip.MustParseAddr("fd00::5")
	any6  = netip.IPv6Unspecified()
)

func eth(src net.HardwareAddr, etherType uint16, payload []byte) []byte {
	f := slices.Concat(net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, src)
	return append(binary.BigEndian.AppendUint16(f, etherType), payload...)
}

func arpFrame(senderMAC net.HardwareAddr, senderIP string) []byte {
	p := []byte{0, 1, 8, 0, 6, 4, 0, 1}
	p = slices.Concat(p, senderMAC, netip.MustParseAddr(senderIP).AsSlice(), make([]byte, 6), []byte{10, 1, 1, 1})
	return eth(mac, ethARP, p)
}

func ip4(src string) []byte {
	p := make([]byte, 28)
	p[0], p[3], p[8], p[9] = 0x45, 28, 64, 17
	copy(p[12:], netip.MustParseAddr(src).AsSlice())
	copy(p[16:], []byte{10, 1, 1, 1})
	return p
}

func ip6(src netip.Addr, next byte, payload []byte) []byte {
	return ip6To(netip.MustParseAddr("ff02::1"), 255, src, next, payload)
}

func ip6To(dst netip.Addr, hopLimit byte, src netip.Addr, next byte, payload []byte) []byte {
	p := make([]byte, 40)
	p[0], p[6], p[7] = 0x60, next, hopLimit
	binary.BigEndian.PutUint16(p[4:], uint16(len(payload)))
	copy(p[8:], src.AsSlice())
	copy(p[24:], dst.AsSlice())
	return eth(mac, ethIPv6, append(p, payload...))
}

// asks is a neighbour solicitation for target that is sent to dst.
func asks(src, dst, target netip.Addr) []byte {
	return ip6To(dst, 255, src, protoICMPv6, icmp(icmpNeighbourSol, target))
}

// mld is a message of multicast listener discovery with the option before it that routers look for.
func mld(kind, hopLimit byte, src, dst netip.Addr) []byte {
	return ip6To(dst, hopLimit, src, protoHopByHop, ext(protoICMPv6, icmp(kind, any6)))
}

// icmp is an ICMPv6 message with a target, as neighbour discovery has it.
func icmp(kind byte, target netip.Addr) []byte {
	return slices.Concat([]byte{kind, 0, 0, 0, 0, 0, 0, 0}, target.AsSlice())
}

// ext is an 8-byte extension header before payload.
func ext(next byte, payload []byte) []byte {
	return append([]byte{next, 0, 1, 4, 0, 0, 0, 0}, payload...)
}

func fragment(next byte, at uint16, payload []byte) []byte {
	h := []byte{next, 0, 0, 0, 0, 0, 0, 7}
	binary.BigEndian.PutUint16(h[2:], at<<3)
	return append(h, payload...)
}

func TestFilter(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIP: loading BPF programs needs root")
	}
	dual := []netip.Addr{own4, own6}
	ll, stranger := conf.LinkLocal(mac), netip.MustParseAddr("fd00::6")
	group, routers := netip.MustParseAddr("ff02::1:ff00:5"), netip.MustParseAddr("ff02::16")
	deep := icmp(icmpRouterAdv, own6)
	for range maxExtHeaders {
		deep = ext(protoDestOpts, deep)
	}
	for _, c := range []struct {
		name  string
		addrs []netip.Addr
		frame []byte
		pass  bool
	}{
		{"IPv4", dual, eth(mac, ethIPv4, ip4("10.1.1.5")), true},
		{"IPv4, a neighbour's", dual, eth(mac, ethIPv4, ip4("10.1.1.6")), false},
		{"IPv4, the gateway's", dual, eth(mac, ethIPv4, ip4("10.1.1.1")), false},
		{"IPv4, 0.0.0.0", dual, eth(mac, ethIPv4, ip4("0.0.0.0")), false},
		{"IPv4 of an IPv6-only pod", []netip.Addr{own6}, eth(mac, ethIPv4, ip4("10.1.1.5")), false},
		{"IPv4, another MAC", dual, eth(other, ethIPv4, ip4("10.1.1.5")), false},
		{"ARP", dual, arpFrame(mac, "10.1.1.5"), true},
		{"ARP probe", dual, arpFrame(mac, "0.0.0.0"), true},
		{"ARP for a neighbour", dual, arpFrame(mac, "10.1.1.6"), false},
		{"ARP with another MAC inside", dual, arpFrame(other, "10.1.1.5"), false},
		{"ARP of an IPv6-only pod", []netip.Addr{own6}, arpFrame(mac, "10.1.1.5"), false},
		{"ARP, cut", dual, arpFrame(mac, "10.1.1.5")[:30], false},
		{"RARP", dual, eth(mac, 0x8035, make([]byte, 28)), false},
		{"VLAN tag", dual, eth(mac, 0x8100, append([]byte{0, 5, 8, 0}, ip4("10.1.1.5")...)), false},
		{"spanning tree", dual, eth(mac, 38, make([]byte, 38)), false},
		{"IPv6", dual, ip6(own6, 17, make([]byte, 8)), true},
		{"IPv6, link-local", dual, ip6(ll, 17, make([]byte, 8)), true},
		{"IPv6, link-local of an IPv4-only pod", []netip.Addr{own4}, ip6(ll, 17, make([]byte, 8)), true},
		{"IPv6, a neighbour's", dual, ip6(stranger, 17, make([]byte, 8)), false},
		{"IPv6, same interface ID in another net", dual, ip6(netip.MustParseAddr("fd01::5"), 17, make([]byte, 8)), false},
		{"IPv6, another link-local", dual, ip6(conf.LinkLocal(other), 17, make([]byte, 8)), false},
		{"IPv6, global of an IPv4-only pod", []netip.Addr{own4}, ip6(own6, 17, make([]byte, 8)), false},
		{"IPv6 :: with UDP", dual, ip6(any6, 17, make([]byte, 8)), false},
		{"DAD", dual, asks(any6, group, own6), true},
		{"MLD report with ::", dual, mld(icmpMLDv2Report, 1, any6, routers), true},
		{"MLD report", dual, mld(icmpMLDv2Report, 1, ll, routers), true},
		{"MLD report that routers would forward", dual, mld(icmpMLDv2Report, 2, ll, routers), false},
		{"MLD report with a global source", dual, mld(icmpMLDv2Report, 1, own6, routers), false},
		{"MLD report to a pod", dual, mld(icmpMLDv2Report, 1, ll, stranger), false},
		{"MLD query to a pod", dual, mld(130, 1, ll, stranger), false},
		{"MLD report of version 1 to a pod", dual, mld(131, 1, ll, stranger), false},
		{"MLD done to a pod", dual, mld(132, 1, ll, stranger), false},
		{"MLD done", dual, mld(132, 1, ll, routers), true},
		{"MLD query", dual, mld(130, 1, ll, routers), true},
		{"MLD in a fragment", dual, ip6To(routers, 1, ll, protoFragment, fragment(protoICMPv6, 0, icmp(icmpMLDv2Report, any6))), false},
		{"router solicitation with ::", dual, ip6(any6, protoICMPv6, icmp(icmpRouterSol, any6)), true},
		{"echo with ::", dual, ip6(any6, protoICMPv6, icmp(128, any6)), false},
		{"advertisement with ::", dual, ip6(any6, protoICMPv6, icmp(icmpNeighbourAdv, own6)), false},
		{"echo", dual, ip6(own6, protoICMPv6, icmp(128, own6)), true},
		{"neighbour solicitation", dual, asks(own6, group, netip.MustParseAddr("fd00::5")), true},
		{"neighbour solicitation, link-local", dual, asks(ll, stranger, stranger), true},
		{"neighbour solicitation to a group of another target", dual, asks(own6, group, stranger), false},
		{"neighbour solicitation to another pod than its target", dual, asks(own6, stranger, own6), false},
		{"neighbour solicitation to all nodes", dual, asks(own6, netip.MustParseAddr("ff02::1"), stranger), false},
		{"neighbour solicitation to a group that resembles its own", dual, asks(own6, netip.MustParseAddr("ff02::2:ff00:5"), own6), false},
		{"neighbour solicitation that was routed", dual, ip6To(stranger, 64, own6, protoICMPv6, icmp(icmpNeighbourSol, stranger)), false},
		{"neighbour solicitation with a code", dual, ip6To(stranger, 255, own6, protoICMPv6, slices.Concat([]byte{icmpNeighbourSol, 1, 0, 0, 0, 0, 0, 0}, stranger.AsSlice())), false},
		{"neighbour solicitation in a fragment", dual, ip6To(stranger, 255, own6, protoFragment, fragment(protoICMPv6, 0, icmp(icmpNeighbourSol, stranger))), false},
		{"neighbour solicitation without a target", dual, ip6To(stranger, 255, own6, protoICMPv6, icmp(icmpNeighbourSol, stranger)[:20]), false},
		{"neighbour advertisement that was routed", dual, ip6To(stranger, 64, own6, protoICMPv6, icmp(icmpNeighbourAdv, own6)), false},
		{"neighbour advertisement", dual, ip6(own6, protoICMPv6, icmp(icmpNeighbourAdv, own6)), true},
		{"link-local advertisement", dual, ip6(ll, protoICMPv6, icmp(icmpNeighbourAdv, ll)), true},
		{"advertisement for a neighbour", dual, ip6(own6, protoICMPv6, icmp(icmpNeighbourAdv, stranger)), false},
		{"advertisement for a neighbour behind options", dual, ip6(own6, protoDestOpts, ext(protoICMPv6, icmp(icmpNeighbourAdv, stranger))), false},
		{"router advertisement", dual, ip6(ll, protoICMPv6, icmp(icmpRouterAdv, any6)), false},
		{"router advertisement behind options", dual, ip6(ll, protoHopByHop, ext(protoICMPv6, icmp(icmpRouterAdv, any6))), false},
		{"router advertisement in a first fragment", dual, ip6(ll, protoFragment, fragment(protoICMPv6, 0, icmp(icmpRouterAdv, any6))), false},
		{"router advertisement behind too many options", dual, ip6(ll, protoDestOpts, deep), false},
		{"redirect", dual, ip6(ll, protoICMPv6, icmp(icmpRedirect, any6)), false},
		{"UDP behind options", dual, ip6(own6, protoHopByHop, ext(17, make([]byte, 8))), true},
		{"first fragment", dual, ip6(own6, protoFragment, fragment(17, 0, make([]byte, 8))), true},
		{"later fragment", dual, ip6(own6, protoFragment, fragment(protoICMPv6, 100, []byte{134, 0, 0, 0})), true},
		{"options behind a fragment header", dual, ip6(own6, protoFragment, fragment(protoDestOpts, 0, ext(17, make([]byte, 8)))), false},
		{"hop-by-hop options in a later fragment", dual, ip6(own6, protoFragment, fragment(protoHopByHop, 100, make([]byte, 8))), false},
		{"route behind a fragment header", dual, ip6(own6, protoFragment, fragment(protoRouting, 0, ext(17, make([]byte, 8)))), false},
		{"a fragment of a fragment", dual, ip6(own6, protoFragment, fragment(protoFragment, 0, fragment(17, 0, make([]byte, 8)))), false},
		{"AH behind a fragment header", dual, ip6(own6, protoFragment, fragment(protoAH, 0, make([]byte, 24))), false},
		{"router advertisement behind options behind a fragment header", dual,
			ip6(ll, protoFragment, fragment(protoDestOpts, 0, ext(protoICMPv6, icmp(icmpRouterAdv, any6)))), false},
		{"options before a fragment header", dual, ip6(own6, protoDestOpts, ext(protoFragment, fragment(17, 0, make([]byte, 8)))), true},
		{"route with segments left", dual, ip6(own6, protoRouting, append([]byte{17, 0, 4, 1, 0, 0, 0, 0}, make([]byte, 8)...)), false},
		{"route that was used up", dual, ip6(own6, protoRouting, append([]byte{17, 0, 4, 0, 0, 0, 0, 0}, make([]byte, 8)...)), true},
		{"ICMPv6 without a type", dual, ip6(own6, protoICMPv6, nil), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			prog := loaded(t, c.addrs)
			verdict, _, err := prog.Test(c.frame)
			if err != nil {
				t.Fatal(err)
			}
			if verdict != drop && int32(verdict) != pass {
				t.Fatalf("verdict %d", int32(verdict))
			}
			if got := verdict != drop; got != c.pass {
				t.Errorf("passed %v, want %v", got, c.pass)
			}
		})
	}
	if _, err := load(mac[:5], dual); err == nil {
		t.Error("a MAC of five bytes is accepted")
	}
	if _, err := load(mac, slices.Repeat(dual, maxAddrs)); err == nil {
		t.Error("more addresses than the filter holds are accepted")
	}
}

// loaded is the filter for mac.
func loaded(t testing.TB, addrs []netip.Addr) *ebpf.Program {
	t.Helper()
	prog, err := load(mac, addrs)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = prog.Close() })
	return prog
}

// TestGenerated: the objects in the repository are what filter.c says. It runs where the compiler that made them is installed.
func TestGenerated(t *testing.T) {
	version, err := exec.Command("clang", "--version").Output()
	if err != nil || !strings.Contains(string(version), " version "+clangVersion+".") {
		t.Skip("NOT RUN: clang " + clangVersion + " is not installed")
	}
	source, err := os.ReadFile("antispoof.go")
	if err != nil {
		t.Fatal(err)
	}
	_, flags, _ := strings.Cut(string(source), `-cflags "`)
	flags, _, _ = strings.Cut(flags, `"`)
	for name, made := range map[string]string{"filter_bpfel.o": "bpfel", "filter_bpfeb.o": "bpfeb"} {
		object := filepath.Join(t.TempDir(), name)
		if out, err := exec.Command("clang", append(strings.Fields(flags), "-mcpu=v1", "-target", made, "-c", "filter.c", "-o", object)...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if code(t, object) != code(t, name) {
			t.Errorf("%s is of another filter.c: run `go generate ./internal/cni/antispoof`, with clang %s, llvm and libbpf-dev", name, clangVersion)
		}
	}
}

// clangVersion is that of the compiler that made the objects: others write other code.
const clangVersion = "14.0"

// code is an object's program, as text.
func code(t *testing.T, object string) string {
	t.Helper()
	spec, err := ebpf.LoadCollectionSpec(object)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	for _, i := range spec.Programs[filterName].Instructions {
		fmt.Fprintf(&out, "%v\n", i)
	}
	return out.String()
}

func BenchmarkFilter(b *testing.B) {
	if os.Geteuid() != 0 {
		b.Skip("SKIP: loading BPF programs needs root")
	}
	prog := loaded(b, []netip.Addr{own4, own6})
	_, d, err := prog.Benchmark(ip6(own6, 6, make([]byte, 1400)), b.N, nil)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(d.Nanoseconds()), "ns/packet")
}

// Both hooks of the filter work on real packets: the pod's
// own source gets through, another does not.
func TestAttach(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIP: making network namespaces needs root")
	}
	for name, attach := range map[string]func(netlink.Link) error{
		"best": func(l netlink.Link) error { return Attach(l, mac, []netip.Addr{own4, own6}) },
		"kernels before 6.6": func(l netlink.Link) error {
			prog, err := load(mac, []netip.Addr{own4, own6})
			if err != nil {
				return err
			}
			defer prog.Close()
			if err := attachClsact(l, prog); err != nil {
				return err
			}
			return attachClsact(l, prog) // again is no error
		},
	} {
		t.Run(name, func(t *testing.T) {
			host, pod := nstest.New(t), nstest.New(t)
			do(t, host, func() error {
				attrs := netlink.NewLinkAttrs()
				attrs.Name = "host"
				veth := &netlink.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerHardwareAddr: mac, PeerNamespace: netlink.NsFd(pod.Fd())}
				if err := netlink.LinkAdd(veth); err != nil {
					return err
				}
				l, err := netlink.LinkByName("host")
				if err != nil {
					return err
				}
				if ok, err := Attached(l); ok || err != nil {
					t.Errorf("attached before: %v, %v", ok, err)
				}
				if err := attach(l); err != nil {
					return err
				}
				if ok, err := Attached(l); !ok || err != nil {
					t.Errorf("attached: %v, %v", ok, err)
				}
				return up(l, "10.1.1.1/24")
			})
			do(t, pod, func() error {
				l, err := netlink.LinkByName("eth0")
				if err != nil {
					return err
				}
				return up(l, "10.1.1.5/24", "10.1.1.6/24")
			})
			do(t, pod, func() error {
				if out, err := exec.Command("ping", "-c1", "-W2", "-I", "10.1.1.5", "10.1.1.1").CombinedOutput(); err != nil {
					t.Errorf("own source: %v %s", err, out)
				}
				if exec.Command("ping", "-c1", "-W1", "-I", "10.1.1.6", "10.1.1.1").Run() == nil {
					t.Error("another source got an answer")
				}
				return nil
			})
		})
	}
}

func do(t *testing.T, netns ns.NetNS, f func() error) {
	t.Helper()
	if err := netns.Do(func(ns.NetNS) error { return f() }); err != nil {
		t.Fatal(err)
	}
}

func up(l netlink.Link, addrs ...string) error {
	for _, s := range addrs {
		a, err := netlink.ParseAddr(s)
		if err != nil {
			return err
		}
		if err := netlink.AddrAdd(l, a); err != nil {
			return err
		}
	}
	return netlink.LinkSetUp(l)
}
