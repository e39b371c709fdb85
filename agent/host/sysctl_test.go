package host

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"edgemesh/agent/findings"
	"edgemesh/agent/host/rtnetlink"
	"edgemesh/agent/host/sysctl"
	"edgemesh/internal/membership/mesh"
	"edgemesh/test/fair"
)

func setAlias(t *testing.T, name, alias string) {
	t.Helper()
	link, err := netlink.LinkByName(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetAlias(link, alias); err != nil {
		t.Fatal(err)
	}
}

// advertise sends a router advertisement (RFC 4861 section 4.2) out of lan0.
func (l *lab) advertise() {
	l.t.Helper()
	l.in(l.lan, func() {
		ifi, err := net.InterfaceByName("lan0")
		if err != nil {
			l.t.Fatal(err)
		}
		fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMPV6)
		if err != nil {
			l.t.Fatal(err)
		}
		defer unix.Close(fd)
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_HOPS, 255); err != nil {
			l.t.Fatal(err)
		}
		// Type 134, hop limit 64, router lifetime 1800 s; the kernel fills in the checksum.
		ra := []byte{134, 0, 0, 0, 64, 0, 1800 >> 8, 1800 & 255, 0, 0, 0, 0, 0, 0, 0, 0}
		to := &unix.SockaddrInet6{ZoneId: uint32(ifi.Index), Addr: [16]byte{0xff, 2, 15: 1}}
		// Unreachable until lan0 has its link-local address; learn tries again.
		if err := unix.Sendto(fd, ra, 0, to); err != nil && !errors.Is(err, unix.ENETUNREACH) && !errors.Is(err, unix.EADDRNOTAVAIL) {
			l.t.Fatal(err)
		}
	})
}

func raRoute(t *testing.T) string { return run(t, "ip -6 route show default proto ra") }

// learn advertises until the node has a default route.
func (l *lab) learn() {
	l.t.Helper()
	fair.Eventually(l.t, deadline, "the node learns a router", func() error {
		l.advertise()
		if raRoute(l.t) == "" {
			return errors.New(run(l.t, "ip -6 addr\nip -6 route\nsysctl net.ipv6.conf.up0.accept_ra net.ipv6.conf.all.forwarding"))
		}
		return nil
	})
}

// TestAdvertisedRouterStays: a site's default route came by advertisement. It
// must stay, and still be learnt, although the node becomes a router.
func TestAdvertisedRouterStays(t *testing.T) {
	t.Parallel()
	l := &lab{t: t, node: enter(t)}
	l.lan = l.namespace()
	l.wire("up0", l.lan, "lan0")
	l.learn()
	makeTUN(t)
	l.host = newHost(t)
	mustSet(t, l.host, dual())
	if raRoute(t) == "" {
		t.Fatal("Set lost the default route")
	}
	if v, _ := sysctl.Read("net/ipv6/conf/all/forwarding"); v != "1" {
		t.Fatalf("IPv6 forwarding is %s", v)
	}
	run(t, "ip -6 route del default proto ra")
	l.learn()
	wantUnchanged(t, l.host, dual())
	if v, _ := sysctl.Read("net/ipv6/conf/" + BridgeName + "/accept_ra"); v != "0" {
		t.Errorf("the bridge accepts advertisements of pods (accept_ra %s)", v)
	}
	if err := l.host.Cleanup(context.Background()); err != nil {
		t.Fatal(err)
	}
	if raRoute(t) == "" {
		t.Error("Cleanup lost the default route")
	}
	if v, _ := sysctl.Read("net/ipv6/conf/up0/accept_ra"); v != "1" {
		t.Errorf("accept_ra is %s after Cleanup, was 1", v)
	}
}

// TestRouterIsLeftAsItIs: a host that forwards already did not listen.
func TestRouterIsLeftAsItIs(t *testing.T) {
	t.Parallel()
	l := &lab{t: t, node: enter(t)}
	l.lan = l.namespace()
	l.wire("up0", l.lan, "lan0")
	run(t, "sysctl -qw net.ipv6.conf.all.forwarding=1")
	makeTUN(t)
	mustSet(t, newHost(t), dual())
	if v, _ := sysctl.Read("net/ipv6/conf/up0/accept_ra"); v != "1" {
		t.Errorf("accept_ra is %s, was 1", v)
	}
}

// TestForwardingOfUplinks: an interface by which pods reach others may have forwarding off, as hardening and systemd-networkd set it, from before
// the first start or later. It is switched on once, and off again by a cleanup; that of others is left alone. Who sets it back is told.
func TestForwardingOfUplinks(t *testing.T) {
	t.Parallel()
	enter(t)
	run(t, uplinkScript+`
ip link add dev wan0 type bridge
ip link set wan0 up
ip addr add 198.51.100.2/24 dev wan0
ip route add default via 198.51.100.1
ip link add dev mgmt0 type bridge
sysctl -qw net.ipv4.ip_forward=1
sysctl -qw net.ipv4.conf.wan0.forwarding=0
sysctl -qw net.ipv4.conf.up0.forwarding=0
sysctl -qw net.ipv4.conf.mgmt0.forwarding=0`)
	makeTUN(t)
	h, p := newHost(t), lanPlan(1)
	set := func() {
		t.Helper()
		mustSet(t, h, p.Host)
		mustSetPaths(t, h, p.Paths(candidates(1)))
	}
	is := func(want string, links ...string) {
		t.Helper()
		for _, l := range links {
			if v, err := sysctl.Read(sysctl.Forwarding(l)); v != want {
				t.Errorf("forwarding of %s is %s, want %s (%v)", l, v, want, err)
			}
		}
	}
	set()
	is("1", "wan0", "up0")
	is("0", "mgmt0")
	links, err := rtnetlink.Foreign()
	if err != nil {
		t.Fatal(err)
	}
	before, err := h.memory.Before(links)
	if got := sysctl.LinkNames(links, before.From[0]); err != nil || before.On[0] || !slices.Contains(got, "other") || slices.Contains(got, "wan0") ||
		slices.Contains(got, "up0") || slices.Contains(got, "mgmt0") {
		t.Errorf("packets from %v were forwarded before us, all %v (%v): what came in where it was off was not", got, before.On, err)
	}
	run(t, "sysctl -qw net.ipv4.conf.wan0.forwarding=0\nsysctl -qw net.ipv4.conf.up0.forwarding=0")
	set()
	is("0", "wan0", "up0")
	if f := findingOf(t, h.InTheWay(p.Host), "forwarding"); !strings.Contains(f.Text, "wan0 and up0") || f.Severity != findings.Broken {
		t.Errorf("set back: %+v", f)
	}
	run(t, "sysctl -qw net.ipv4.ip_forward=0")
	set()
	is("1", "wan0", "up0")
	if err := h.Cleanup(context.Background()); err != nil {
		t.Fatal(err)
	}
	is("0", "wan0", "up0", "mgmt0")
}

// TestForwardingRepairedOnce: on a host that did not forward before, and on an interface that was recreated under its name, the first one who switches
// forwarding off is overruled, the second one is not.
func TestForwardingRepairedOnce(t *testing.T) {
	t.Parallel()
	enter(t)
	const made = "ip link add dev wan0 type bridge\nip link set wan0 up\nip addr add 198.51.100.2/24 dev wan0\nip route add default via 198.51.100.1\n"
	run(t, made+"sysctl -qw net.ipv4.ip_forward=0")
	makeTUN(t)
	h := newHost(t)
	mustSet(t, h, dual())
	for _, again := range []string{"", "ip link del wan0\n" + made} {
		for i, want := range []string{"1", "0"} {
			run(t, again+"sysctl -qw net.ipv4.conf.wan0.forwarding=0")
			again = ""
			mustSet(t, h, dual())
			if v, err := sysctl.Read(sysctl.Forwarding("wan0")); v != want {
				t.Errorf("off for the %d. time: forwarding is %s, want %s (%v)", i+1, v, want, err)
			}
		}
		findingOf(t, h.InTheWay(dual()), "forwarding")
	}
}

// TestReverseFilter: the kernel looks at sources on our interfaces where nothing else does,
// and never strictly.
func TestReverseFilter(t *testing.T) {
	t.Parallel()
	enter(t)
	makeTUN(t)
	h := newHost(t)
	noLAN := dual()
	noLAN.LAN = mesh.LAN{}
	for _, c := range []struct {
		all            string
		plan           mesh.Host
		bridge, tun    string
		local, ofVXLAN string
	}{
		{"0", dual(), "0", "2", "1", "0"},
		{"1", dual(), "2", "2", "1", "2"},
		{"0", noLAN, "2", "2", "0", ""},
	} {
		run(t, "sysctl -qw net.ipv4.conf.all.rp_filter="+c.all)
		mustSet(t, h, c.plan)
		wantUnchanged(t, h, c.plan)
		for key, want := range map[string]string{
			sysctl.RPFilter(BridgeName): c.bridge, sysctl.RPFilter(TUNName): c.tun, sysctl.RPFilter(VXLANName): c.ofVXLAN,
			"net/ipv4/conf/" + BridgeName + "/accept_local": c.local, "net/ipv4/conf/" + TUNName + "/accept_local": "0",
		} {
			if v, _ := sysctl.Read(key); v != want {
				t.Errorf("all %s: %s is %q, want %q", c.all, key, v, want)
			}
		}
	}
}
