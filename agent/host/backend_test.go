package host

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"edgemesh/agent/findings"
	"edgemesh/agent/host/iptables"
	"edgemesh/agent/host/plan"
	"edgemesh/agent/host/sysctl"
)

func TestLookingMakesNoLegacyTables(t *testing.T) {
	enter(t)
	makeTUN(t)
	mustSet(t, newHost(t), dual())
	for _, file := range []string{"ip_tables_names", "ip6_tables_names"} {
		if b, err := os.ReadFile("/proc/thread-self/net/" + file); err == nil && len(bytes.TrimSpace(b)) > 0 {
			t.Errorf("the kernel has legacy tables now, %s: %s", file, b)
		}
	}
}

func TestOtherBackendIsSwept(t *testing.T) {
	t.Parallel()
	enter(t)
	makeTUN(t)
	run(t, "iptables-legacy -A INPUT -i lo -j ACCEPT")
	mustSet(t, newHost(t), dual())
	wantOnly := func(backend string) {
		t.Helper()
		for _, program := range []string{"iptables", "ip6tables"} {
			if is := backendsOf(t, program); !slices.Equal(is, []string{backend}) {
				t.Errorf("%s has our chains in %q, want %s alone", program, is, backend)
			}
		}
	}
	wantOnly("legacy")
	run(t, "iptables-legacy -D INPUT -i lo -j ACCEPT\niptables-nft -A INPUT -i lo -j ACCEPT")
	h := newHost(t)
	mustSet(t, h, dual())
	wantOnly("nft")
	wantUnchanged(t, h, dual())
}

func TestNoIPTables(t *testing.T) {
	enter(t)
	h := newHostFinding(t, func(string) string { return "" })
	_, err := h.Set(context.Background(), dual())
	if !errors.Is(err, iptables.ErrNoIPTables) || !strings.Contains(err.Error(), "apt install iptables") {
		t.Errorf("error is %v, want iptables.ErrNoIPTables with what to do", err)
	}
	// Without a firewall nothing may be forwarded.
	if v, _ := sysctl.Read("net/ipv4/ip_forward"); v != "0" {
		t.Errorf("ip_forward is %s", v)
	}
	if err := h.Cleanup(context.Background()); err != nil {
		t.Errorf("Cleanup: %v", err)
	}
}

// TestWithoutIPv6: IPv4 works, IPv6 is left alone, the log says so once.
func TestWithoutIPv6(t *testing.T) {
	t.Parallel()
	noIP6Tables := func(name string) string {
		if strings.HasPrefix(name, "ip6") {
			return ""
		}
		return iptables.LookPath(name)
	}
	for _, c := range []struct {
		name, prepare, reason string
		find                  iptables.Find
	}{
		{"sysctl", "sysctl -qw net.ipv6.conf.all.disable_ipv6=1", "disable_ipv6", iptables.LookPath},
		{"no ip6tables", "", "ip6tables is missing", noIP6Tables},
	} {
		t.Run(c.name, func(t *testing.T) {
			enter(t)
			run(t, c.prepare)
			makeTUN(t)
			var log bytes.Buffer
			h := New(Config{StateDir: t.TempDir(), Log: slog.New(slog.NewTextHandler(&log, nil)), Find: c.find})
			mustSet(t, h, dual())
			wantUnchanged(t, h, dual())
			wantContains(t, "table", run(t, "ip route show table 5210"), "10.244.0.0/16 dev edgemesh-tun")
			if out := run(t, "ip -6 rule\nip -6 route show table all\nip6tables-nft-save"); strings.Contains(out, "5210") || strings.Contains(out, iptables.Prefix) {
				t.Errorf("IPv6 was not left alone:\n%s", out)
			}
			if v, _ := sysctl.Read("net/ipv6/conf/all/forwarding"); v != "0" {
				t.Errorf("IPv6 forwarding is %s, without a firewall", v)
			}
			if n := strings.Count(log.String(), "no IPv6"); n != 1 || !strings.Contains(log.String(), c.reason) {
				t.Errorf("the log says it %d times, want once with %q:\n%s", n, c.reason, &log)
			}
			if f := findingOf(t, h.Check(context.Background(), dual()), "ipv6"); f.Severity != findings.Warning || f.Remedy == "" {
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
	const noNAT = "echo \"can't initialize table nat\" >&2; exit 3"
	for name, script := range map[string]string{
		"ip6tables":         "case \"$*\" in *\"-t nat\"*) " + noNAT + ";; esac\nexec " + iptables.LookPath("ip6tables-nft") + " \"$@\"",
		"ip6tables-save":    "exec " + iptables.LookPath("ip6tables-nft") + "-save \"$@\"",
		"ip6tables-restore": "in=$(cat)\ncase $in in \"*nat\"*) " + noNAT + ";; esac\nprintf '%s\\n' \"$in\" | " + iptables.LookPath("ip6tables-nft") + "-restore \"$@\"",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	h := newHostFinding(t, func(name string) string {
		switch {
		case name == "ip6tables":
			return filepath.Join(dir, name)
		case strings.HasPrefix(name, "ip6tables-"):
			return ""
		}
		return iptables.LookPath(name)
	})
	mustSet(t, h, dual())
	wantUnchanged(t, h, dual())
	wantContains(t, "table", run(t, "ip route show table 5210"), "10.244.0.0/16 dev edgemesh-tun")
	if out := run(t, "ip -6 route show table all\nip6tables-nft-save"); strings.Contains(out, "5210") || strings.Contains(out, iptables.Prefix) {
		t.Errorf("something of IPv6 is left:\n%s", out)
	}
	if f := findingOf(t, h.Check(context.Background(), dual()), "ipv6"); !strings.Contains(f.Text, "can't initialize table nat") {
		t.Errorf("finding is %+v, want iptables' own words", f)
	}
}

func TestOnlyIPv6BlocksWithoutIPv6(t *testing.T) {
	enter(t)
	run(t, "sysctl -qw net.ipv6.conf.all.disable_ipv6=1")
	if _, err := newHost(t).Set(context.Background(), planOf("fd00:1::/64", "fd00::/16")); !errors.Is(err, plan.ErrNoIPv6) {
		t.Errorf("error is %v, want plan.ErrNoIPv6", err)
	}
}

// TestNetworkPolicyIsNotBypassed: what a policy engine drops is dropped, wherever in FORWARD it
// says so; what it leaves alone passes, though the host rejects everything else.
func TestNetworkPolicyIsNotBypassed(t *testing.T) {
	t.Parallel()
	forbid := func(place, pod string, port int) string {
		return fmt.Sprintf("iptables %s -s %s -p udp --dport %d -j DROP\n", place, pod, port)
	}
	l := newLab(t, "iptables -N KUBE-ROUTER-FORWARD\n"+forbid("-A KUBE-ROUTER-FORWARD", podA4, serverPort)+
		"iptables -A FORWARD -j KUBE-ROUTER-FORWARD\niptables -A FORWARD -j REJECT")
	wantUnchanged(t, l.host, dual())
	a := l.listen(l.podA, podA4, serverPort)
	forbidden, allowed := l.listen(l.lan, lanHost4, serverPort), l.listen(l.lan, lanHost4, serverPort+1)
	check := func(when string, ports ...int) {
		t.Helper()
		for _, port := range append(ports, serverPort+1) { // the last one passes, behind the others
			if err := send(a, when, lanHost4, port); err != nil {
				t.Fatal(err)
			}
		}
		l.receive(allowed, when)
		l.nothing(forbidden, when)
	}
	check("an engine before us", serverPort)
	// Engines that come later, at either end of the chain.
	late := l.listen(l.lan, lanHost4, serverPort+2)
	run(t, "iptables -F KUBE-ROUTER-FORWARD\niptables -D FORWARD -j REJECT\n"+forbid("-I FORWARD", podA4, serverPort)+forbid("-A FORWARD", podA4, serverPort+2))
	mustSet(t, l.host, dual())
	wantUnchanged(t, l.host, dual())
	check("engines that came later", serverPort, serverPort+2)
	l.nothing(late, "an engine at the end")
}
