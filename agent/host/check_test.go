package host

import (
	"context"
	"strings"
	"testing"

	"edgemesh/agent/control"
	"edgemesh/cni/conf"
)

func findingOf(t *testing.T, all []control.Finding, name string) control.Finding {
	t.Helper()
	for _, f := range all {
		if f.Check == name {
			return f
		}
	}
	t.Fatalf("no finding %q in %+v", name, all)
	return control.Finding{}
}

func TestCheck(t *testing.T) {
	enter(t)
	h := newHost(t)
	before := found(t)
	for _, f := range h.Check(context.Background(), dual()) {
		if f.Check == "paths" || f.Check == "names" {
			continue // there are none yet; none is taken
		}
		if f.Severity != control.Broken || f.Detail == "" || f.Remedy == "" {
			t.Errorf("nothing is set, and the finding is %+v", f)
		}
	}
	if after := found(t); after != before {
		t.Errorf("Check changed something:\n%s", difference(before, after))
	}

	tun := openTUN(t)
	mustSet(t, h, dual())
	for _, f := range h.Check(context.Background(), dual()) {
		if f.Severity != control.OK {
			t.Errorf("all is set, and the finding is %+v", f)
		}
	}

	for _, c := range []struct{ breakage, repair, name, cause string }{
		{"ip rule del pref 5210", "", "rules", "5210"},
		{"ip route flush table 5210", "", "routes", "blackhole 10.244.0.0/16"},
		{"iptables -D FORWARD ! -i edgemesh-br -j EDGEMESH-FORWARD", "", "firewall", "filter/FORWARD"},
		{"ip link set edgemesh-br down", "", "bridge", "set edgemesh-br up"},
		{"sysctl -qw net.ipv4.ip_forward=0", "", "forwarding", "ip_forward from 0 to 1"},
	} {
		run(t, c.breakage)
		f := findingOf(t, h.Check(context.Background(), dual()), c.name)
		if f.Severity != control.Broken || !strings.Contains(f.Detail, c.cause) || f.Remedy == "" {
			t.Errorf("%s: finding is %+v, want broken, with %q", c.breakage, f, c.cause)
		}
		run(t, c.repair)
		mustSet(t, h, dual())
	}

	tun.Close()
	if f := findingOf(t, h.Check(context.Background(), dual()), "tun"); f.Severity != control.Broken || !strings.Contains(f.Detail, "does not exist") {
		t.Errorf("finding without a TUN is %+v", f)
	}
	makeTUN(t) // there, but nobody holds it
	mustSet(t, h, dual())
	if f := findingOf(t, h.Check(context.Background(), dual()), "tun"); f.Severity != control.Broken || !strings.Contains(f.Detail, "no process") {
		t.Errorf("finding with an unheld TUN is %+v", f)
	}
}

// TestPodsReturnToTheBridge: the bridge is deleted; the pods' interfaces lose it, and get
// it back.
func TestPodsReturnToTheBridge(t *testing.T) {
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
