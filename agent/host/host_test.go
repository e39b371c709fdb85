package host

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"edgemesh/agent/host/rtnetlink"
	"edgemesh/agent/host/sysctl"
	"edgemesh/internal/cni/conf"
)

func TestSet(t *testing.T) {
	t.Parallel()
	enter(t)
	makeTUN(t)
	state := t.TempDir()
	h := New(Config{StateDir: state, Log: newHost(t).log})
	mustSet(t, h, dual())
	wantContains(t, "ip rule", run(t, "ip rule"),
		"32765:	not from all fwmark 0xe80000/0xf80000 iif lo lookup 5210 proto 210", "32765:	from all fwmark 0xeb0000/0xff0000 lookup 5223 proto 210")
	wantContains(t, "ip -6 rule", run(t, "ip -6 rule"),
		"32765:	not from all fwmark 0xe80000/0xf80000 iif lo lookup 5210 proto 210", "32765:	from all fwmark 0xeb0000/0xff0000 lookup 5223 proto 210")
	wantContains(t, "table", run(t, "ip route show table 5210"),
		"10.244.1.0/24 dev edgemesh-br proto 210 scope link src 10.244.1.1 metric 1024",
		"10.244.0.0/16 dev edgemesh-tun proto 210 scope link src 10.244.1.1 metric 1024",
		"blackhole 10.244.0.0/16 proto 210 metric 4278198272")
	wantContains(t, "IPv6 table", run(t, "ip -6 route show table 5210"),
		"fd00:1::/64 dev edgemesh-br proto 210 src fd00:1::1 metric 1024",
		"fd00::/16 dev edgemesh-tun proto 210 src fd00:1::1 metric 1024",
		"blackhole fd00::/16 dev lo proto 210 metric 4278198272")
	wantContains(t, "bridge", run(t, "ip addr show edgemesh-br"), "10.244.1.1/24", "fd00:1::1/64 scope global nodad")
	wantContains(t, "TUN", run(t, "ip addr show edgemesh-tun"), "10.244.1.1/32", "fd00:1::1/128 scope global nodad")
	wantUnchanged(t, h, dual())
	wantUnchanged(t, New(Config{StateDir: state, Log: h.log}), dual()) // a restarted agent
}

func TestSetWithoutTUN(t *testing.T) {
	t.Parallel()
	enter(t)
	h := newHost(t)
	if _, err := h.Set(context.Background(), dual()); !errors.Is(err, rtnetlink.ErrNoTUN) {
		t.Fatalf("error is %v, want rtnetlink.ErrNoTUN", err)
	}
	// Own pods work, and nothing of the range leaves.
	wantContains(t, "table", run(t, "ip route show table 5210"), "10.244.1.0/24 dev edgemesh-br", "blackhole 10.244.0.0/16")
	if v, _ := sysctl.Read("net/ipv4/ip_forward"); v != "1" {
		t.Errorf("ip_forward is %s", v)
	}
	makeTUN(t)
	mustSet(t, h, dual())
	wantUnchanged(t, h, dual())
}

func TestCleanupLeavesHostAsFound(t *testing.T) {
	t.Parallel()
	for _, forwarding := range []string{"0", "1"} {
		t.Run("forwarding="+forwarding, func(t *testing.T) {
			t.Parallel()
			enter(t)
			run(t, `
ip link add up0 type veth peer name other
ip link set up0 up
ip link set other up
ip addr add 192.168.1.2/24 dev up0
ip route add default via 192.168.1.1
iptables-nft -A FORWARD -i up0 -o up0 -j ACCEPT
iptables-nft -t nat -N OTHER
iptables-nft -t nat -A POSTROUTING -o up0 -j OTHER
ip rule add pref 5200 from 192.0.2.1 lookup main
sysctl -qw net.ipv4.ip_forward=`+forwarding+`
sysctl -qw net.ipv6.conf.all.forwarding=`+forwarding+`
sysctl -qw net.ipv4.conf.other.forwarding=1
sysctl -qw net.ipv4.conf.other.rp_filter=1`)
			before := foundAtRest(t, "up0", "other")
			makeTUN(t)
			h := newHost(t)
			mustSet(t, h, dual())
			if err := h.Cleanup(context.Background()); err != nil {
				t.Fatal(err)
			}
			wantFound(t, "the host as it was before", before)
			if err := h.Cleanup(context.Background()); err != nil {
				t.Errorf("a second Cleanup: %v", err)
			}
		})
	}
}

func TestDriftIsRepaired(t *testing.T) {
	t.Parallel()
	enter(t)
	makeTUN(t)
	h := newHost(t)
	mustSet(t, h, dual())
	want := found(t)
	for _, drift := range []string{
		"ip link del edgemesh-br",
		"ip link set edgemesh-br down",
		"ip link set edgemesh-br address 02:00:00:00:00:01",
		"ip link set edgemesh-tun mtu 1280",
		"ip link set edgemesh-tun mtu 576", // without IPv6, and its sysctls
		"ip link set edgemesh-br mtu 1000",
		"ip addr del 10.244.1.1/24 dev edgemesh-br",
		"ip addr add 10.244.9.1/24 dev edgemesh-br",
		"ip -6 addr del fd00:1::1/128 dev edgemesh-tun",
		"ip rule del lookup 5210",
		"ip -6 rule del lookup 5220",
		"ip rule add pref 5209 lookup 5210",
		"ip route flush table 5210",
		"ip -6 route flush table 5210",
		"ip route add default dev lo table 5210",
		"ip -6 route add default dev lo table 5210",
		"ip route replace 10.244.0.0/16 dev lo table 5210 metric 1024",
		"nft flush chain inet edgemesh pods",
		"nft flush map inet edgemesh inputs",
		"nft delete element inet edgemesh inputs { lo }",
		"ip rule del lookup 5222",
		"ip6tables -t mangle -D FORWARD ! -i edgemesh-br -j EDGEMESH-FORWARD",
		"iptables -t mangle -I FORWARD -j DROP",
		"iptables -t mangle -A FORWARD -j EDGEMESH-FORWARD",
		"iptables -t mangle -I EDGEMESH-FORWARD 3 -j ACCEPT",
		"iptables -t mangle -D EDGEMESH-FORWARD 4",
		"iptables -t nat -A EDGEMESH-NAT -j ACCEPT",
		"iptables -N EDGEMESH-OLD\niptables -I INPUT -j EDGEMESH-OLD",
		"sysctl -qw net.ipv4.ip_forward=0",
		"sysctl -qw net.ipv6.conf.all.forwarding=0",
		"sysctl -qw net.ipv4.conf.edgemesh-tun.rp_filter=1",
		"sysctl -qw net.ipv6.conf.edgemesh-br.disable_ipv6=1",
	} {
		run(t, drift)
		if done := mustSet(t, h, dual()); len(done) == 0 {
			t.Errorf("%s: Set saw nothing", drift)
		}
		if drift == "iptables -t mangle -I FORWARD -j DROP" {
			run(t, "iptables -t mangle -D FORWARD -j DROP") // not ours; ours went before it
		}
		wantFound(t, drift+": repaired", want)
		wantUnchanged(t, h, dual())
	}
}

// TestPromiscuous: the setting takes hold of pods that are there, and goes again.
func TestPromiscuous(t *testing.T) {
	t.Parallel()
	enter(t)
	makeTUN(t)
	h := newHost(t)
	mustSet(t, h, dual())
	run(t, "ip link add pod1 type veth peer name eth0\nip link set pod1 master edgemesh-br")
	setAlias(t, "pod1", conf.PodAlias+"10.244.1.2 eth0 c1 edgemesh")
	w := dual()
	for _, on := range []bool{true, false} {
		w.Promisc = on
		mustSet(t, h, w)
		bridge, port := run(t, "ip link show edgemesh-br"), run(t, "bridge -d link show dev pod1")
		if strings.Contains(bridge, "PROMISC") != on || strings.Contains(port, "hairpin on") == on {
			t.Errorf("promiscuous %v: %s%s", on, bridge, port)
		}
		wantUnchanged(t, h, w)
	}
	// A pod that lost its bridge comes back to one as it was configured.
	w.Promisc = true
	run(t, "ip link del edgemesh-br")
	mustSet(t, h, w)
	if port := run(t, "bridge -d link show dev pod1"); !strings.Contains(port, "edgemesh-br") || strings.Contains(port, "hairpin on") {
		t.Errorf("plugged in again: %s", port)
	}
	wantUnchanged(t, h, w)
}

// TestOneNodeOwnsTheRange: block and range are the same prefix.
func TestOneNodeOwnsTheRange(t *testing.T) {
	enter(t)
	makeTUN(t)
	h := newHost(t)
	w := planOf("10.244.0.0/16", "10.244.0.0/16", "fd00::/48", "fd00::/48")
	mustSet(t, h, w)
	wantContains(t, "table", run(t, "ip route show table 5210"), "10.244.0.0/16 dev edgemesh-br", "blackhole 10.244.0.0/16")
	wantUnchanged(t, h, w)
}

// TestSeveralBlocks: two blocks and two ranges of one family.
func TestSeveralBlocks(t *testing.T) {
	t.Parallel()
	enter(t)
	makeTUN(t)
	h := newHost(t)
	w := planOf("10.244.1.0/24", "10.244.0.0/16", "10.9.8.0/26", "10.9.0.0/16")
	mustSet(t, h, w)
	wantContains(t, "table", run(t, "ip route show table 5210"),
		"10.244.1.0/24 dev edgemesh-br proto 210 scope link src 10.244.1.1",
		"10.9.8.0/26 dev edgemesh-br proto 210 scope link src 10.9.8.1",
		"10.9.0.0/16 dev edgemesh-tun proto 210 scope link src 10.244.1.1",
		"blackhole 10.9.0.0/16")
	wantUnchanged(t, h, w)
	mustSet(t, h, planOf("10.244.1.0/24", "10.244.0.0/16"))
	if all := run(t, "ip addr\nip route show table all\niptables-save"); strings.Contains(all, "10.9.") {
		t.Errorf("something of the former block is left:\n%s", all)
	}
}

func TestFormerBlocksGo(t *testing.T) {
	t.Parallel()
	enter(t)
	makeTUN(t)
	h := newHost(t)
	mustSet(t, h, dual())
	next := planOf("10.99.7.0/24", "10.99.0.0/16")
	mustSet(t, h, next)
	if all := run(t, "ip addr\nip route show table all\nip -6 route show table all\niptables-save\nip6tables-save"); strings.Contains(all, "10.244.") || strings.Contains(all, "fd00:") {
		t.Errorf("something of the former blocks is left:\n%s", all)
	}
	if out := run(t, "ip -6 rule"); strings.Contains(out, "5210") {
		t.Errorf("IPv6 rules are left without an IPv6 range:\n%s", out)
	}
	wantUnchanged(t, h, next)
}

// TestFormerNodeIPStays: what kubelet reports of a former block stays on the bridge, and is there again after a reboot,
// until kubelet reports another address. An address of a former range stays, too, where it is.
func TestFormerNodeIPStays(t *testing.T) {
	t.Parallel()
	enter(t)
	makeTUN(t)
	h := newHost(t)
	mustSet(t, h, dual())
	former := netip.MustParseAddr("10.244.1.1")
	next := planOf("10.244.7.0/24", "10.244.0.0/16")
	next.Former = []netip.Addr{former, netip.MustParseAddr("192.168.1.10"), netip.MustParseAddr("10.244.5.5")}
	has := func(want ...string) {
		t.Helper()
		out := run(t, "ip -4 -o addr show edgemesh-br")
		if strings.Count(out, "inet ") != len(want) {
			t.Errorf("the bridge has\n%s, want %v", out, want)
		}
		wantContains(t, "bridge", out, want...)
	}
	mustSet(t, h, next)
	has(" 10.244.1.1/24 ", " 10.244.7.1/24 ", " 10.244.5.5/32 ")
	wantContains(t, "TUN", run(t, "ip -4 -o addr show edgemesh-tun"), " 10.244.7.1/32 ")
	wantUnchanged(t, h, next)
	run(t, "ip link del edgemesh-br")
	mustSet(t, h, next)
	has(" 10.244.1.1/32 ", " 10.244.7.1/24 ", " 10.244.5.5/32 ")
	// The node's new block contains the former one: its addresses are pods' now, 10.244.1.255 among them.
	wide := planOf("10.244.0.0/22", "10.244.0.0/16")
	wide.Former = []netip.Addr{former}
	mustSet(t, h, planOf("10.244.1.0/24", "10.244.0.0/16"))
	mustSet(t, h, wide)
	has(" 10.244.0.1/22 ", " 10.244.1.1/32 ")
	if out := run(t, "ip route show table local"); strings.Contains(out, "broadcast 10.244.1.255") {
		t.Errorf("the former block's broadcast address is left:\n%s", out)
	}
	wantUnchanged(t, h, wide)
	mustSet(t, h, next)
	moved := planOf("10.99.7.0/24", "10.99.0.0/16")
	moved.Former = []netip.Addr{former}
	mustSet(t, h, moved)
	has(" 10.244.1.1/32 ", " 10.99.7.1/24 ")
	moved.Former = nil
	mustSet(t, h, moved)
	has(" 10.99.7.1/24 ")
	wantUnchanged(t, h, moved)
}

func TestNameTaken(t *testing.T) {
	enter(t)
	run(t, "ip link add edgemesh-br type veth peer name other")
	if _, err := newHost(t).Set(context.Background(), dual()); !errors.Is(err, rtnetlink.ErrNameTaken) {
		t.Errorf("error is %v, want rtnetlink.ErrNameTaken", err)
	}
	if _, err := netlink.LinkByName("edgemesh-br"); err != nil {
		t.Errorf("a foreign interface: %v", err)
	}
}
