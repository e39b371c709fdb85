package host

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"edgemesh/agent/findings"
	"edgemesh/agent/host/nft"
	"edgemesh/agent/host/rtnetlink"
)

// TestTaken: what other programs have under our names and numbers is found before
// anything is set, and neither Set nor Cleanup changes the host.
func TestTaken(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, prepare string
		is            error
		says          []string
	}{
		{"bridge", `ip link add edgemesh-br type bridge
ip link set edgemesh-br addrgenmode none
ip addr add 10.9.0.1/24 dev edgemesh-br
ip link set edgemesh-br up`, rtnetlink.ErrNameTaken, []string{"edgemesh-br", "not ours"}},
		{"bridge's name", "ip link add edgemesh-br type veth peer name other", rtnetlink.ErrNameTaken, []string{"edgemesh-br is a veth"}},
		{"TUN's name", "ip link add edgemesh-tun type bridge", rtnetlink.ErrNameTaken, []string{"edgemesh-tun is a bridge"}},
		{"TUN's name, by a TAP", "ip tuntap add dev edgemesh-tun mode tap", rtnetlink.ErrNameTaken, []string{"edgemesh-tun is a tap"}},
		{"nftables table", "nft add table inet edgemesh\nnft add chain inet edgemesh mine", nft.ErrTaken, []string{"inet edgemesh"}},
		{"nftables table for nat", "nft add table inet edgemesh-nat\nnft add chain inet edgemesh-nat mine", nft.ErrTaken, []string{"inet edgemesh-nat"}},
		{"table", "ip link set lo up\nip route add 192.0.2.0/24 dev lo table 5210", rtnetlink.ErrTableTaken, []string{"table 5210", "192.0.2.0/24"}},
		{"table of probes, IPv6", "ip link set lo up\nip -6 route add default dev lo table 5221", rtnetlink.ErrTableTaken, []string{"table 5221", "default"}},
		{"rule to the table", "ip rule add pref 99 from 192.0.2.1 lookup 5210", rtnetlink.ErrTableTaken, []string{"table 5210", "rule 99"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			enter(t)
			run(t, c.prepare)
			if !strings.Contains(c.prepare, "edgemesh-tun") {
				makeTUN(t)
				defer func() { // the one thing Cleanup may take
					if s := run(t, "ip -br link"); strings.Contains(s, "edgemesh-tun") {
						t.Errorf("the TUN is left: %s", s)
					}
				}()
			}
			before := found(t)
			tables := run(t, "nft list tables inet")
			h := newHost(t)
			done, _, err := h.set(context.Background(), dual())
			if !errors.Is(err, c.is) || len(done) != 0 {
				t.Errorf("done %v, error %v; want nothing done, and %v", done, err, c.is)
			}
			for _, s := range c.says {
				if err == nil || !strings.Contains(err.Error(), s) {
					t.Errorf("error %v, want %q in it", err, s)
				}
			}
			if after := found(t); after != before {
				t.Errorf("changed:\n%s", difference(before, after))
			}
			if f := findingOf(t, h.Check(context.Background(), dual()), "names"); f.Severity != findings.Broken || f.Remedy == "" {
				t.Errorf("finding is %+v", f)
			}
			if err := h.Cleanup(context.Background()); err != nil {
				t.Errorf("clean up: %v", err)
			}
			if now := run(t, "nft list tables inet"); now != tables {
				t.Errorf("tables were %q, are %q", tables, now)
			}
			for line := range strings.Lines(difference(before, found(t))) {
				if !strings.Contains(line, "edgemesh-tun") && !strings.Contains(line, "+ ") {
					t.Errorf("clean up took %s", line)
				}
			}
		})
	}
}

// TestOursIsNotTaken: what an agent left is taken up again, whatever came beside it.
func TestOursIsNotTaken(t *testing.T) {
	t.Parallel()
	enter(t)
	makeTUN(t)
	mustSet(t, newHost(t), dual())
	want := found(t)
	run(t, "ip link set edgemesh-br address 02:00:00:00:00:01\nip route add default dev lo table 5210\nip rule add pref 5209 lookup 5210")
	h := newHost(t)
	mustSet(t, h, dual())
	wantFound(t, "the host as it was before", want)
	run(t, "ip route add default dev lo table 5210")
	if err := h.Cleanup(context.Background()); err != nil {
		t.Fatal(err)
	}
	if s := run(t, "ip route show table all"); strings.Contains(s, "5210") {
		t.Errorf("our table is left:\n%s", s)
	}
}

// TestCheckSeesOthersInTheWay: a VPN's rule before ours, rules in both backends.
func TestCheckSeesOthersInTheWay(t *testing.T) {
	t.Parallel()
	enter(t)
	openTUN(t)
	h := newHost(t)
	mustSet(t, h, dual())
	for _, f := range h.Check(context.Background(), dual()) {
		if f.Severity != findings.OK {
			t.Errorf("all is well, and the finding is %+v", f)
		}
	}
	run(t, "ip link add vpn0 type bridge\nip link set vpn0 up\nip route add default dev vpn0 table 100\nip rule add pref 50 lookup 100")
	if f := findingOf(t, h.Check(context.Background(), dual()), "way"); f.Severity != findings.Broken ||
		!strings.Contains(f.Text, "10.244.0.0/16") || !strings.Contains(f.Text, "table 100, interface vpn0") || f.Remedy == "" {
		t.Errorf("finding is %+v", f)
	}
	run(t, "ip rule del pref 50\nip -6 route add default dev vpn0 table 100")
	for rule, names := range map[string]string{
		"-4 rule %s pref 50 iif edgemesh-br lookup 100":                   "packets that come over edgemesh-br from 10.244.1.254",
		"-4 rule %s pref 50 iif edgemesh-tun to 10.244.1.0/24 lookup 100": "packets that come over edgemesh-tun from 10.244.255.255",
		"-4 rule %s pref 50 from 10.244.1.0/24 lookup 100":                "pod range 10.244.0.0/16",
		"-4 rule %s pref 50 to 10.244.2.0/24 lookup 100":                  "pod range 10.244.2.0/24",
		"-4 rule %s pref 50 from 10.244.7.0/24 lookup 100":                "from 10.244.7.255",
		"-4 rule %s pref 50 to 10.244.1.0/24 lookup 100":                  "pod range 10.244.1.0/24",
		"-6 rule %s pref 50 to fd00:2::/64 lookup 100":                    "pod range fd00:2::/64",
		"-4 rule %s pref 32767 to 10.244.2.0/24 lookup 100":               "", // behind ours
		"-4 rule %s pref 50 to 10.9.0.0/16 lookup 100":                    "",
		"-4 rule %s pref 50 iif vpn0 lookup 100":                          "",
	} {
		run(t, "ip "+fmt.Sprintf(rule, "add"))
		var detail string
		for _, f := range h.Check(t.Context(), dual()) {
			if f.ID == "way" && f.Severity == findings.Broken {
				detail = f.Text
			}
		}
		if detail == "" != (names == "") || !strings.Contains(detail, names) {
			t.Errorf("%s: %q, want %q", rule, detail, names)
		}
		run(t, "ip "+fmt.Sprintf(rule, "del"))
	}
	run(t, "ip rule add pref 50 lookup 100")
	ours := strings.Join(backendsOf(t, "iptables"), " and ")
	other := map[string]string{"nft": "legacy", "legacy": "nft"}[ours]
	run(t, "ip rule del pref 50\niptables-"+ours+" -A INPUT -i vpn0 -j ACCEPT\niptables-"+other+" -A FORWARD -i vpn0 -j DROP")
	all := append(h.InTheWay(dual()), h.Probe(context.Background(), dual())...)
	if len(all) != 1 || all[0].ID != "iptables" || !strings.Contains(all[0].Text, "mixed") || !strings.Contains(all[0].Remedy, "iptables-"+ours) {
		t.Errorf("findings are %+v", all)
	}
}
