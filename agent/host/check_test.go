package host

import (
	"context"
	"os"
	"strings"
	"testing"

	"edgemesh/agent/findings"
	"edgemesh/internal/cni/conf"
)

func findingOf(t *testing.T, all []findings.Finding, name string) findings.Finding {
	t.Helper()
	for _, f := range all {
		if f.ID == name {
			return f
		}
	}
	t.Fatalf("no finding %q in %+v", name, all)
	return findings.Finding{}
}

func TestCheck(t *testing.T) {
	t.Parallel()
	enter(t)
	h := newHost(t)
	before := found(t)
	for _, f := range h.Check(context.Background(), dual()) {
		if f.ID == "paths" || f.ID == "names" || f.ID == "interfaces" {
			continue // there are none yet; none is taken; none is configured by others
		}
		if f.Severity != findings.Broken || f.Text == "" || f.Remedy == "" {
			t.Errorf("nothing is set, and the finding is %+v", f)
		}
	}
	if after := found(t); after != before {
		t.Errorf("Check changed something:\n%s", difference(before, after))
	}

	tun := openTUN(t)
	mustSet(t, h, dual())
	for _, f := range h.Check(context.Background(), dual()) {
		if f.Severity != findings.OK {
			t.Errorf("all is set, and the finding is %+v", f)
		}
	}

	for _, c := range []struct{ breakage, repair, name, cause string }{
		{"ip rule del lookup 5210", "", "rules", "5210"},
		{"ip route flush table 5210", "", "routes", "blackhole 10.244.0.0/16"},
		{"iptables -t mangle -D FORWARD ! -i edgemesh-br -j EDGEMESH-FORWARD", "", "firewall", "mangle/FORWARD"},
		{"ip link set edgemesh-br down", "", "bridge", "set edgemesh-br up"},
		{"sysctl -qw net.ipv4.ip_forward=0", "", "forwarding", "ip_forward from 0 to 1"},
	} {
		run(t, c.breakage)
		f := findingOf(t, h.Check(context.Background(), dual()), c.name)
		if f.Severity != findings.Broken || !strings.Contains(f.Text, c.cause) || f.Remedy == "" {
			t.Errorf("%s: finding is %+v, want broken, with %q", c.breakage, f, c.cause)
		}
		run(t, c.repair)
		mustSet(t, h, dual())
	}

	tun.Close()
	if f := findingOf(t, h.Check(context.Background(), dual()), "tun"); f.Severity != findings.Broken || !strings.Contains(f.Text, "does not exist") {
		t.Errorf("finding without a TUN is %+v", f)
	}
	makeTUN(t) // there, but nobody holds it
	mustSet(t, h, dual())
	if f := findingOf(t, h.Check(context.Background(), dual()), "tun"); f.Severity != findings.Broken || !strings.Contains(f.Text, "no process") {
		t.Errorf("finding with an unheld TUN is %+v", f)
	}
}

// TestCheckInput: a firewall of the host that keeps other nodes out is told, with its remedy, until it lets them in.
func TestCheckInput(t *testing.T) {
	t.Parallel()
	const (
		drop   = "%[1]s -P INPUT DROP\n%[1]s -A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\n%[1]s -A INPUT -i lo -j ACCEPT\n%[1]s -A INPUT -p tcp --dport 22 -j ACCEPT"
		native = "nft add table inet strict\nnft add chain inet strict in {type filter hook input priority 0 ; policy drop ; }\nnft add rule inet strict in tcp dport 22 accept"
	)
	for name, c := range map[string]struct {
		closes, opens string
		remedy        string
	}{
		"policy":      {drop, "%[1]s -I INPUT -s 10.244.0.0/16 -j ACCEPT", "iptables -I INPUT -s 10.244.0.0/16 -j ACCEPT"},
		"larger":      {drop, "%[1]s -A INPUT -s 10.0.0.0/8 -p tcp -j ACCEPT", ""},
		"TUN":         {drop, "%[1]s -A INPUT -i edgemesh-tun -j ACCEPT", ""},
		"kubelet":     {drop, "%[1]s -A INPUT -p tcp -m multiport --dports 22,10250 -j ACCEPT", ""},
		"rejects":     {"%[1]s -A INPUT -p tcp --dport 22 -j ACCEPT\n%[1]s -A INPUT -j REJECT", "%[1]s -I INPUT -j ACCEPT", ""},
		"ufw":         {drop + "\n%[1]s -N ufw-user-input\n%[1]s -A INPUT -j ufw-user-input", "%[1]s -A ufw-user-input -s 10.244.0.0/16 -j ACCEPT", "ufw allow from 10.244.0.0/16"},
		"nft":         {native, "nft add rule inet strict in ip saddr 10.244.0.0/16 accept", "accept what comes from the pod ranges"},
		"nft kubelet": {native, "nft add rule inet strict in tcp dport 10250 accept", ""},
	} {
		for _, backend := range []string{"iptables-nft", "iptables-legacy"} {
			t.Run(name+"/"+backend, func(t *testing.T) {
				t.Parallel()
				enter(t)
				h, w := newHost(t), planOf("10.244.1.0/24", "10.244.0.0/16")
				h.toTUN = writes(openTUN(t))
				mustSet(t, h, w)
				if found := h.CheckInput(t.Context(), w); len(found) > 0 {
					t.Errorf("an open host: %+v", found)
				}
				as := func(script string) { run(t, strings.ReplaceAll(script, "%[1]s", backend)) }
				as(c.closes)
				found := h.CheckInput(t.Context(), w)
				if len(found) != 1 || found[0].Severity != findings.Warning || !strings.Contains(found[0].Remedy, c.remedy) {
					t.Errorf("a closed one: %+v", found)
				}
				as(c.opens)
				if found := h.CheckInput(t.Context(), w); len(found) > 0 {
					t.Errorf("opened: %+v", found)
				}
			})
		}
	}
}

// TestCheckForward: rules of others that drop packets between pods are named, whichever backend holds them, and not once they
// are gone.
func TestCheckForward(t *testing.T) {
	t.Parallel()
	for _, backend := range []string{"iptables-nft", "iptables-legacy", "ip6tables-nft", "ip6tables-legacy"} {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			enter(t)
			h := newHost(t)
			h.toTUN = writes(openTUN(t))
			mustSet(t, h, dual())
			inTheWay := func() []findings.Finding { return blocked(t, h) }
			cidr := "10.244.0.0/16"
			if strings.HasPrefix(backend, "ip6") {
				cidr = "fd00::/16"
			}
			for _, rule := range []string{"-d " + cidr + " -j DROP", "-i edgemesh-br -j REJECT", "-s " + cidr + " -p udp -j DROP"} {
				run(t, backend+" -I FORWARD "+rule)
				want := findings.Broken
				if strings.Contains(rule, "udp") {
					want = findings.Warning
				}
				found := inTheWay()
				if len(found) != 1 || found[0].Severity != want || !strings.Contains(found[0].Text, rule) || !strings.Contains(found[0].Remedy, backend) {
					t.Errorf("%s: found %+v", rule, found)
				}
				run(t, backend+" -D FORWARD "+rule)
				if found := inTheWay(); len(found) > 0 {
					t.Errorf("after %s: %+v", rule, found)
				}
			}
			other := map[bool]string{true: strings.Replace(backend, "legacy", "nft", 1), false: strings.Replace(backend, "nft", "legacy", 1)}[strings.HasSuffix(backend, "legacy")]
			run(t, other+" -P FORWARD DROP\n"+backend+" -P FORWARD DROP")
			if found := inTheWay(); len(found) != 1 || found[0].Severity != findings.Broken {
				t.Errorf("both policies drop, one has our accept: %+v", found)
			}
		})
	}
}

// writes hands the kernel packets as from the tunnel.
func writes(tun *os.File) func([]byte) error {
	return func(b []byte) error { _, err := tun.Write(b); return err }
}

// TestPodsReturnToTheBridge: the bridge is deleted; the pods' interfaces lose it, and get
// it back.
func TestPodsReturnToTheBridge(t *testing.T) {
	t.Parallel()
	l := newLab(t, "")
	run(t, "ip link del edgemesh-br")
	setAlias(t, "vethA", conf.PodAlias+podA4+" eth0 0123456789ab edgemesh")
	setAlias(t, "vethB", conf.PodAlias+podB4+" eth0 0123456789cd edgemesh")
	mustSet(t, l.host, dual())
	a, b := l.listen(l.podA, podA4, serverPort), l.listen(l.podB, podB4, serverPort)
	if err := send(a, "again", podB4, serverPort); err != nil {
		t.Fatal(err)
	}
	l.receive(b, "again")
	wantUnchanged(t, l.host, dual())
}
