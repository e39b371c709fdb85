package nft

import (
	"net/netip"
	"strings"
	"testing"

	"edgemesh/agent/host/plan"
	"edgemesh/internal/nstest"
)

func TestCheckSeesNativeFilter(t *testing.T) {
	const (
		chain = "nft add table inet strict\nnft add chain inet strict forward_all {type filter hook forward priority 10 ; policy "
		drop  = chain + "drop ; }\n"
		pass  = chain + "accept ; }\n"
		add   = "nft add rule inet strict forward_all "
	)
	for _, c := range []struct {
		name, script string
		warns, sure  bool
	}{
		{"policy", drop, true, true},
		{"firewalld's way", pass + add + "ct state established accept\n" + add + "counter reject with icmpx admin-prohibited", true, true},
		{"range accepted", drop + add + "ip saddr 10.244.0.0/16 accept", false, false},
		{"destination accepted", drop + add + "ip daddr { 10.0.0.0/8, 192.168.0.0/16 } accept", false, false},
		{"bridge accepted", drop + add + "iifname edgemesh-br accept\n" + add + "oifname edgemesh-br accept", false, false},
		{"ours accepted", drop + add + "iifname { edgemesh-br, edgemesh-tun } accept", false, false},
		{"ours by a wildcard", drop + add + "iifname edgemesh-* accept", false, false},
		{"one direction only", drop + add + "iifname edgemesh-br ct state new accept", true, true},
		{"some ports are meant", drop + add + "ip daddr 10.244.0.0/16 tcp dport 80 accept", false, false},
		{"other ports are not", drop + add + "tcp dport { 22, 80 } accept", true, true},
		{"rejects some", pass + add + "ip saddr 10.9.0.0/16 reject", false, false},
		{"drops the range", pass + add + "ip daddr 10.244.0.0/16 drop", true, true},
		{"drops a peer's block", pass + add + "ip saddr 10.244.7.0/24 drop", true, true},
		{"drops blocks of a set", pass + add + "ip saddr { 10.9.0.0/16, 10.244.7.0/24 } drop", true, true},
		{"drops one pod", pass + add + "ip saddr 10.244.7.9 drop", false, false},
		{"drops TCP", pass + add + "ip daddr 10.244.0.0/16 meta l4proto tcp drop", true, false},
		{"drops marked packets", pass + add + "ip daddr 10.244.0.0/16 meta mark 0x10 drop", false, false},
		{"accepts marked packets", drop + add + "meta mark 0x10 accept", true, false},
		{"drops what is not known", pass + add + "ct state vmap { established : accept, related : accept, invalid : drop }", false, false},
		{"in another chain", pass + "nft add chain inet strict pods\n" + add + "oifname vmap { edgemesh-tun : jump pods }\nnft add rule inet strict pods drop", true, true},
		{"the second table", "nft add table inet first\nnft add chain inet first f { type filter hook forward priority 0 ; policy drop ; }\n" +
			"nft add rule inet first f ip saddr 10.244.0.0/16 accept\n" + drop, true, true},
		{"before routing", "nft add table inet strict\nnft add chain inet strict p { type filter hook prerouting priority -300 ; policy accept ; }\n" +
			"nft add rule inet strict p ip saddr 10.244.0.0/16 drop", true, true},
		{"IPv6 alone", pass + add + "meta nfproto ipv6 drop", false, false},
		{"a limit", pass + add + "limit rate over 10/second drop", false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			nstest.Enter(t)
			nstest.Run(t, c.script)
			v4 := plan.Family{Wanted: true, Ranges: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}, Blocks: []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")}}
			detail, remedy, sure := CheckForward(plan.State{Each: [2]plan.Family{v4}})
			if warns := detail != ""; warns != c.warns || sure != c.sure || warns && (!strings.Contains(detail, "inet strict") || remedy == "") {
				t.Errorf("detail %q, sure %v, remedy %q", detail, sure, remedy)
			}
		})
	}
}
