package host

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"edgemesh/agent/findings"
	"edgemesh/agent/host/rtnetlink"
	"edgemesh/internal/membership/mesh"
	"edgemesh/test/fair"
	"edgemesh/test/sniff"
)

// wgQuickUp is what wg-quick (wireguard-tools 1.0.20210914, function add_default) does for a tunnel that takes all traffic, in
// that order; its interface is a bridge here, for not every kernel has WireGuard.
const wgQuickUp = `
ip -4 rule add not fwmark 51820 table 51820
ip -4 rule add table main suppress_prefixlength 0`

const wgQuickDown = `
ip -4 rule delete table 51820
ip -4 rule delete table main suppress_prefixlength 0`

// vpn prepares the interface and the table of a VPN that takes all traffic.
const vpn = `
ip link add wg0 type bridge
ip addr add 10.9.9.2/32 dev wg0` + sends + `
ip -4 route add 0.0.0.0/0 dev wg0 table 51820`

// sends sets the bridge wg0 up, with a port and without address resolution: what is routed there leaves, and is seen.
const sends = `
ip link add wg0p type veth peer name wg0q
ip link set wg0p master wg0
ip link set wg0 arp off
ip link set wg0p up
ip link set wg0q up
ip link set wg0 up`

// routed fails unless the kernel sends a packet to the given interface.
func routed(query, dev string) error {
	out, err := exec.Command("ip", strings.Fields("route get "+query)...).CombinedOutput() // in this thread's namespace
	if err != nil || !strings.Contains(string(out), " dev "+dev+" ") {
		return fmt.Errorf("%s: %s, want %s (%w)", query, out, dev, err)
	}
	return nil
}

// sniff watches all interfaces of the node, from now on. left lists, once more packets have had their time, what has left in clear since
// the call before.
func (l *lab) sniff() (left func() []sniff.Frame) {
	l.t.Helper()
	s, err := sniff.Start(dual().ClusterCIDRs, func(link string) bool { return link == "vethA" || link == "vethB" })
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { s.Close() })
	known := 0
	return func() []sniff.Frame {
		l.t.Helper()
		time.Sleep(50 * time.Millisecond) // sleep: what is on its way is seen
		seen, err := s.Seen()
		if err != nil {
			l.t.Fatal(err)
		}
		defer func() { known = len(seen) }()
		return seen[known:]
	}
}

// talk has a pod send to far pods of both IP versions, all the time, until the function returned is called.
func (l *lab) talk() (end func()) {
	l.t.Helper()
	a, b := l.listen(l.podA, podA4, 0), l.listen(l.podA, podA6, 0)
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-quit:
				return
			case <-time.After(time.Millisecond):
				_, _ = send(a, "talk", far4, serverPort), send(b, "talk", far6, serverPort) // dropped ones may fail
			}
		}
	}()
	return func() { close(quit); <-done }
}

// beside checks a host with a VPN: pods take the tunnel, the LAN is reachable, all else takes the VPN, and so do the agent's
// own sockets.
func (l *lab) beside(query map[string]string) {
	l.t.Helper()
	began := time.Now()
	fair.Eventually(l.t, deadline, "packets go where they should", func() error {
		for q, dev := range query {
			if err := routed(q, dev); err != nil {
				return fmt.Errorf("%w\n%s", err, run(l.t, "ip rule"))
			}
		}
		return nil
	})
	l.t.Logf("after %s", time.Since(began).Round(time.Millisecond))
}

// TestBesideVPN: wg-quick before and after the agent, and again and again. Its two rules stay in the order that it needs.
func TestBesideVPN(t *testing.T) {
	wanted := map[string]string{
		far4: TUNName, far4 + " from " + podA4 + " iif " + BridgeName: TUNName, far4 + " mark 0x100": TUNName, podA4: BridgeName,
		lanHost4: "up0", "198.51.100.9": "wg0", "198.51.100.9 mark 0xed0000": "wg0", lanHost4 + " mark 0xed0000": "up0",
	}
	without := map[string]string{far4: TUNName, "198.51.100.9": "up0", "198.51.100.9 mark 0xed0000": "up0"}
	for _, first := range []bool{true, false} {
		t.Run(fmt.Sprintf("first=%v", first), func(t *testing.T) {
			prepare := vpn
			if first {
				prepare += wgQuickUp
			}
			l := newLab(t, prepare)
			left := l.sniff()
			_, end := listenTo(t, l.host)
			defer end()
			quiet := l.talk()
			for range 3 {
				if !first {
					l.beside(without)
					run(t, wgQuickUp)
				}
				l.beside(wanted)
				rules := run(t, "ip rule")
				if strings.Index(rules, "suppress_prefixlength 0") > strings.Index(rules, "not from all fwmark 0xca6c") {
					t.Errorf("wg-quick's rules changed places:\n%s", rules)
				}
				run(t, wgQuickDown)
				l.beside(without)
				if first = false; t.Failed() {
					break
				}
			}
			quiet()
			if frames := left(); len(frames) > 0 {
				t.Errorf("left in clear: %v", frames)
			}
			fair.Eventually(t, deadline, "ours are before main again", func() error {
				if rules := run(t, "ip rule"); !strings.Contains(rules, "32765:	not") {
					return errors.New(rules)
				}
				return nil
			})
			wantUnchanged(t, l.host, dual())
		})
	}
}

// TestTwoProviders: what the agent's own sockets send from the second provider's address leaves there, as every other program's
// packets do.
func TestTwoProviders(t *testing.T) {
	l := newLab(t, "ip link add up1 type bridge\nip addr add 203.0.113.40/24 dev up1"+strings.ReplaceAll(sends, "wg0", "up1")+"\nip route add default via 203.0.113.1 dev up1 table 102")
	left := l.sniff()
	_, end := listenTo(t, l.host)
	defer end()
	quiet := l.talk()
	run(t, "ip rule add pref 32760 from 203.0.113.40 lookup 102")
	l.beside(map[string]string{
		"198.51.100.9 from 203.0.113.40 mark 0xed0000": "up1", "198.51.100.9 mark 0xed0000": "up0", "198.51.100.9 from 203.0.113.40": "up1",
		far4: TUNName, far4 + " from 203.0.113.40": TUNName,
	})
	quiet()
	if frames := left(); len(frames) > 0 {
		t.Errorf("left in clear: %v", frames)
	}
}

// TestRuleBeforeOursOnPurpose: a program that chooses priorities before ours is answered three times an hour; then the finding
// names its rule. Before priority 1 there is no place.
func TestRuleBeforeOursOnPurpose(t *testing.T) {
	l := newLab(t, "ip route add default via "+lanHost4+" table 1")
	left := l.sniff()
	_, end := listenTo(t, l.host)
	defer end()
	way := func() (text string) {
		for _, f := range l.host.InTheWay(dual()) {
			if f.ID == "way" && f.Severity == findings.Broken {
				text += f.Text
			}
		}
		return text
	}
	quiet := l.talk()
	for _, priority := range []int{2001, 1001, 20} {
		run(t, fmt.Sprintf("ip rule add pref %d from all lookup 1", priority))
		l.beside(map[string]string{far4: TUNName, far4 + " from " + podA4 + " iif " + BridgeName: TUNName})
		if s := way(); s != "" {
			t.Errorf("before rule %d: %s", priority, s)
		}
	}
	run(t, "ip rule add pref 2 to 10.244.0.0/16 lookup 1")
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	for ctx.Err() == nil {
		if err := routed(far4, TUNName); err == nil {
			time.Sleep(10 * time.Millisecond) // sleep: between attempts
		}
	}
	if s := way(); !strings.Contains(s, "rule 2: to 10.244.0.0/16 lookup 1") {
		t.Errorf("the finding is %q", s)
	}
	quiet()
	if frames := left(); len(frames) > 0 {
		t.Errorf("left in clear: %v", frames)
	}
}

// TestRulesOfEveryKind: whatever a rule that comes before ours says, and whichever rules are deleted, of both IP versions, pods' packets take
// the tunnel again.
func TestRulesOfEveryKind(t *testing.T) {
	l := newLab(t, "ip route add default via "+lanHost4+" table 1\nip -6 route add default via "+lanHost6+" table 1")
	left := l.sniff()
	_, end := listenTo(t, l.host)
	defer end()
	quiet := l.talk()
	for _, c := range []struct{ do, undo string }{
		{"add uidrange 0-99999 lookup 1", "del uidrange 0-99999 lookup 1"},
		{"add iif edgemesh-br lookup 1", "del iif edgemesh-br lookup 1"},
		{"add oif up0 lookup 1", "del oif up0 lookup 1"},
		{"add ipproto udp dport 9376 lookup 1", "del ipproto udp dport 9376 lookup 1"},
		{"add tos 0x00 lookup 1 suppress_prefixlength 1", "del lookup 1"},
		{"add lookup main suppress_prefixlength 0", "del lookup main suppress_prefixlength 0"},
		{"add unreachable", "del unreachable"},
		{"add pref 300 goto 32766", "del pref 300"},
		{"add pref 301 prohibit", "del pref 301"},
		{"add pref 200 from all lookup local", "del pref 200"},
		{"del pref 0", "add pref 0 lookup local"},
		{"flush", "add pref 32766 lookup main"},
		{"del lookup 5210", ""},
	} {
		for _, version := range []string{"-4", "-6"} {
			do := func(what string) {
				t.Helper()
				if what != "" {
					run(t, "ip "+version+" rule "+what)
				}
				far, pod := far4, podA4
				if version == "-6" {
					far, pod = far6, podA6
				}
				fair.Eventually(t, deadline, version+" "+what, func() error { return routed(far+" from "+pod+" iif "+BridgeName, TUNName) })
			}
			do(c.do)
			do(c.undo)
			l.host.policy.Forget() // an hour's answers
			mustSet(t, l.host, dual())
		}
	}
	quiet()
	if frames := left(); len(frames) > 0 {
		t.Errorf("left in clear: %d: %v", len(frames), frames[:min(len(frames), 5)])
	}
	wantUnchanged(t, l.host, dual())
}

// marks is what mwan3 does with packets of its first provider, in place of its rule 2001 before every place of ours.
const marks = `
%[1]s -t mangle -%[2]s PREROUTING -j MARK --set-xmark 0x100/0x3f00
%[1]s -t mangle -%[2]s OUTPUT -m mark --mark 0x0/0x3f00 -j MARK --set-xmark 0x100/0x3f00
ip %[3]s rule %[4]s pref 1 fwmark 0x100/0x3f00 lookup 1`

// TestMarksOfOthers: a program that marks all packets, and routes by its mark. Where its rule comes after our start, ours are
// put before it. Where they cannot, nothing leaves in clear: not to a router of the same link on which a peer is reached
// natively, either. The finding names mark and rule, without any traffic of pods, too.
func TestMarksOfOthers(t *testing.T) {
	l := newLab(t, "ip route add default via "+lanHost4+" table 1\nip -6 route add default via "+lanHost6+" table 1")
	l.in(l.lan, func() { run(t, "ip addr add 192.168.1.51/24 dev lan0\nip addr add 2001:db8:1::51/64 dev lan0 nodad") })
	left := l.sniff()
	_, end := listenTo(t, l.host)
	defer end()
	for name, v := range versions("nft") {
		t.Logf("%s", name)
		version, via, block, chain := "-4", "192.168.1.51", "10.244.2.0/24", "outside4"
		if name == "IPv6" {
			version, via, block, chain = "-6", "2001:db8:1::51", "fd00:2::/64", "outside6"
		}
		on, off := fmt.Sprintf(marks, v.iptables, "A", version, "add"), fmt.Sprintf(marks, v.iptables, "D", version, "del")
		pod, node := l.listen(l.podA, v.podA, 0), l.listen(l.node, anyOf(v), 0)

		run(t, strings.Replace(on, "pref 1 ", "pref 2001 ", 1))
		fair.Eventually(t, deadline, "ours are before a rule with a number", func() error {
			if rules := run(t, "ip "+version+" rule"); strings.Index(rules, "lookup 5210") > strings.Index(rules, "2001:") {
				return errors.New(rules)
			}
			return nil
		})
		before := l.lanSaw()
		left() // over the native path, before
		send(pod, "marked", v.far, serverPort)
		l.fromTUN("marked")
		run(t, strings.Replace(off, "pref 1 ", "pref 2001 ", 1))

		run(t, on)
		l.droppedByGuard(chain, func() { send(pod, "marked, first", v.far, serverPort) })
		l.droppedByGuard(chain, func() { send(node, "marked, of the node", v.far, serverPort) })
		rule := "rule 1: fwmark 0x100/0x3f00 lookup 1"
		if f := findingOf(t, l.host.InTheWay(dual()), "way"); f.Severity != findings.Broken || !strings.Contains(f.Text, rule) ||
			!strings.Contains(f.Text, "with mark 0x100") || !strings.Contains(f.Text, "interface up0") || !strings.Contains(f.Remedy, "mark 0x100") {
			t.Errorf("finding is %+v", f)
		}
		hop := mesh.Hop{Kind: mesh.Native, Link: "up0", Via: netip.MustParseAddr(via)}
		mustSetPaths(t, l.host, mesh.Paths{Routes: []mesh.PathRoute{{Block: netip.MustParsePrefix(block), Hop: hop}}})
		l.droppedByGuard(chain, func() { send(pod, "marked, beside a native path", v.far, serverPort) })
		if after, frames := l.lanSaw(), left(); after != before || len(frames) > 0 {
			t.Errorf("left in clear: %v\n%s\nbefore:\n%s", frames, after, before)
		}
		run(t, off)
		send(pod, "native", v.far, serverPort)
		fair.Eventually(t, deadline, "the native path carries packets", fair.True(func() bool { return l.lanSaw() != before }))
		mustSetPaths(t, l.host, mesh.Paths{})
		if s := l.host.InTheWay(dual()); len(s) > 0 {
			t.Errorf("nothing is in the way, and the findings are %+v", s)
		}
		send(pod, "tunnel", v.far, serverPort)
		l.fromTUN("tunnel")
	}
}

// TestOtherHopsOverIPv6: beside a native path of IPv4 over an IPv6 next hop, which the kernel does not show to the firewall, packets that a
// foreign route sends over the same interface are dropped: to another IPv6 next hop, an IPv4 one, and without any.
func TestOtherHopsOverIPv6(t *testing.T) {
	t.Parallel()
	l := newLab(t, "")
	if !rtnetlink.Realms() {
		t.Skip("NOT RUN: this kernel has no realms (CONFIG_IP_ROUTE_CLASSID)")
	}
	l.in(l.lan, func() { run(t, "ip addr add 2001:db8:1::51/64 dev lan0 nodad") })
	hop := mesh.Hop{Kind: mesh.Native, Link: "up0", Via: netip.MustParseAddr("2001:db8:1::51")}
	mustSetPaths(t, l.host, mesh.Paths{Routes: []mesh.PathRoute{{Block: netip.MustParsePrefix("10.244.2.0/24"), Hop: hop}}})
	pod := l.listen(l.podA, podA4, 0)
	before := l.lanSaw()
	fair.Eventually(t, deadline, "the native path carries packets", func() error {
		send(pod, "native", far4, serverPort)
		if l.lanSaw() == before {
			return errors.New("none")
		}
		return nil
	})
	wantUnchanged(t, l.host, dual())
	run(t, fmt.Sprintf(marks, "iptables-nft", "A", "-4", "add"))
	for _, route := range []string{"default via inet6 2001:db8:1::50 dev up0", "default dev up0 scope link", "default via " + lanHost4} {
		run(t, "ip -4 route replace "+route+" table 1\nip neigh replace "+far4+" lladdr 02:00:00:00:00:09 dev up0")
		time.Sleep(50 * time.Millisecond) // sleep: what was on its way
		left := l.sniff()
		l.droppedByGuard("outside4", func() { send(pod, "marked", far4, serverPort) })
		if frames := left(); len(frames) > 0 {
			t.Errorf("by %s: left in clear: %v", route, frames)
		}
	}
}

// TestNothingLeavesInClear without nf_tables, and what doctor finds where no pod has sent anything.
func TestNothingLeavesInClear(t *testing.T) {
	t.Parallel()
	prepare := "ip route add default via " + lanHost4 + " table 1\nip rule add pref 1 fwmark 0x100/0x3f00 lookup 1\niptables-nft -t mangle -A PREROUTING -j MARK --set-xmark 0x100/0x3f00"
	l := newLab(t, prepare)
	if f := findingOf(t, l.host.Check(t.Context(), dual()), "way"); f.Severity != findings.Broken || !strings.Contains(f.Text, "rule 1: fwmark 0x100/0x3f00 lookup 1") {
		t.Errorf("doctor: %+v", f)
	}
	l.host.refused = "no nf_tables, as far as this test is concerned"
	w := dual()
	mustSet(t, l.host, w)
	before, pod, left := l.lanSaw(), l.listen(l.podA, podA4, 0), l.sniff()
	l.dropped("iptables-"+backendsOf(t, "iptables")[0]+"-save", "EDGEMESH-OUTSIDE", func() { send(pod, "marked", far4, serverPort) })
	if after, frames := l.lanSaw(), left(); after != before || len(frames) > 0 {
		t.Errorf("left in clear: %v\n%s\nbefore:\n%s", frames, after, before)
	}
	wantUnchanged(t, l.host, w)
	// A peer on the LAN that has an address of the ranges is found, and answered when it solicits.
	mangle := run(t, "ip6tables-"+backendsOf(t, "iptables")[0]+"-save -t mangle")
	for _, kind := range []string{"135", "136"} {
		wantContains(t, "mangle", mangle, "-A EDGEMESH-OUTSIDE -p ipv6-icmp -m icmp6 --icmpv6-type "+kind+" -m addrtype --src-type LOCAL -j RETURN")
	}
}
