package host

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"edgemesh/agent/mesh"
	"edgemesh/cni/conf"
)

// outside is the network namespace the tests were started in. No command of a
// test may run there.
func outside(t *testing.T) bool {
	t.Helper()
	here, err := os.Readlink("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	// No test moves its parent process, or that of the tests.
	there, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", os.Getppid()))
	if err != nil {
		t.Fatal(err)
	}
	return here == there
}

// enter puts the test into a network namespace of its own, in which lo is up.
// It has no name and goes with the last thread or handle that holds it.
// Subtests run on other threads: each has to enter one of its own.
func enter(t *testing.T) netns.NsHandle {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: network namespaces need root")
	}
	runtime.LockOSThread()
	before, err := netns.Get()
	if err != nil {
		t.Fatal(err)
	}
	ns, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := netns.Set(before); err != nil {
			t.Fatal(err) // the thread stays locked and dies with the test
		}
		before.Close()
		ns.Close()
		runtime.UnlockOSThread()
	})
	// Addresses that become valid later would make dumps differ.
	run(t, "ip link set lo up\nsysctl -qw net.ipv6.conf.all.accept_dad=0\nsysctl -qw net.ipv6.conf.default.accept_dad=0")
	return ns
}

// run executes commands, one a line, in the thread's namespace.
func run(t *testing.T, commands string) string {
	t.Helper()
	if outside(t) {
		t.Fatal("a command would run in the host's own network namespace; subtests have a thread of their own")
	}
	var all strings.Builder
	for line := range strings.Lines(commands) {
		f := strings.Fields(line)
		if len(f) == 0 {
			continue
		}
		out, err := exec.Command(f[0], f[1:]...).CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", strings.TrimSpace(line), err, out)
		}
		all.Write(out)
	}
	return all.String()
}

func newHost(t *testing.T) *Host {
	return New(Config{StateDir: t.TempDir(), Log: slog.New(slog.NewTextHandler(testLog{t}, nil))})
}

type testLog struct{ t *testing.T }

func (l testLog) Write(b []byte) (int, error) {
	l.t.Log(strings.TrimSuffix(string(b), "\n"))
	return len(b), nil
}

func plan(cidrs ...string) mesh.Host {
	w := mesh.Host{MTU: 1500}
	for i := 0; i < len(cidrs); i += 2 {
		w.Blocks = append(w.Blocks, netip.MustParsePrefix(cidrs[i]))
		w.ClusterCIDRs = append(w.ClusterCIDRs, netip.MustParsePrefix(cidrs[i+1]))
	}
	return w
}

func dual() mesh.Host {
	w := plan("10.244.1.0/24", "10.244.0.0/16", "fd00:1::/64", "fd00::/16")
	w.LAN = mesh.LAN{Native: true, VXLAN: true, ProbePort: 5211, VXLANPort: mesh.VXLANPort, MAC: mesh.VTEPAddr("self"), Bits: [2][]int{{24, 28}, {64}}}
	return w
}

// makeTUN makes the persistent TUN as the agent would have.
func makeTUN(t *testing.T) {
	t.Helper()
	run(t, "ip tuntap add dev "+TUNName+" mode tun\nip link set "+TUNName+" up")
}

func mustSet(t *testing.T, h *Host, w mesh.Host) []string {
	t.Helper()
	if outside(t) {
		t.Fatal("Set would run in the host's own network namespace")
	}
	done, err := h.set(context.Background(), w)
	if err != nil {
		t.Fatal(err)
	}
	return done
}

func wantUnchanged(t *testing.T, h *Host, w mesh.Host) {
	t.Helper()
	if done := mustSet(t, h, w); len(done) > 0 {
		t.Fatalf("a second Set changed:\n%s", strings.Join(done, "\n"))
	}
}

func wantContains(t *testing.T, where, text string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if !strings.Contains(text, p) {
			t.Errorf("%s lacks %q:\n%s", where, p, text)
		}
	}
}

func TestSet(t *testing.T) {
	enter(t)
	makeTUN(t)
	h := newHost(t)
	mustSet(t, h, dual())
	wantContains(t, "ip rule", run(t, "ip rule"),
		"5200:	from all fwmark 0xed0000/0xff0000 lookup main proto 210",
		"5210:	from all lookup 5210 proto 210")
	wantContains(t, "ip -6 rule", run(t, "ip -6 rule"),
		"5200:	from all fwmark 0xed0000/0xff0000 lookup main proto 210",
		"5210:	from all lookup 5210 proto 210")
	wantContains(t, "table", run(t, "ip route show table 5210"),
		"10.244.1.0/24 dev edgemesh-br proto 210 scope link src 10.244.1.1 metric 1024",
		"10.244.0.0/16 dev edgemesh0 proto 210 scope link src 10.244.1.1 metric 1024",
		"blackhole 10.244.0.0/16 proto 210 metric 4278198272")
	wantContains(t, "IPv6 table", run(t, "ip -6 route show table 5210"),
		"fd00:1::/64 dev edgemesh-br proto 210 src fd00:1::1 metric 1024",
		"fd00::/16 dev edgemesh0 proto 210 src fd00:1::1 metric 1024",
		"blackhole fd00::/16 dev lo proto 210 metric 4278198272")
	wantContains(t, "bridge", run(t, "ip addr show edgemesh-br"), "10.244.1.1/24", "fd00:1::1/64 scope global nodad")
	wantContains(t, "TUN", run(t, "ip addr show edgemesh0"), "10.244.1.1/32", "fd00:1::1/128 scope global nodad")
	wantUnchanged(t, h, dual())
	wantUnchanged(t, newHost(t), dual()) // a restarted agent
}

func TestSetWithoutTUN(t *testing.T) {
	enter(t)
	h := newHost(t)
	if _, err := h.set(context.Background(), dual()); !errors.Is(err, ErrNoTUN) {
		t.Fatalf("error is %v, want ErrNoTUN", err)
	}
	// Own pods work, and nothing of the range leaves.
	wantContains(t, "table", run(t, "ip route show table 5210"), "10.244.1.0/24 dev edgemesh-br", "blackhole 10.244.0.0/16")
	if v, _ := readSysctl("net/ipv4/ip_forward"); v != "1" {
		t.Errorf("ip_forward is %s", v)
	}
	makeTUN(t)
	mustSet(t, h, dual())
	wantUnchanged(t, h, dual())
}

// found is everything on a host that Set may touch, as text.
func found(t *testing.T) string {
	t.Helper()
	var s strings.Builder
	s.WriteString(run(t, "ip rule\nip -6 rule\nip route show table all\nip -6 route show table all\nip -br link\nip -br addr"))
	for _, save := range []string{"iptables-nft-save", "ip6tables-nft-save", "iptables-legacy-save", "ip6tables-legacy-save"} {
		rs := parseSave(run(t, save))
		for _, k := range rs.order {
			// Tables that are there, but empty, are as good as none.
			if len(rs.chains[k]) > 0 || rs.policy[k] != "ACCEPT" {
				fmt.Fprintln(&s, save, k, rs.policy[k], rs.chains[k])
			}
		}
	}
	for line := range strings.Lines(run(t, "sysctl -a --pattern ^net\\.ipv[46]\\.(ip_forward|conf)")) {
		// New interfaces of the kernel count on; the rest must be the same.
		if !strings.Contains(line, "stable_secret") {
			s.WriteString(line)
		}
	}
	lines := strings.Split(s.String(), "\n")
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func TestCleanupLeavesHostAsFound(t *testing.T) {
	for _, forwarding := range []string{"0", "1"} {
		t.Run("forwarding="+forwarding, func(t *testing.T) {
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
			before := settled(t, "up0", "other")
			makeTUN(t)
			h := newHost(t)
			mustSet(t, h, dual())
			if err := h.Cleanup(context.Background()); err != nil {
				t.Fatal(err)
			}
			if after := foundAs(t, before); after != before {
				t.Errorf("host is not as found:\n%s", difference(before, after))
			}
			if err := h.Cleanup(context.Background()); err != nil {
				t.Errorf("a second Cleanup: %v", err)
			}
		})
	}
}

// settled is found, once the kernel has given the links their carrier and their
// link-local addresses, which it does in the background.
func settled(t *testing.T, links ...string) string {
	t.Helper()
	last := ""
	for end := time.Now().Add(deadline); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		now, ready := found(t), true
		for _, l := range links {
			ready = ready && strings.Contains(now, "multicast ff00::/8 dev "+l) && strings.Contains(now, "fe80::/64 dev "+l)
		}
		if ready && now == last {
			return now
		}
		last = now
	}
	t.Fatalf("the links do not settle:\n%s", last)
	return ""
}

// foundAs is found, once it is as wanted or the deadline is over: the kernel
// makes an IPv6 address's local route in the background.
func foundAs(t *testing.T, want string) string {
	t.Helper()
	for end := time.Now().Add(deadline); ; time.Sleep(10 * time.Millisecond) {
		if now := found(t); now == want || time.Now().After(end) {
			return now
		}
	}
}

// difference lists the lines only one of two texts has.
func difference(a, b string) string {
	var out strings.Builder
	as, bs := strings.Split(a, "\n"), strings.Split(b, "\n")
	for _, l := range as {
		if !slices.Contains(bs, l) {
			fmt.Fprintln(&out, "-", l)
		}
	}
	for _, l := range bs {
		if !slices.Contains(as, l) {
			fmt.Fprintln(&out, "+", l)
		}
	}
	return out.String()
}

func TestDriftIsRepaired(t *testing.T) {
	enter(t)
	makeTUN(t)
	h := newHost(t)
	mustSet(t, h, dual())
	want := found(t)
	for _, drift := range []string{
		"ip link del edgemesh-br",
		"ip link set edgemesh-br down",
		"ip link set edgemesh-br address 02:00:00:00:00:01",
		"ip link set edgemesh0 mtu 1280",
		"ip addr del 10.244.1.1/24 dev edgemesh-br",
		"ip addr add 10.244.9.1/24 dev edgemesh-br",
		"ip -6 addr del fd00:1::1/128 dev edgemesh0",
		"ip rule del pref 5210",
		"ip -6 rule del pref 5200",
		"ip rule add pref 5209 lookup 5210",
		"ip route flush table 5210",
		"ip -6 route flush table 5210",
		"ip route add default dev lo table 5210",
		"ip -6 route add default dev lo table 5210",
		"ip route replace 10.244.0.0/16 dev lo table 5210 metric 1024",
		"iptables -t raw -F EDGEMESH-SOURCE",
		"ip6tables -D FORWARD -j EDGEMESH-FORWARD",
		"iptables -I FORWARD -j DROP",
		"iptables -A FORWARD -j EDGEMESH-FORWARD",
		"iptables -I EDGEMESH-FORWARD 3 -j ACCEPT",
		"iptables -D EDGEMESH-FORWARD 4",
		"iptables -t nat -A EDGEMESH-NAT -j ACCEPT",
		"iptables -N EDGEMESH-OLD\niptables -I INPUT -j EDGEMESH-OLD",
		"sysctl -qw net.ipv4.ip_forward=0",
		"sysctl -qw net.ipv6.conf.all.forwarding=0",
		"sysctl -qw net.ipv4.conf.edgemesh0.rp_filter=1",
		"sysctl -qw net.ipv6.conf.edgemesh-br.disable_ipv6=1",
	} {
		run(t, drift)
		if done := mustSet(t, h, dual()); len(done) == 0 {
			t.Errorf("%s: Set saw nothing", drift)
		}
		if drift == "iptables -I FORWARD -j DROP" {
			run(t, "iptables -D FORWARD -j DROP") // not ours; ours went before it
		}
		if now := foundAs(t, want); now != want {
			t.Errorf("%s: not repaired:\n%s", drift, difference(want, now))
		}
		wantUnchanged(t, h, dual())
	}
}

// TestPromiscuous: the setting takes hold of pods that are there, and goes again.
func TestPromiscuous(t *testing.T) {
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
	w := plan("10.244.0.0/16", "10.244.0.0/16", "fd00::/48", "fd00::/48")
	mustSet(t, h, w)
	wantContains(t, "table", run(t, "ip route show table 5210"), "10.244.0.0/16 dev edgemesh-br", "blackhole 10.244.0.0/16")
	wantUnchanged(t, h, w)
}

// TestSeveralBlocks: two blocks and two ranges of one family.
func TestSeveralBlocks(t *testing.T) {
	enter(t)
	makeTUN(t)
	h := newHost(t)
	w := plan("10.244.1.0/24", "10.244.0.0/16", "10.9.8.0/26", "10.9.0.0/16")
	mustSet(t, h, w)
	wantContains(t, "table", run(t, "ip route show table 5210"),
		"10.244.1.0/24 dev edgemesh-br proto 210 scope link src 10.244.1.1",
		"10.9.8.0/26 dev edgemesh-br proto 210 scope link src 10.9.8.1",
		"10.9.0.0/16 dev edgemesh0 proto 210 scope link src 10.244.1.1",
		"blackhole 10.9.0.0/16")
	wantUnchanged(t, h, w)
	mustSet(t, h, plan("10.244.1.0/24", "10.244.0.0/16"))
	if all := run(t, "ip addr\nip route show table all\niptables-save"); strings.Contains(all, "10.9.") {
		t.Errorf("something of the former block is left:\n%s", all)
	}
}

func TestFormerBlocksGo(t *testing.T) {
	enter(t)
	makeTUN(t)
	h := newHost(t)
	mustSet(t, h, dual())
	next := plan("10.99.7.0/24", "10.99.0.0/16")
	mustSet(t, h, next)
	if all := run(t, "ip addr\nip route show table all\nip -6 route show table all\niptables-save\nip6tables-save"); strings.Contains(all, "10.244.") || strings.Contains(all, "fd00:") {
		t.Errorf("something of the former blocks is left:\n%s", all)
	}
	if out := run(t, "ip -6 rule"); strings.Contains(out, "5210") {
		t.Errorf("IPv6 rules are left without an IPv6 range:\n%s", out)
	}
	wantUnchanged(t, h, next)
}

func TestNameTaken(t *testing.T) {
	enter(t)
	run(t, "ip link add edgemesh-br type veth peer name other")
	if _, err := newHost(t).set(context.Background(), dual()); !errors.Is(err, ErrNameTaken) {
		t.Errorf("error is %v, want ErrNameTaken", err)
	}
	if _, err := netlink.LinkByName("edgemesh-br"); err != nil {
		t.Errorf("somebody else's interface: %v", err)
	}
}
