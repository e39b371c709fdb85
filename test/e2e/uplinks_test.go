package e2e

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"edgemesh/test/lab"
	"edgemesh/test/tier"
)

// Two sites whose routers translate IPv6 have the same network inside, and their nodes the same address there. A path is punched
// over IPv6, and never taken for a LAN's; where a firewall forbids that, status says that IPv6 is translated at both ends.
func TestNAT66(t *testing.T) {
	tier.Long(t)
	beside(t)
	l := newLab(t)
	relay(t, l, "relay").ServeIPv6()
	a, b := two(lab.Symmetric, lab.Symmetric)(t, l)
	for _, n := range []*lab.Node{a, b} {
		ok(t, n.Site.Router.Script("sysctl -qw net.ipv6.conf.all.forwarding=1", "ip -6 addr add fd00::1/64 dev lan0 nodad",
			"ip6tables -w -A INPUT -i wan0 -p ipv6-icmp -j ACCEPT",
			"ip6tables -w -A INPUT -i wan0 -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT", "ip6tables -w -A INPUT -i wan0 -j DROP",
			"ip6tables -w -P FORWARD DROP", "ip6tables -w -A FORWARD ! -i wan0 -j ACCEPT",
			"ip6tables -w -A FORWARD -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT",
			"ip6tables -w -t nat -A POSTROUTING -o wan0 -j MASQUERADE"))
		ok(t, n.Script("ip -6 addr add fd00::10/64 dev eth0 nodad", "ip -6 route replace default via fd00::1"))
	}
	startAll(t, l)
	from, to := pod(t, a, "from"), pod(t, b, "to")
	curlPods(t, from, to, 5*time.Second)
	for _, x := range [][2]*lab.Node{{a, b}, {b, a}} {
		p, err := x[0].WaitPath(within(t, 20*time.Second), x[1], "punched")
		if ok(t, err); !strings.HasPrefix(p.Endpoint, "/ip6/2a05:5:") {
			t.Errorf("%s: punched at %s, want over IPv6", x[0].Name, p.Endpoint)
		}
	}
	ok(t, a.Site.Router.Script("ip6tables -w -I FORWARD -d 2a05:5:0:2::/64 -j DROP", "ip6tables -w -I FORWARD -s 2a05:5:0:2::/64 -j DROP"))
	curlPods(t, from, to, 10*time.Second)
	for _, x := range [][2]*lab.Node{{a, b}, {b, a}} {
		ok(t, lab.Until(within(t, 30*time.Second), 100*time.Millisecond, func() error {
			_ = tryCurl(t.Context(), from.NS, to, pairs(from, to)[0][1], pairs(from, to)[0][0], time.Second) // in demand
			p, err := x[0].WaitPath(t.Context(), x[1], "relayed")
			if err == nil && !strings.Contains(p.Reason, "IPv6 is translated here and there (NAT66)") {
				return errors.New(x[0].Name + ": " + p.Reason)
			}
			return err
		}))
	}
}

// A node with IPv6 alone is behind a NAT64, and gets a CLAT while flows run: they continue, and paths made from then on are of
// IPv4. When it goes, NAT64 serves again.
func TestLaterCLAT(t *testing.T) {
	tier.Long(t)
	beside(t)
	l := newLab(t)
	relay(t, l, "relay")
	far := node(t, site(t, l, "far", lab.EIM), "edge-2", lab.NodeOptions{})
	s := site(t, l, "six", lab.EIM)
	n := node(t, s, "edge-1", lab.NodeOptions{})
	ok(t, s.IPv6Only())
	prefix := netip.MustParsePrefix("64:ff9b::/96")
	_, err := s.StartNAT64(prefix)
	ok(t, err)
	startAll(t, l)
	from, to := pod(t, n, "from"), pod(t, far, "to")
	curlPods(t, from, to, 10*time.Second)
	p, err := n.WaitPath(within(t, 20*time.Second), far, "punched")
	if ok(t, err); !p.NAT64 {
		t.Fatalf("the path does not lead through NAT64: %+v", p)
	}
	stop := lasting(t, from.NS, "tcp", to.IP4())
	var clat *lab.Process
	for _, x := range []struct {
		what   string
		do     func() error
		within float64
		nat64  bool
	}{
		{"a CLAT comes", func() (err error) { clat, err = n.StartCLAT(prefix); return err }, 500, true},
		{"paths through NAT64 end", s.ForgetNAT64, 3000, false},
		{"the CLAT goes", func() error { return n.StopCLAT(clat) }, 3000, true},
	} {
		wait := pings(t, from, to.IP4(), 6*time.Second)
		ok(t, x.do())
		gap := wait()
		if t.Logf("%s: a gap of %.0f ms", x.what, gap); gap > x.within && tier.IsLong() { // a figure
			t.Errorf("%s: a gap of %.0f ms, want at most %.0f", x.what, gap, x.within)
		}
		if p, err := n.WaitPath(within(t, 20*time.Second), far, "punched"); err != nil || p.NAT64 != x.nat64 {
			t.Errorf("%s: %s over %s at %s, NAT64 %v: %v", x.what, p.Path, p.Transport, p.Endpoint, p.NAT64, err)
		}
	}
	if g, err := stop(); err != nil || g.Lost > 0 {
		t.Errorf("the TCP flow: %+v: %v", g, err)
	}
}

// Doctor's words about a relay: its UDP is blocked, its IPv6 is broken at this site or at the relay, nothing listens there.
func TestDoctorOfVersions(t *testing.T) {
	tier.Long(t)
	beside(t)
	l := newLab(t)
	r := relay(t, l, "relay")
	r.ServeIPv6()
	n := node(t, site(t, l, "site", lab.EIM), "edge-1", lab.NodeOptions{})
	ok(t, n.AddIPv6())
	startAll(t, l)
	drop := func(op string, families, protocols []string) []string {
		var out []string
		for _, f := range families {
			for _, p := range protocols {
				out = append(out, f+" -w -"+op+" INPUT -p "+p+" --dport 4501 -j DROP")
			}
		}
		return out
	}
	v4, v6 := "iptables", "ip6tables"
	for _, x := range []struct {
		what                string
		families, protocols []string
		id                  string
		text, remedy        string
		never               string // what is not said
	}{
		{"UDP is blocked", []string{v4, v6}, []string{"udp"}, "udp", "answers by TCP, but not by UDP", "open the relay's UDP port", "ip-version"},
		{"IPv6 is broken", []string{v6}, []string{"tcp", "udp"}, "ip-version", "does not answer over IPv6, though it does over the other IP version", "repair IPv6 at this site, or of the relay", "udp"},
		{"UDP over IPv6 is blocked", []string{v6}, []string{"udp"}, "ip-version", "UDP at /ip6/" + r.Addr6(), "open these ports for IPv6", "udp"},
	} {
		ok(t, r.Script(drop("I", x.families, x.protocols)...))
		code, all := doctorOf(t, n)
		ok(t, r.Script(drop("D", x.families, x.protocols)...))
		found := false
		for _, f := range all {
			switch {
			case f.Check == x.id && f.Severity == "warning" && strings.Contains(f.Detail, x.text) && strings.Contains(f.Remedy, x.remedy):
				found = true
			case f.Severity != "ok" && (f.Check == x.never || f.Check == "relay-unreachable"):
				t.Errorf("%s: %+v", x.what, f)
			}
		}
		if !found || code != 0 {
			t.Errorf("%s: exit code %d, and not found: %s with %q and %q: %+v", x.what, code, x.id, x.text, x.remedy, all)
		}
	}
	r.Process.Kill()
	ok(t, lab.Until(within(t, 20*time.Second), 100*time.Millisecond, func() error {
		s, err := n.Status(t.Context())
		if err == nil && slices.ContainsFunc(s.Relays, func(r lab.RelayStatus) bool { return r.Connected }) {
			err = errors.New("the node has not noticed that its relay has ended")
		}
		return err
	}))
	code, all := doctorOf(t, n)
	if i := slices.IndexFunc(all, func(f finding) bool { return f.Check == "relay-unreachable" }); code != 1 || i < 0 || !strings.Contains(all[i].Remedy, "start edgemesh-relay there") {
		t.Errorf("the relay does not run: exit code %d: %+v", code, all)
	}
	ok(t, n.Script("ip route del default", "ip -6 route del default"))
	_, all = doctorOf(t, n)
	if all[0].Check != "uplink" || !strings.Contains(all[0].Detail, "no route leads to a relay") || !strings.Contains(all[0].Remedy, "the default route") {
		t.Errorf("no route: %+v", all)
	}
}
