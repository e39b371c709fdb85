package host

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"edgemesh/test/fair"

	"github.com/vishvananda/netlink"
	"go.uber.org/goleak"
)

// Every change of our own state is noticed; changes by others are not.
func TestWatcherHearsOfDamage(t *testing.T) {
	enter(t)
	makeTUN(t)
	h := newHost(t)
	mustSet(t, h, dual())
	heard, end := listenTo(t, h)
	legacy := h.legacy()
	for _, damage := range []string{
		"ip link set " + BridgeName + " down",
		"ip addr del 10.244.1.1/24 dev " + BridgeName,
		"ip route flush table 5210",
		"ip -6 rule del lookup 5210",
		"sysctl -qw net.ipv4.ip_forward=0",
		"sysctl -qw net.ipv6.conf.all.forwarding=0",
		"sysctl -qw net.ipv6.conf.all.disable_ipv6=1",
		"sysctl -qw net.ipv4.conf." + TUNName + ".rp_filter=1",
		"iptables -F",
		"ip link del " + BridgeName,
		"ip link del " + TUNName,
	} {
		run(t, damage)
		wantHeard(t, heard, damage)
		if damage == "ip link del "+TUNName {
			makeTUN(t)
		}
		mustSet(t, h, dual())
		quiet(heard)
	}
	run(t, `
ip link add other7 type bridge
ip link set other7 up
ip addr add 192.0.2.1/24 dev other7
ip route add 198.51.100.0/24 via 192.0.2.9
ip route del 198.51.100.0/24
ip addr del 192.0.2.1/24 dev other7
ip link del other7`)
	run(t, "ip addr del 10.244.1.1/24 dev "+BridgeName) // heard after all of the above
	<-heard
	if n := quiet(heard); n > 2 && !legacy { // its route goes with the address
		t.Errorf("called %d times more: strangers' changes wake us", n)
	}
	end()
}

// A link that may be another uplink is noticed, whatever it is named later; what containers come and go with is not.
func TestWatcherHearsOfUplinks(t *testing.T) {
	l := newBareLab(t, "")
	h := l.host
	mustSet(t, h, dual())
	heard, end := listenTo(t, h)
	hw0 := func() { // of another namespace, as hardware is
		l.in(l.lan, func() {
			run(t, "ip link add link lan0 name hw0 type macvlan")
			link, err := netlink.LinkByName("hw0")
			if err == nil {
				err = netlink.LinkSetNsFd(link, int(l.node))
			}
			if err != nil {
				t.Fatal(err)
			}
		})
	}
	for _, change := range []string{
		"ip tuntap add dev vpn0 mode tun",
		"ip link set vpn0 name vpn1",
		"sysctl -qw net.ipv4.conf.vpn1.rp_filter=2\nsysctl -qw net.ipv4.conf.vpn1.rp_filter=1", // would drop peers' native packets
		"ip addr add 192.0.0.4/32 dev vpn1",                                                    // it is a CLAT, and no uplink
		"hw0",
		"ip link add lan9 type veth peer name lan8\nsysctl -qw net.ipv4.conf.lan9.forwarding=0", // as an uplink is in a container
		"ip link add host0 type bridge\nip link set hw0 master host0",
		"ip link set host0 name host1",
	} {
		quiet(heard)
		if change == "hw0" {
			hw0()
		} else {
			run(t, change)
		}
		wantHeard(t, heard, change)
	}
	quiet(heard)
	run(t, `
ip link set vpn1 up
ip link set hw0 up
ip link add docker0 type bridge
ip link add vethc0 type veth peer name eth0c
ip link set vethc0 master docker0
ip link set docker0 up
ip link set vethc0 up
ip link set eth0c up
ip link set vethc0 name vethc1
ip tuntap add dev vm0 mode tap
ip link del vm0
ip link del vethc1`)
	if n := quiet(heard); n > 0 && !h.legacy() {
		t.Errorf("called %d times: containers wake us", n)
	}
	end()
}

// listenTo sends on heard whenever a Watcher calls, until end, which fails if anything of it is left: no test that calls
// it runs beside others.
func listenTo(t *testing.T, h *Host) (heard chan struct{}, end func()) {
	t.Helper()
	leaks := goleak.IgnoreCurrent()
	w, err := h.NewWatcher()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	heard = make(chan struct{}, 1000)
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.Run(ctx, func() { heard <- struct{}{} })
	}()
	return heard, func() {
		cancel()
		<-done
		goleak.VerifyNone(t, leaks)
	}
}

// wantHeard wants a Watcher to call because of a change.
func wantHeard(t *testing.T, heard <-chan struct{}, change string) {
	t.Helper()
	soon, stop := fair.WithTimeout(t.Context(), deadline)
	defer stop()
	select {
	case <-heard:
	case <-soon.Done():
		t.Fatalf("nothing heard of `%s`", change)
	}
}

// quiet waits until nothing more is heard, and counts what was.
func quiet(heard <-chan struct{}) int {
	for n := 0; ; n++ {
		select {
		case <-heard:
		case <-time.After(200 * time.Millisecond):
			return n
		}
	}
}

// TestRulesBehindOurs: rules of chained plugins that another program deletes count as flushed, with all others or alone; those of others
// do not.
func TestRulesBehindOurs(t *testing.T) {
	enter(t)
	makeTUN(t)
	h := newHost(t)
	mustSet(t, h, dual())
	for _, program := range []string{"iptables-nft", "ip6tables-nft"} {
		run(t, program+" -t nat -N CNI-HOSTPORT-DNAT\n"+program+" -t nat -N OTHER")
	}
	heard, end := listenTo(t, h)
	defer end()
	for _, c := range []struct {
		damage string
		counts bool
	}{
		{"iptables-nft -t nat -F OTHER", false}, {"iptables-nft -t nat -F CNI-HOSTPORT-DNAT", true}, {"iptables-nft -t nat -F", true},
		{"iptables-nft -t nat -D CNI-HOSTPORT-DNAT 1", true}, {"iptables-nft -t nat -F PREROUTING", true}, {"ip6tables-nft -t nat -F", true}, {"nft flush ruleset", true},
	} {
		for _, program := range []string{"iptables-nft", "ip6tables-nft"} {
			for _, chain := range []string{"CNI-HOSTPORT-DNAT", "OTHER"} {
				run(t, program+" -t nat -A "+chain+" -p tcp --dport 80 -j RETURN")
			}
			run(t, program+" -t nat -A PREROUTING -j CNI-HOSTPORT-DNAT\n"+program+" -t nat -A OUTPUT -j CNI-HOSTPORT-DNAT")
		}
		quiet(heard)
		before := h.Flushed()
		run(t, c.damage)
		wantHeard(t, heard, c.damage)
		quiet(heard)
		if is := h.Flushed() != before; is != c.counts {
			t.Errorf("`%s` counts: %t", c.damage, is)
		}
		if is, want := slices.Contains(h.Unhooked(), "portmap"), strings.HasSuffix(c.damage, "-F PREROUTING"); is != want && !strings.HasSuffix(c.damage, " -F") {
			t.Errorf("after `%s` there is no jump to portmap's chain: %t", c.damage, is)
		}
		mustSet(t, h, dual())
	}
}
