package host

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"edgemesh/agent/findings"
)

// blocked is what Check says of the host's own firewalls.
func blocked(t *testing.T, h *Host) (out []findings.Finding) {
	t.Helper()
	for _, f := range h.Check(t.Context(), dual()) {
		if f.ID == byIPTables && !strings.Contains(f.Text, "mixed") || f.ID == byNFT {
			out = append(out, f)
		}
	}
	return out
}

// TestNativeFilter: what native nftables of others does with packets between pods, and where.
func TestNativeFilter(t *testing.T) {
	t.Parallel()
	const (
		table = "nft add table inet strict\n"
		chain = table + "nft add chain inet strict forward_all {type filter hook forward priority 10 ; policy "
		drop  = chain + "drop ; }\n"
		pass  = chain + "accept ; }\n"
		add   = "nft add rule inet strict forward_all "
	)
	for _, c := range []struct {
		name, script string
		severity     findings.Severity // OK: nothing is reported
		by           string
	}{
		{"policy", drop, findings.Broken, "chain forward_all, policy drop"},
		{"firewalld's way", pass + add + "ct state established accept\n" + add + "counter reject with icmpx admin-prohibited", findings.Broken, "chain forward_all, handle 3"},
		{"range accepted", drop + add + "ip saddr 10.244.0.0/16 accept\n" + add + "ip6 saddr fd00::/16 accept", findings.OK, ""},
		{"one family is", drop + add + "ip saddr 10.244.0.0/16 accept", findings.Broken, "fd00:"},
		{"destination accepted", drop + add + "ip daddr { 10.0.0.0/8, 192.168.0.0/16 } accept\n" + add + "ip6 daddr fd00::/8 accept", findings.OK, ""},
		{"bridge accepted", drop + add + "iifname edgemesh-br accept\n" + add + "oifname edgemesh-br accept", findings.OK, ""},
		{"ours by a wildcard", drop + add + "iifname edgemesh-* accept", findings.OK, ""},
		{"one direction only", drop + add + "iifname edgemesh-br accept", findings.Broken, "(edgemesh-tun) to"},
		{"the other", drop + add + "iifname edgemesh-tun accept", findings.Broken, "(edgemesh-br) to"},
		{"other ports are not", drop + add + "tcp dport { 22, 80 } accept", findings.Broken, "policy drop"},
		{"rejects some", pass + add + "ip saddr 10.9.0.0/16 reject", findings.OK, ""},
		{"drops the range", pass + add + "ip daddr 10.244.0.0/16 drop", findings.Broken, "handle 2"},
		{"drops UDP", pass + add + "meta l4proto udp drop", findings.Warning, "UDP from"},
		{"drops TCP", pass + add + "ip daddr 10.244.0.0/16 meta l4proto tcp drop", findings.Warning, "may be unreachable: TCP from"},
		{"drops one pod", pass + add + "ip saddr 10.244.7.9 drop", findings.OK, ""},
		{"drops marked packets", pass + add + "meta mark 0x10 drop", findings.OK, ""},
		{"drops what is invalid", pass + add + "ct state vmap { established : accept, related : accept, invalid : drop }", findings.OK, ""},
		{"in another chain", pass + "nft add chain inet strict pods\n" + add + "oifname vmap { edgemesh-tun : jump pods }\nnft add rule inet strict pods drop", findings.Broken, "chain pods, handle"},
		{"the second table", "nft add table inet first\nnft add chain inet first f { type filter hook forward priority 0 ; policy accept ; }\n" + drop, findings.Broken, "inet strict"},
		{"before routing", table + "nft add chain inet strict p { type filter hook prerouting priority -300 ; policy accept ; }\n" +
			"nft add rule inet strict p ip saddr 10.244.0.0/16 drop", findings.Broken, "chain p, handle"},
		{"after it", table + "nft add chain inet strict p { type filter hook postrouting priority 300 ; policy accept ; }\n" +
			"nft add rule inet strict p ip saddr 10.244.0.0/16 drop", findings.Broken, "chain p, handle"},
		{"masqueraded", table + "nft add chain inet strict p { type nat hook postrouting priority 90 ; policy accept ; }\nnft add rule inet strict p masquerade random", findings.OK, ""},
		{"a limit", pass + add + "limit rate over 1000/second burst 10 packets drop", findings.OK, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			enter(t)
			h := newHost(t)
			h.toTUN = writes(openTUN(t))
			mustSet(t, h, dual())
			run(t, c.script)
			found := blocked(t, h)
			if c.severity == findings.OK {
				if len(found) > 0 {
					t.Errorf("found %+v", found)
				}
				return
			}
			if len(found) != 1 || found[0].ID != byNFT || found[0].Severity != c.severity || !strings.Contains(found[0].Text, c.by) ||
				!strings.Contains(found[0].Text, "inet strict") || !strings.Contains(found[0].Remedy, "nft -a list table inet strict") {
				t.Errorf("found %+v, want %s by %s", found, c.severity, c.by)
			}
		})
	}
}

// TestProbeLeavesNothing: no probe arrives anywhere, nor stays in a table of the kernel; and what is left of one that a kill
// interrupted goes with the next, which hears of others' changes meanwhile.
func TestProbeLeavesNothing(t *testing.T) {
	t.Parallel()
	l := newLab(t, "nft add table inet edgemesh-probe\nnft add chain inet edgemesh-probe FORWARD_1")
	l.host.toTUN = writes(l.tun)
	run(t, "ip link add other9 type bridge") // another program's, which sees no packets
	before := found(t)
	l.host.Probe(t.Context(), dual()) // deletes what is left
	if w := l.host.Probe(t.Context(), dual()); len(w) > 0 {
		t.Errorf("a host without faults: %+v", w)
	}
	if l.host.Suspect() {
		t.Error("the probe itself counts as a change")
	}
	if after := found(t); after != before {
		t.Errorf("a probe changed something:\n%s", difference(before, after))
	}
	if tables := run(t, "nft list tables"); strings.Contains(tables, "edgemesh-probe") {
		t.Errorf("its table is still there:\n%s", tables)
	}
	for _, v := range versions("nft") { // the next packet from the TUN is a pod's
		a := l.listen(l.podA, v.podA, 0)
		if err := send(a, "first", v.far, serverPort); err != nil {
			t.Fatal(err)
		}
		l.fromTUN("first")
	}
	if entries := run(t, "conntrack -L -p udp --orig-port-dst 53211"); strings.Contains(entries, "53211") {
		t.Errorf("connections of probes are tracked:\n%s", entries)
	}
	for _, change := range []string{"nft add table inet other", "iptables-legacy -I FORWARD -s 10.9.9.9 -j DROP"} {
		run(t, change)
		if !l.host.Suspect() {
			t.Errorf("nothing noticed of %s", change)
		}
		l.host.Probe(t.Context(), dual())
		if l.host.Suspect() {
			t.Errorf("%s was looked at, and still counts", change)
		}
	}
}

// TestLostUnseen: what no table names, a BPF program or a module, is placed behind the last chain that saw the packet.
func TestLostUnseen(t *testing.T) {
	enter(t)
	h := newHost(t)
	h.toTUN = writes(openTUN(t))
	mustSet(t, h, dual())
	run(t, "sysctl -qw net.ipv4.ip_forward=0")
	if found := blocked(t, h); len(found) > 0 {
		t.Errorf("routing drops them, not a firewall: %+v", found)
	}
}

// TestProbeNameTaken: another program's table under the probe's name stays as it is, and doctor says that nothing was probed.
func TestProbeNameTaken(t *testing.T) {
	t.Parallel()
	enter(t)
	h := newHost(t)
	h.toTUN = writes(openTUN(t))
	mustSet(t, h, dual())
	run(t, "nft add table inet edgemesh-probe\nnft add chain inet edgemesh-probe mine")
	before := run(t, "nft list table inet edgemesh-probe")
	found := blocked(t, h)
	if len(found) != 1 || found[0].Severity != findings.Warning || !strings.Contains(found[0].Text, "not ours") || found[0].Remedy == "" {
		t.Errorf("found %+v", found)
	}
	if after := run(t, "nft list table inet edgemesh-probe"); after != before {
		t.Errorf("changed:\n%s", difference(before, after))
	}
}

// TestRedirected: a forwarded probe that a rule sends to this node itself arrives at no socket, and counts as passed.
func TestRedirected(t *testing.T) {
	t.Parallel()
	enter(t)
	h := newHost(t)
	h.toTUN = writes(openTUN(t))
	mustSet(t, h, dual())
	run(t, "ip link set lo up\nnft add table inet other\nnft add chain inet other d {type nat hook prerouting priority -100 ; }\n"+
		"nft add rule inet other d meta l4proto udp redirect to :5353\n"+
		"nft add chain inet other last {type filter hook input priority 2147483647 ; }\nnft add rule inet other last udp dport 5353 counter")
	if found := blocked(t, h); len(found) > 0 {
		t.Errorf("found %+v", found)
	}
	if rules := run(t, "nft list chain inet other last"); !strings.Contains(rules, "packets 0 ") {
		t.Errorf("probes arrived:\n%s", rules)
	}
}

// TestLANPathTraced: what drops packets between a pod and a far one on a LAN path is named, whichever way they go: a rule by interface or for one
// pod, a switch of the kernel, a rule of routing.
func TestLANPathTraced(t *testing.T) {
	t.Parallel()
	own, far := netip.MustParseAddr("10.244.1.7"), netip.MustParseAddr("10.244.2.5")
	const alone = "about the pod alone"
	for _, c := range []struct{ name, script, id, says, remedy string }{
		{"no fault", "", "", "", ""},
		{"what comes in", "iptables-nft -I FORWARD -i up0 -j DROP", "iptables", "from 10.244.2.5 (up0) to 10.244.1.7 (edgemesh-br), by `-A FORWARD -i up0 -j DROP`", "delete that rule"},
		{"what comes in, legacy", "iptables-legacy -I FORWARD -i up0 -j DROP", "iptables", "(up0) to 10.244.1.7 (edgemesh-br)", "delete that rule"},
		{"what leaves", "iptables-nft -I FORWARD -o up0 -j REJECT", "iptables", "from 10.244.1.7 (edgemesh-br) to 10.244.2.5 (up0)", "delete that rule"},
		{"one pod", "iptables-nft -I FORWARD -i up0 -d 10.244.1.7 -p udp -j DROP", "iptables", "UDP from 10.244.2.5 (up0) to 10.244.1.7 (edgemesh-br)", "delete that rule"},
		{"a pair, before routing", "iptables-nft -t mangle -I PREROUTING -i edgemesh-br -s 10.244.1.7 -d 10.244.2.5 -j DROP", "iptables", "from 10.244.1.7 (edgemesh-br) to 10.244.2.5 (up0)", "delete that rule"},
		{"inside VXLAN", "nft add table inet x\nnft add chain inet x f { type filter hook forward priority 5 ; }\nnft add rule inet x f iifname edgemesh-vx drop", "nftables", "(edgemesh-vx) to fd00:1", "inet x"},
		{"a switch", "sysctl -qw net.ipv4.conf.up0.forwarding=0", "forwarding", "(up0) to 10.244.1.7 (edgemesh-br), by the kernel's switch net/ipv4/conf/up0/forwarding = 0", "IPv4Forwarding=yes"},
		{"of all, IPv6", "sysctl -qw net.ipv6.conf.all.forwarding=0", "forwarding", "net/ipv6/conf/all/forwarding = 0", "sysctl -w"},
		{"the reverse-path filter", "ip route add 10.244.2.0/28 dev edgemesh-tun table 5210 metric 1\nsysctl -qw net.ipv4.conf.up0.rp_filter=1", "forwarding", "net/ipv4/conf/up0/rp_filter = 1", "rp_filter to 2"},
		{alone + ", what comes in", "iptables-nft -I FORWARD -i up0 -d 10.244.1.7 -j DROP", "iptables", "(up0) to 10.244.1.7 (edgemesh-br), by `-A FORWARD -d 10.244.1.7/32 -i up0 -j DROP`", "delete that rule"},
		{alone + ", through the tunnel", "iptables-nft -I FORWARD -i edgemesh-tun -d 10.244.1.7 -j DROP", "iptables", "(edgemesh-tun) to 10.244.1.7 (edgemesh-br)", "delete that rule"},
		{alone + ", no fault", "", "", "", ""},
		{"a rule of routing", "ip rule add pref 1 iif up0 to 10.244.1.0/24 prohibit", "forwarding", "(up0) to 10.244.1.7 (edgemesh-br), by the kernel's routes and rules", "iif up0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			enter(t)
			run(t, "ip link set lo up"+uplinkScript)
			h, p := newHost(t), lanPlan(1)
			h.toTUN = writes(openTUN(t))
			mustSet(t, h, p.Host)
			mustSetPaths(t, h, p.Paths(candidates(1)))
			run(t, c.script)
			about := []netip.Addr{own, far}
			if strings.HasPrefix(c.name, alone) {
				about[1] = netip.Addr{}
			}
			var found []findings.Finding
			for _, f := range h.Check(t.Context(), p.Host, about...) {
				if f.Severity.Wrong() && slices.Contains([]string{"iptables", "nftables", "forwarding"}, f.ID) && !strings.Contains(f.Text, "repair needed") && !strings.Contains(f.Text, "off again") {
					found = append(found, f)
				}
			}
			if c.id == "" {
				if len(found) > 0 {
					t.Errorf("%+v", found)
				}
				return
			}
			if len(found) != 1 || found[0].ID != c.id || !strings.Contains(found[0].Text, c.says) || !strings.Contains(found[0].Remedy, c.remedy) {
				t.Errorf("found %+v, want %s: %s", found, c.id, c.says)
			}
			if left := run(t, "ip -br link"); strings.Contains(left, "edgemesh-probe") {
				t.Errorf("left behind: %s", left)
			}
		})
	}
}
