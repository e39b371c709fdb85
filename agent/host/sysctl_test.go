package host

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"edgemesh/agent/mesh"
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
	for end := time.Now().Add(deadline); raRoute(l.t) == ""; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			l.t.Fatalf("the node does not learn a router\n%s", run(l.t, "ip -6 addr\nip -6 route\nsysctl net.ipv6.conf.up0.accept_ra net.ipv6.conf.all.forwarding"))
		}
		l.advertise()
	}
}

// TestAdvertisedRouterStays: a site's default route came by advertisement. It
// must stay, and go on being learnt, although the node becomes a router.
func TestAdvertisedRouterStays(t *testing.T) {
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
	if v, _ := readSysctl("net/ipv6/conf/all/forwarding"); v != "1" {
		t.Fatalf("IPv6 forwarding is %s", v)
	}
	run(t, "ip -6 route del default proto ra")
	l.learn()
	wantUnchanged(t, l.host, dual())
	if v, _ := readSysctl("net/ipv6/conf/" + BridgeName + "/accept_ra"); v != "0" {
		t.Errorf("the bridge accepts advertisements of pods (accept_ra %s)", v)
	}
	if err := l.host.Cleanup(context.Background()); err != nil {
		t.Fatal(err)
	}
	if raRoute(t) == "" {
		t.Error("Cleanup lost the default route")
	}
	if v, _ := readSysctl("net/ipv6/conf/up0/accept_ra"); v != "1" {
		t.Errorf("accept_ra is %s after Cleanup, was 1", v)
	}
}

// TestRouterIsLeftAsItIs: a host that forwards already did not listen.
func TestRouterIsLeftAsItIs(t *testing.T) {
	l := &lab{t: t, node: enter(t)}
	l.lan = l.namespace()
	l.wire("up0", l.lan, "lan0")
	run(t, "sysctl -qw net.ipv6.conf.all.forwarding=1")
	makeTUN(t)
	mustSet(t, newHost(t), dual())
	if v, _ := readSysctl("net/ipv6/conf/up0/accept_ra"); v != "1" {
		t.Errorf("accept_ra is %s, was 1", v)
	}
}

func TestMemory(t *testing.T) {
	enter(t)
	m := memory{path: filepath.Join(t.TempDir(), MemoryFile)}
	if err := m.remember("net/ipv4/ip_forward"); err != nil {
		t.Fatal(err)
	}
	run(t, "sysctl -qw net.ipv4.ip_forward=1")
	if err := m.remember("net/ipv4/ip_forward"); err != nil { // the first value counts
		t.Fatal(err)
	}
	if v, ok, err := m.value("net/ipv4/ip_forward"); v != "0" || !ok || err != nil {
		t.Errorf("remembered %q, %v, %v", v, ok, err)
	}

	b, err := os.ReadFile(m.path)
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{
		"torn":         string(b[:len(b)/2]),
		"empty":        "",
		"null values":  strings.Replace(string(b), `"values"`, `"other"`, 1),
		"earlier boot": otherBoot(t, b),
	} {
		if err := os.WriteFile(m.path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, ok, err := m.value("net/ipv4/ip_forward"); ok || err != nil {
			t.Errorf("%s: still remembered (%v)", name, err)
		}
	}

	if err := os.WriteFile(m.path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := m.restore(); err != nil {
		t.Fatal(err)
	}
	if v, _ := readSysctl("net/ipv4/ip_forward"); v != "0" {
		t.Errorf("ip_forward is %s after restore", v)
	}
	if _, err := os.Stat(m.path); !os.IsNotExist(err) {
		t.Errorf("the file is left: %v", err)
	}
}

func otherBoot(t *testing.T, b []byte) string {
	t.Helper()
	var r record
	if err := json.Unmarshal(b, &r); err != nil {
		t.Fatal(err)
	}
	r.BootID = "00000000-0000-0000-0000-000000000000"
	out, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

func TestRestoreOrder(t *testing.T) {
	have := restoreOrder(map[string]string{
		"net/ipv6/conf/eth0/accept_ra": "1", "net/ipv6/conf/eth0/forwarding": "0", "net/ipv6/conf/all/forwarding": "0",
		"net/ipv4/conf/all/accept_redirects": "1", "net/ipv4/ip_forward": "0",
	})
	want := []string{
		"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding",
		"net/ipv4/conf/all/accept_redirects", "net/ipv6/conf/eth0/forwarding", "net/ipv6/conf/eth0/accept_ra",
	}
	if !slices.Equal(have, want) {
		t.Errorf("order is %v, want %v", have, want)
	}
}

// TestReverseFilter: the kernel looks at sources on our interfaces where nothing else does,
// and never strictly.
func TestReverseFilter(t *testing.T) {
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
			rpFilter(BridgeName): c.bridge, rpFilter(TUNName): c.tun, rpFilter(VXLANName): c.ofVXLAN,
			"net/ipv4/conf/" + BridgeName + "/accept_local": c.local, "net/ipv4/conf/" + TUNName + "/accept_local": "0",
		} {
			if v, _ := readSysctl(key); v != want {
				t.Errorf("all %s: %s is %q, want %q", c.all, key, v, want)
			}
		}
	}
}
