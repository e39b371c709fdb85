package host

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"edgemesh/agent/control"
)

func TestBackendIsTheHosts(t *testing.T) {
	plain := modeNFT
	if b := lookup(lookPath).modes(false); len(b) > 0 {
		plain = b[0].mode
	}
	for _, c := range []struct{ name, rules, want string }{
		{"nothing: plain iptables", "", plain},
		{"legacy rules", "iptables-legacy -A INPUT -i lo -j ACCEPT", modeLegacy},
		{"nft rules", "iptables-nft -A INPUT -i lo -j ACCEPT", modeNFT},
		{"IPv6 counts", "iptables-nft -A INPUT -i lo -j ACCEPT\nip6tables-legacy -A INPUT -i lo -j ACCEPT\nip6tables-legacy -A INPUT -i up0 -j ACCEPT", modeLegacy},
		{"more rules win", "iptables-legacy -A INPUT -i lo -j ACCEPT\niptables-legacy -A INPUT -i up0 -j ACCEPT\niptables-nft -A INPUT -i lo -j ACCEPT", modeLegacy},
		{"kubelet's hint wins", "iptables-legacy -A INPUT -i lo -j ACCEPT\niptables-nft -t mangle -N KUBE-IPTABLES-HINT", modeNFT},
		{"kubelet's canary wins", "iptables-nft -A INPUT -i lo -j ACCEPT\niptables-legacy -t mangle -N KUBE-KUBELET-CANARY", modeLegacy},
		{"ours do not count", "iptables-legacy -N EDGEMESH-X\niptables-legacy -A EDGEMESH-X -j DROP\niptables-legacy -I INPUT -j EDGEMESH-X\niptables-nft -A INPUT -i lo -j ACCEPT", modeNFT},
	} {
		t.Run(c.name, func(t *testing.T) {
			enter(t)
			run(t, c.rules)
			v4, v6, why, err := lookup(lookPath).chooseBackends()
			if err != nil {
				t.Fatal(err)
			}
			if v4.mode != c.want || v6 == nil || v6.mode != c.want {
				t.Errorf("chose %+v and %+v (%s), want %s", v4, v6, why, c.want)
			}
		})
	}
}

func TestLookingMakesNoLegacyTables(t *testing.T) {
	enter(t)
	makeTUN(t)
	mustSet(t, newHost(t), dual())
	if legacyInUse(false) || legacyInUse(true) {
		t.Error("the kernel has legacy tables now")
	}
}

func TestOtherBackendIsSwept(t *testing.T) {
	enter(t)
	makeTUN(t)
	run(t, "iptables-legacy -A INPUT -i lo -j ACCEPT")
	mustSet(t, newHost(t), dual())
	wantContains(t, "legacy", run(t, "iptables-legacy-save"), "-A FORWARD ! -i edgemesh-br -j EDGEMESH-FORWARD")
	run(t, "iptables-legacy -D INPUT -i lo -j ACCEPT\niptables-nft -A INPUT -i lo -j ACCEPT")
	h := newHost(t)
	mustSet(t, h, dual())
	if out := run(t, "iptables-legacy-save\nip6tables-legacy-save"); strings.Contains(out, ChainPrefix) {
		t.Errorf("chains are left in the legacy tables:\n%s", out)
	}
	wantContains(t, "nft", run(t, "iptables-nft-save"), "-A FORWARD ! -i edgemesh-br -j EDGEMESH-FORWARD")
	wantUnchanged(t, h, dual())
}

func TestNoIPTables(t *testing.T) {
	enter(t)
	h := newHost(t)
	h.fw.look = func(string) string { return "" }
	_, err := h.set(context.Background(), dual())
	if !errors.Is(err, ErrNoIPTables) || !strings.Contains(err.Error(), "apt install iptables") {
		t.Errorf("error is %v, want ErrNoIPTables with what to do", err)
	}
	// Without a firewall nothing may be forwarded.
	if v, _ := readSysctl("net/ipv4/ip_forward"); v != "0" {
		t.Errorf("ip_forward is %s", v)
	}
	if err := h.Cleanup(context.Background()); err != nil {
		t.Errorf("Cleanup: %v", err)
	}
}

// TestWithoutIPv6: IPv4 works, IPv6 is left alone, the log says so once.
func TestWithoutIPv6(t *testing.T) {
	noIP6Tables := func(name string) string {
		if strings.HasPrefix(name, "ip6") {
			return ""
		}
		return lookPath(name)
	}
	for _, c := range []struct {
		name, prepare, reason string
		look                  lookup
	}{
		{"sysctl", "sysctl -qw net.ipv6.conf.all.disable_ipv6=1", "disable_ipv6", lookPath},
		{"no ip6tables", "", "ip6tables is missing", noIP6Tables},
	} {
		t.Run(c.name, func(t *testing.T) {
			enter(t)
			run(t, c.prepare)
			makeTUN(t)
			var log bytes.Buffer
			h := New(Config{StateDir: t.TempDir(), Log: slog.New(slog.NewTextHandler(&log, nil))})
			h.fw.look = c.look
			mustSet(t, h, dual())
			wantUnchanged(t, h, dual())
			wantContains(t, "table", run(t, "ip route show table 5210"), "10.244.0.0/16 dev edgemesh0")
			if out := run(t, "ip -6 rule\nip -6 route show table all\nip6tables-nft-save"); strings.Contains(out, "5210") || strings.Contains(out, ChainPrefix) {
				t.Errorf("IPv6 was not left alone:\n%s", out)
			}
			if v, _ := readSysctl("net/ipv6/conf/all/forwarding"); v != "0" {
				t.Errorf("IPv6 forwarding is %s, without a firewall", v)
			}
			if n := strings.Count(log.String(), "no IPv6"); n != 1 || !strings.Contains(log.String(), c.reason) {
				t.Errorf("the log says it %d times, want once with %q:\n%s", n, c.reason, &log)
			}
			if f := findingOf(t, h.Check(context.Background(), dual()), "ipv6"); f.Severity != control.Warning || f.Remedy == "" {
				t.Errorf("finding is %+v, want a warning with a remedy", f)
			}
		})
	}
}

// TestBrokenIP6Tables: a kernel without IPv6 NAT, say.
func TestBrokenIP6Tables(t *testing.T) {
	enter(t)
	makeTUN(t)
	dir := t.TempDir()
	for name, script := range map[string]string{
		"ip6tables":      "case \"$*\" in *\"-t nat\"*) echo \"can't initialize table nat\" >&2; exit 3;; esac\nexec " + lookPath("ip6tables-nft") + " \"$@\"",
		"ip6tables-save": "exec " + lookPath("ip6tables-nft") + "-save \"$@\"",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	h := newHost(t)
	h.fw.look = func(name string) string {
		switch {
		case name == "ip6tables":
			return filepath.Join(dir, name)
		case strings.HasPrefix(name, "ip6tables-"):
			return ""
		}
		return lookPath(name)
	}
	mustSet(t, h, dual())
	wantUnchanged(t, h, dual())
	wantContains(t, "table", run(t, "ip route show table 5210"), "10.244.0.0/16 dev edgemesh0")
	if out := run(t, "ip -6 route show table all\nip6tables-nft-save"); strings.Contains(out, "5210") || strings.Contains(out, ChainPrefix) {
		t.Errorf("something of IPv6 is left:\n%s", out)
	}
	if f := findingOf(t, h.Check(context.Background(), dual()), "ipv6"); !strings.Contains(f.Detail, "can't initialize table nat") {
		t.Errorf("finding is %+v, want iptables' own words", f)
	}
}

func TestOnlyIPv6BlocksWithoutIPv6(t *testing.T) {
	enter(t)
	run(t, "sysctl -qw net.ipv6.conf.all.disable_ipv6=1")
	if _, err := newHost(t).set(context.Background(), plan("fd00:1::/64", "fd00::/16")); !errors.Is(err, ErrNoBlock) {
		t.Errorf("error is %v, want ErrNoBlock", err)
	}
}

func TestJumpPosition(t *testing.T) {
	guard := chain{table: "filter", name: chainForward, hook: "FORWARD"}
	accept := chain{table: "filter", name: chainAccept, hook: "FORWARD", last: true}
	others := map[key][]string{
		{"filter", "ufw-reject-forward"}: {"-j REJECT --reject-with icmp-port-unreachable"},
		{"filter", "ufw-after-forward"}:  nil,
		{"filter", "returns"}:            {"-j RETURN", "-j DROP"},
		{"filter", "loop"}:               {"-j loop"},
	}
	for _, c := range []struct {
		name string
		of   chain
		hook []string
		want int
	}{
		{"guard, empty", guard, nil, 0},
		{"guard, behind others", guard, []string{"-j DOCKER-USER", "-j EDGEMESH-FORWARD"}, 0},
		{"accept, empty", accept, nil, 0},
		{"accept, at the end", accept, []string{"-j EDGEMESH-FORWARD", "-j EDGEMESH-ACCEPT"}, 1},
		{"accept, network policy came after it", accept, []string{"-j EDGEMESH-ACCEPT", "-s 10.0.0.1 -d 10.0.0.2 -j DROP"}, 2},
		{"accept, before a catch-all", accept, []string{"-j KUBE-FORWARD", "-j EDGEMESH-ACCEPT", "-j REJECT"}, 1},
		{"accept, before a catch-all with a comment", accept, []string{"-m comment --comment \"last words\" -j DROP"}, 0},
		{"accept, before a chain that is one", accept, []string{"-j ufw-after-forward", "-j ufw-reject-forward"}, 1},
		{"accept, conditional verdicts are none", accept, []string{"-i eth0 -j REJECT", "-j cali-FORWARD"}, 2},
		{"accept, chains that return", accept, []string{"-j returns", "-j loop"}, 2},
	} {
		rs := ruleset{chains: maps.Clone(others)}
		rs.chains[key{"filter", "FORWARD"}] = c.hook
		if have := jumpPosition(rs, c.of); have != c.want {
			t.Errorf("%s: %d, want %d", c.name, have, c.want)
		}
	}
}

func TestNetworkPolicyIsNotBypassed(t *testing.T) {
	enter(t)
	makeTUN(t)
	run(t, "iptables -N KUBE-ROUTER-FORWARD\niptables -A FORWARD -j KUBE-ROUTER-FORWARD\niptables -A FORWARD -j REJECT")
	h := newHost(t)
	mustSet(t, h, dual())
	forward := func() string {
		return strings.Join(parseSave(run(t, "iptables-save")).chains[key{"filter", "FORWARD"}], "\n")
	}
	const last = "-j REJECT --reject-with icmp-port-unreachable"
	if have, want := forward(), "! -i edgemesh-br -j EDGEMESH-FORWARD\n-j KUBE-ROUTER-FORWARD\n-j EDGEMESH-ACCEPT\n"+last; have != want {
		t.Errorf("FORWARD is\n%s\nwant\n%s", have, want)
	}
	wantUnchanged(t, h, dual())
	// An engine that comes later, at either end of the chain.
	run(t, "iptables -I FORWARD -s 10.244.1.5 -d 10.244.2.5 -j DROP\niptables -D FORWARD -j REJECT\niptables -A FORWARD -s 10.244.1.6 -j DROP")
	mustSet(t, h, dual())
	want := "! -i edgemesh-br -j EDGEMESH-FORWARD\n-s 10.244.1.5/32 -d 10.244.2.5/32 -j DROP\n-j KUBE-ROUTER-FORWARD\n-s 10.244.1.6/32 -j DROP\n-j EDGEMESH-ACCEPT"
	if have := forward(); have != want {
		t.Errorf("FORWARD is\n%s\nwant\n%s", have, want)
	}
	wantUnchanged(t, h, dual())
}

func TestRulesDoNotGrowWithMembers(t *testing.T) {
	fs, err := split(dual(), true)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range fs.each {
		n := 0
		for _, c := range f.chains() {
			n += len(c.rules)
		}
		if n > 40 {
			t.Errorf("%d rules for one block and one range", n)
		}
	}
}

func TestParseSave(t *testing.T) {
	rs := parseSave("# c\n*nat\n:POSTROUTING ACCEPT [1:2]\n:EDGEMESH-NAT - [0:0]\n-A POSTROUTING -j EDGEMESH-NAT\n-A EDGEMESH-NAT -s 10.0.0.0/8 -j MASQUERADE\nCOMMIT\n*filter\n:EDGEMESH-NAT - [0:0]\nCOMMIT\n")
	if got := rs.chains[key{"nat", "EDGEMESH-NAT"}]; len(got) != 1 || got[0] != "-s 10.0.0.0/8 -j MASQUERADE" {
		t.Errorf("rules are %q", got)
	}
	if got := rs.chains[key{"filter", "EDGEMESH-NAT"}]; len(got) != 0 {
		t.Errorf("rules of another table are %q", got)
	}
	if rs.policy[key{"nat", "POSTROUTING"}] != "ACCEPT" || rs.policy[key{"nat", "EDGEMESH-NAT"}] != "-" {
		t.Errorf("policies are %v", rs.policy)
	}
}
