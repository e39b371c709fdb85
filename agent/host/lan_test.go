package host

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"edgemesh/agent/host/sysctl"
	"edgemesh/internal/membership/mesh"
	"edgemesh/test/fair"
)

// lanPlan is node "self" of dual() with n other members, whose blocks are
// 10.244.(2+i/256…): /28 each, and fd00:2:…::/64.
func lanPlan(n int) mesh.Plan {
	p := mesh.Plan{Host: dual(), Self: mesh.Node{Name: "self", PeerID: "self", PodCIDRs: dual().Blocks}}
	for i := range n {
		p.Nodes = append(p.Nodes, mesh.Node{
			Name: fmt.Sprint("m", i), PeerID: mesh.PeerID(fmt.Sprint("M", i)),
			PodCIDRs: []netip.Prefix{
				netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, byte(2 + i/16), byte(i % 16 * 16)}), 28),
				netip.MustParsePrefix(fmt.Sprintf("fd00:2:%x::/64", i+1)),
			},
		})
	}
	return p
}

// candidates has, for each member, a native path for IPv4 and one over VXLAN for IPv6.
func candidates(n int) []mesh.Candidate {
	var out []mesh.Candidate
	for i := range n {
		via := netip.AddrFrom4([4]byte{192, 168, byte(1 + i/200), byte(20 + i%200)})
		id := mesh.PeerID(fmt.Sprint("M", i))
		out = append(out,
			mesh.Candidate{Peer: id, Kind: mesh.Native, Link: "up0", Via: via, MAC: [6]byte{2, 0, 0, 0, byte(i >> 8), byte(i)}, MTU: 1500, Probe: true, Accept: true, Use: true},
			mesh.Candidate{Peer: id, V6: true, Kind: mesh.VXLAN, Slot: 3, Via: via, Local: netip.MustParseAddr("192.168.1.2"), MAC: [6]byte{2, 9}, MTU: 1450, Probe: true, Accept: true, Use: true})
	}
	return out
}

const uplinkScript = `
ip link add up0 type veth peer name other
ip link set up0 up
ip link set other up
ip addr add 192.168.1.2/20 dev up0
sysctl -qw net.ipv4.conf.up0.rp_filter=1`

func mustSetPaths(t *testing.T, h *Host, p mesh.Paths) {
	t.Helper()
	if outside(t) {
		t.Fatal("SetPaths would run in the host's own network namespace")
	}
	if err := h.SetPaths(context.Background(), p); err != nil {
		t.Fatal(err)
	}
}

func TestSetPaths(t *testing.T) {
	t.Parallel()
	h, p := lanHost(t, 2)
	mustSetPaths(t, h, p.Paths(candidates(2))) // kept for the first Set
	mustSet(t, h, p.Host)
	wantUnchanged(t, h, p.Host)
	// Where the kernel sends packets for pods, and probes. Who may send which, TestNativeSenders and
	// TestStrangersVXLAN ask.
	wantContains(t, "a pod of M0", run(t, "ip route get 10.244.2.5"), "via 192.168.1.20 dev up0", "src 10.244.1.1", "mtu 1500")
	wantContains(t, "a pod of M1", run(t, "ip route get 10.244.2.20"), "via 192.168.1.21 dev up0")
	wantContains(t, "a pod of nobody", run(t, "ip route get 10.244.9.9"), "dev edgemesh-tun")
	wantContains(t, "an IPv6 pod of M0", run(t, "ip -6 route get fd00:2:1::5"), "via fd00:2:1::1 dev edgemesh-vx", "src fd00:1::1", "mtu 1450")
	wantContains(t, "a probe of slot 0", run(t, "ip route get 10.244.2.1 mark 0xe80000"), "via 192.168.1.20 dev up0 table 5220")
	wantContains(t, "a probe of slot 3", run(t, "ip -6 route get fd00:2:1::1 mark 0xeb0000"), "dev edgemesh-vx table 5223")
	for _, no := range []string{"10.244.2.1 mark 0xe90000", "10.244.2.5 mark 0xe80000", "fd00:2:1::5 mark 0xeb0000"} {
		if out, err := exec.Command("ip", append([]string{"route", "get"}, strings.Fields(no)...)...).CombinedOutput(); err == nil {
			t.Errorf("a probe without a route does not end in the blackhole: %s", out)
		}
	}
	if s := run(t, "iptables-save"); strings.Contains(s, "EDGEMESH-SOURCE") {
		t.Errorf("sources are checked twice:\n%s", s)
	}
	wantContains(t, "VXLAN device", run(t, "ip -d link show edgemesh-vx"), "df set", "nolearning")
	mac := mesh.VTEPAddr("M0")
	text := fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x", mac[0], mac[1], mac[2], mac[3], mac[4], mac[5])
	wantContains(t, "fdb", run(t, "bridge fdb show dev edgemesh-vx"), text+" dst 192.168.1.20 self permanent")
	wantContains(t, "neighbours", run(t, "ip -6 neigh show dev edgemesh-vx"), "fd00:2:1::1 lladdr "+text+" PERMANENT")
	if v, _ := sysctl.Read("net/ipv4/conf/up0/rp_filter"); v != "2" {
		t.Errorf("rp_filter of the uplink is %s", v)
	}

	// A path that moves, and one that goes.
	w := candidates(2)[:2]
	w[0].Via = netip.MustParseAddr("192.168.1.99")
	mustSetPaths(t, h, p.Paths(w))
	wantUnchanged(t, h, p.Host)
	wantContains(t, "M0's other path", run(t, "ip route get 10.244.2.5"), "via 192.168.1.99 dev up0")
	wantContains(t, "M1 without a path", run(t, "ip route get 10.244.2.20"), "dev edgemesh-tun")

	// What others change, Set repairs.
	for _, drift := range []string{
		"ip route del 10.244.2.0/28 table 5210", "ip route flush table 5220",
		"nft flush set inet edgemesh native4-28", "nft flush set inet edgemesh vxlan6-64-mac",
		"nft flush chain inet edgemesh vxlan", "nft flush chain inet edgemesh leave", "nft flush chain inet edgemesh lan4",
		"nft delete table inet edgemesh",
		"nft delete table inet edgemesh-nat", "nft flush chain inet edgemesh-nat inside",
		"bridge fdb del " + text + " dev edgemesh-vx dst 192.168.1.20 self", "ip link del edgemesh-vx",
		"ip -6 neigh del fd00:2:1::1 dev edgemesh-vx", "ip route add 10.244.7.0/24 via 192.168.1.7 dev up0 table 5210 proto 210 metric 512",
	} {
		want := found(t)
		run(t, drift)
		if done := mustSet(t, h, p.Host); len(done) == 0 {
			t.Errorf("%s: Set saw nothing", drift)
		}
		if drift != "ip link del edgemesh-vx" { // the new one has another index
			wantFound(t, drift+": repaired", want)
		}
		wantUnchanged(t, h, p.Host)
	}

	mustSetPaths(t, h, mesh.Paths{})
	if now := run(t, "ip route show table 5210"); strings.Contains(now, "metric 512") {
		t.Errorf("all paths are withdrawn:\n%s", now)
	}
	mustSet(t, h, p.Host) // the uplink gets its rp_filter back
	wantUnchanged(t, h, p.Host)

	// Without LAN paths nothing of them is left.
	off := p.Host
	off.LAN = mesh.LAN{}
	mustSet(t, h, off)
	wantUnchanged(t, h, off)
	left := run(t, "iptables-save") + run(t, "ip link") + run(t, "nft list ruleset inet")
	if !strings.Contains(left, "EDGEMESH-SOURCE") || strings.Contains(left, "edgemesh-vx") || strings.Contains(left, "inet edgemesh-nat") || strings.Contains(left, "chain lan4") {
		t.Errorf("LAN paths are off:\n%s", left)
	}
}

// TestStand: the guard is back, with the elements of all paths, while a Set or a probe waits for iptables.
func TestStand(t *testing.T) {
	t.Parallel()
	enter(t)
	run(t, uplinkScript)
	makeTUN(t)
	h := newHost(t)
	h.Stand() // nothing is known of it yet
	p := lanPlan(3)
	off := p.Host
	off.LAN = mesh.LAN{}
	for _, w := range []mesh.Host{p.Host, off} {
		mustSet(t, h, w)
		mustSetPaths(t, h, p.Paths(candidates(3)))
		want, before := found(t), h.Flushed()
		h.mu.Lock()
		for _, damage := range []string{"delete", map[bool]string{true: "flush", false: "delete"}[w.LAN.Native]} { // without sources, rules are the next Set's
			run(t, "nft "+damage+" table inet edgemesh")
			h.Stand()
			wantFound(t, "the guard is back", want)
		}
		h.Stand()
		h.mu.Unlock()
		wantUnchanged(t, h, w)
		if n := h.Flushed() - before; n != 2 {
			t.Errorf("%d flushes were counted, want 2", n)
		}
	}
	if err := h.Cleanup(t.Context()); err != nil {
		t.Fatal(err)
	}
	h.Stand()
	if s := run(t, "nft list tables inet"); s != "" {
		t.Errorf("cleaned up, and back:\n%s", s)
	}
}

func TestCleanupTakesPathsAway(t *testing.T) {
	t.Parallel()
	enter(t)
	run(t, uplinkScript)
	before := foundAtRest(t, "up0", "other")
	makeTUN(t)
	h := newHost(t)
	p := lanPlan(3)
	mustSet(t, h, p.Host)
	mustSetPaths(t, h, p.Paths(candidates(3)))
	if err := h.Cleanup(context.Background()); err != nil {
		t.Fatal(err)
	}
	wantFound(t, "the host as it was before", before)
	if s := run(t, "nft list tables inet"); s != "" {
		t.Errorf("sets are left:\n%s", s)
	}
}

// What stands in the way of VXLAN leaves native paths, and is told.
func TestVXLANNotPossible(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, prepare, says string }{
		{"name taken", "ip link add edgemesh-vx type bridge", "edgemesh-vx is taken"},
		{"name taken by a VXLAN", "ip link add edgemesh-vx type vxlan id 9 dstport 4789", "edgemesh-vx is taken"},
		{"port in use", "ip link add theirs type bridge\nip link set theirs up", "UDP port 5210 is in use"},
		{"port in use, IPv6 underlay", "ip link set lo up", "UDP port 5210 is in use"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			enter(t)
			run(t, uplinkScript)
			run(t, c.prepare)
			v6 := strings.Contains(c.name, "IPv6 underlay")
			var release func()
			if strings.Contains(c.name, "port in use") {
				release = holdUDP(t, mesh.VXLANPort, v6)
			}
			makeTUN(t)
			before := run(t, "ip -d link show type bridge") + run(t, "ip -d link show type vxlan")
			h := newHost(t)
			p := lanPlan(1)
			p.Host.LAN.IPv6Underlay = v6
			can, err := h.Set(t.Context(), p.Host)
			if err != nil {
				t.Fatal(err)
			}
			if can.NoNative != "" || !strings.Contains(can.NoVXLAN, c.says) {
				t.Errorf("Set returned %+v; want no VXLAN alone, with %q", can, c.says)
			}
			mustSetPaths(t, h, p.Paths(candidates(1)))
			wantUnchanged(t, h, p.Host)
			wantContains(t, "table 5210", run(t, "ip route show table 5210"), "10.244.2.0/28 via 192.168.1.20")
			if f := findingOf(t, h.InTheWay(p.Host), "lan"); !strings.HasPrefix(f.Text, "VXLAN paths unavailable: ") {
				t.Errorf("finding is %+v", f)
			}
			if s := run(t, "nft list map inet edgemesh inputs"); strings.Contains(s, VXLANName) {
				t.Errorf("what comes in by an interface that is another program's is not looked at:\n%s", s)
			}
			if s := run(t, "iptables-save"); strings.Contains(s, "dport 5210") {
				t.Errorf("rules for a port that is another program's:\n%s", s)
			}
			if release != nil { // the next pass, 30 s later at most, makes the device
				release()
				// A command that another test starts holds the socket, too, from its fork until its exec.
				fair.Eventually(t, 5*time.Second, "the port is free", func() error {
					can, err := h.Set(t.Context(), p.Host)
					if err == nil && can.NoVXLAN != "" {
						err = errors.New(can.NoVXLAN)
					}
					return err
				})
				wantUnchanged(t, h, p.Host)
				wantContains(t, "VXLAN device", run(t, "ip -d link show "+VXLANName), " dstport 5210 ")
			}
			if err := h.Cleanup(context.Background()); err != nil {
				t.Fatal(err)
			}
			if after := run(t, "ip -d link show type bridge") + run(t, "ip -d link show type vxlan"); !strings.Contains(c.name, "port in use") && after != before {
				t.Errorf("an interface of others is not as it was:\n%s", difference(before, after))
			}
		})
	}
}

// lanHost enters a namespace with uplinks, and plans for that many peers.
func lanHost(t *testing.T, peers int) (*Host, mesh.Plan) {
	t.Helper()
	enter(t)
	run(t, uplinkScript)
	makeTUN(t)
	return newHost(t), lanPlan(peers)
}

// Rules and sets are the same for one member and for a thousand; only routes,
// probe routes and members of sets grow.
func TestThousandPeers(t *testing.T) {
	h, p := lanHost(t, 1000)
	mustSet(t, h, p.Host)
	rules := func() int {
		return strings.Count(run(t, "iptables-save")+run(t, "ip6tables-save"), "\n-A ") + strings.Count(run(t, "ip rule")+run(t, "ip -6 rule"), "\n") +
			len(regexp.MustCompile(`(?m)(accept|drop|return|goto \w+|snat .*)$`).FindAllString(run(t, "nft list table inet edgemesh")+run(t, "nft list table inet edgemesh-nat"), -1))
	}
	mustSetPaths(t, h, p.Paths(candidates(1)))
	one := rules()
	start := time.Now()
	paths := p.Paths(candidates(1000))
	planned := time.Since(start)
	mustSetPaths(t, h, paths)
	all := time.Since(start)
	if n := rules(); n != one {
		t.Errorf("%d rules for 1000 peers, %d for one", n, one)
	}
	if n := strings.Count(run(t, "ip route show table 5210"), "metric 512"); n != 1000 {
		t.Errorf("%d routes", n)
	}
	start = time.Now()
	w := candidates(1000)
	w[500].Use = false
	mustSetPaths(t, h, p.Paths(w))
	t.Logf("1000 peers, native IPv4 and IPv6 over VXLAN: plan %v, plan and apply %v; one path withdrawn after %v; %d rules",
		planned, all, time.Since(start), one)
	wantUnchanged(t, h, p.Host)
}

// TestUplinkGetsItsFilterBack: strict reverse-path filtering comes back with the next
// pass after the last way over an uplink is gone, and by Cleanup, also when the uplink has
// another name meanwhile.
func TestUplinkGetsItsFilterBack(t *testing.T) {
	t.Parallel()
	enter(t)
	run(t, uplinkScript)
	makeTUN(t)
	h := newHost(t)
	p := lanPlan(1)
	mustSet(t, h, p.Host)
	filter := func(link, want string) {
		t.Helper()
		if v, err := sysctl.Read(sysctl.RPFilter(link)); v != want {
			t.Errorf("rp_filter of %s is %q, want %s: %v", link, v, want, err)
		}
	}
	mustSetPaths(t, h, p.Paths(candidates(1)))
	filter("up0", "2")
	mustSetPaths(t, h, mesh.Paths{})
	mustSet(t, h, p.Host)
	filter("up0", "1")
	wantUnchanged(t, h, p.Host)

	mustSetPaths(t, h, p.Paths(candidates(1)))
	filter("up0", "2")
	run(t, "ip link set up0 name lan0")
	if err := h.Cleanup(context.Background()); err != nil {
		t.Fatal(err)
	}
	filter("lan0", "1")
}

// TestUplinkSetDown: the kernel drops the routes of an uplink that is set down; Set works
// meanwhile, and the routes come back with it.
func TestUplinkSetDown(t *testing.T) {
	t.Parallel()
	h, p := lanHost(t, 1)
	mustSet(t, h, p.Host)
	paths := p.Paths(candidates(1))
	mustSetPaths(t, h, paths)
	run(t, "ip link set up0 down")
	mustSet(t, h, p.Host)
	mustSetPaths(t, h, paths)
	wantUnchanged(t, h, p.Host)
	run(t, "ip link set up0 up")
	mustSetPaths(t, h, paths)
	wantUnchanged(t, h, p.Host)
	wantContains(t, "table 5210", run(t, "ip route show table 5210"), "10.244.2.0/28 via 192.168.1.20 dev up0")
}
