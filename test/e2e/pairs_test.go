package e2e

import (
	"slices"
	"strings"
	"testing"
	"time"

	"edgemesh/test/lab"
	"edgemesh/test/lab/link"
	"edgemesh/test/tier"
)

// public is a node with an address of its own on the internet.
const public lab.NAT = ""

// promise is what a pair of nodes is promised: a path, and within what time.
type promise struct {
	name   string
	place  func(t *testing.T, l *lab.Lab) (a, b *lab.Node)
	paths  []string
	within time.Duration
	reason []string // parts of it, where the path is not the best
	slow   bool     // in the full suite only
	// transport is the path's; "" is any.
	transport string
}

// at places a node behind a router of the kind, or on the internet.
func at(t *testing.T, l *lab.Lab, name string, kind lab.NAT) *lab.Node {
	t.Helper()
	if kind == public {
		return cloud(t, l, name, lab.NodeOptions{})
	}
	return node(t, site(t, l, "site-of-"+name, kind), name, lab.NodeOptions{})
}

func two(a, b lab.NAT) func(*testing.T, *lab.Lab) (*lab.Node, *lab.Node) {
	return func(t *testing.T, l *lab.Lab) (*lab.Node, *lab.Node) {
		t.Helper()
		return at(t, l, "edge-1", a), at(t, l, "edge-2", b)
	}
}

// neighbours are two nodes behind one router, on their own ports or on the same.
func neighbours(listen ...string) func(*testing.T, *lab.Lab) (*lab.Node, *lab.Node) {
	return func(t *testing.T, l *lab.Lab) (*lab.Node, *lab.Node) {
		t.Helper()
		s := site(t, l, "site", lab.EIM)
		a, b := node(t, s, "edge-1", lab.NodeOptions{}), node(t, s, "edge-2", lab.NodeOptions{})
		a.Config.Listen, b.Config.Listen = listen, listen
		return a, b
	}
}

// behindCarrier is a home behind a carrier's NAT, and a home without.
func behindCarrier(t *testing.T, l *lab.Lab) (a, b *lab.Node) {
	t.Helper()
	c, err := l.AddCarrier("carrier", lab.EIM)
	ok(t, err)
	home, err := l.AddSiteBehind(c, "home", lab.EIM)
	ok(t, err)
	return node(t, home, "edge-1", lab.NodeOptions{}), at(t, l, "edge-2", lab.EIM)
}

// farApart puts 15 ms between two sites.
func farApart(a, b lab.NAT) func(*testing.T, *lab.Lab) (*lab.Node, *lab.Node) {
	return func(t *testing.T, l *lab.Lab) (*lab.Node, *lab.Node) {
		t.Helper()
		n1, n2 := two(a, b)(t, l)
		_, err := l.InsertLink(t.Context(), n1.Site.Router, link.Both(link.Direction{Delay: 15 * time.Millisecond}), 1)
		ok(t, err)
		return n1, n2
	}
}

// noUDP is a firewall that lets no UDP out.
const noUDP = "iptables -w -I FORWARD -p udp -j DROP"

// withoutUDP is a site whose firewall lets no UDP out.
func withoutUDP(t *testing.T, l *lab.Lab) (a, b *lab.Node) {
	t.Helper()
	a, b = two(lab.EIM, lab.EIM)(t, l)
	ok(t, a.Site.Router.Script(noUDP))
	return a, b
}

// bothWithoutUDP are two sites whose firewalls let no UDP out.
func bothWithoutUDP(a, b lab.NAT) func(*testing.T, *lab.Lab) (*lab.Node, *lab.Node) {
	return func(t *testing.T, l *lab.Lab) (*lab.Node, *lab.Node) {
		t.Helper()
		n1, n2 := two(a, b)(t, l)
		ok(t, n1.Site.Router.Script(noUDP))
		ok(t, n2.Site.Router.Script(noUDP))
		return n1, n2
	}
}

// behindIPv6Firewalls are two sites with IPv6, whose firewalls let in only answers. Their IPv4 leads nowhere directly.
func behindIPv6Firewalls(t *testing.T, l *lab.Lab) (a, b *lab.Node) {
	t.Helper()
	a, b = two(lab.Symmetric, lab.Symmetric)(t, l)
	for _, n := range []*lab.Node{a, b} {
		ok(t, n.AddIPv6())
	}
	return a, b
}

// TestPairs holds what is promised for every pair of places in the world. The
// first packet always flows immediately.
func TestPairs(t *testing.T) {
	tier.All(t)
	beside(t)
	const behindNAT = "both addresses are translated by NAT"
	port := []string{"/ip4/0.0.0.0/tcp/4321", "/ip4/0.0.0.0/udp/4321/quic-v1"}
	for _, tc := range []promise{
		{name: "public-public", place: two(public, public), paths: []string{"direct"}, within: 3 * time.Second},
		{
			name:   "public-keeping",
			place:  two(public, lab.EIM),
			paths:  []string{"direct"},
			within: 3 * time.Second,
		},
		{
			name:   "public-symmetric",
			place:  two(lab.Symmetric, public),
			paths:  []string{"direct"},
			within: 3 * time.Second,
		},
		{
			name:   "public-sequential",
			place:  two(public, lab.Sequential),
			paths:  []string{"direct"},
			within: 3 * time.Second,
			slow:   true,
		},
		{
			name:   "public-rejecting",
			place:  two(public, lab.EIMReject),
			paths:  []string{"direct"},
			within: 3 * time.Second,
			slow:   true,
		},
		{
			name:   "keeping-keeping",
			place:  two(lab.EIM, lab.EIM),
			paths:  []string{"punched"},
			within: 10 * time.Second,
			reason: []string{behindNAT},
		},
		{
			name:   "keeping-rejecting",
			place:  two(lab.EIM, lab.EIMReject),
			paths:  []string{"punched"},
			within: 10 * time.Second,
			slow:   true,
		},
		{
			name:   "keeping-cone",
			place:  two(lab.EIM, lab.Cone),
			paths:  []string{"punched"},
			within: 10 * time.Second,
			slow:   true,
		},
		{
			name:   "rejecting-cone",
			place:  two(lab.EIMReject, lab.Cone),
			paths:  []string{"punched"},
			within: 10 * time.Second,
			slow:   true,
		},
		{
			name:   "cone-symmetric",
			place:  two(lab.Cone, lab.Symmetric),
			paths:  []string{"punched"},
			within: 10 * time.Second,
		},
		// One random NAT against a stable one: ports are guessed.
		{
			name:   "keeping-symmetric",
			place:  two(lab.EIM, lab.Symmetric),
			paths:  []string{"punched"},
			within: 30 * time.Second,
		},
		{
			name:   "symmetric-keeping, far apart",
			place:  farApart(lab.Symmetric, lab.EIM),
			paths:  []string{"punched"},
			within: 30 * time.Second,
			slow:   true,
		},
		{name: "carrier-keeping", place: behindCarrier, paths: []string{"punched"}, within: 10 * time.Second},
		{
			name:   "sequential-keeping",
			place:  two(lab.Sequential, lab.EIM),
			paths:  []string{"punched"},
			within: 20 * time.Second,
		},
		{
			name:   "keeping-sequential",
			place:  two(lab.EIM, lab.Sequential),
			paths:  []string{"punched"},
			within: 20 * time.Second,
			slow:   true,
		},
		{
			name:   "symmetric-symmetric",
			place:  two(lab.Symmetric, lab.Symmetric),
			paths:  []string{"relayed"},
			within: time.Second,
			reason: []string{"relayed: both NATs give each destination another port; last punch ", "timed out (QUIC, TCP)"},
		},
		// Two routers that spoil each other's mappings, unless the packets cross.
		{
			name:   "rejecting-rejecting",
			place:  farApart(lab.EIMReject, lab.EIMReject),
			paths:  []string{"punched"},
			within: 10 * time.Second,
		},
		{
			name:   "keeping-keeping, far apart",
			place:  farApart(lab.EIM, lab.EIM),
			paths:  []string{"punched"},
			within: 10 * time.Second,
			slow:   true,
		},
		{name: "neighbours", place: neighbours(), paths: []string{"direct", "native"}, within: 5 * time.Second},
		{
			name:   "neighbours on one port",
			place:  neighbours(port...),
			paths:  []string{"direct", "native"},
			within: 5 * time.Second,
		},
		{name: "no UDP", place: withoutUDP, paths: []string{"punched"}, within: 10 * time.Second, transport: "tcp"},
		{
			name:      "no UDP on both sides",
			place:     bothWithoutUDP(lab.EIM, lab.EIM),
			paths:     []string{"punched"},
			within:    10 * time.Second,
			transport: "tcp",
		},
		{
			name:      "no UDP on both sides, keeping-rejecting",
			place:     bothWithoutUDP(lab.EIM, lab.EIMReject),
			paths:     []string{"punched"},
			within:    10 * time.Second,
			transport: "tcp",
			slow:      true,
		},
		{name: "IPv6 firewalls", place: behindIPv6Firewalls, paths: []string{"direct"}, within: 10 * time.Second},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.slow {
				tier.Long(t)
			}
			beside(t)
			tc.hold(t)
		})
	}
}

// hold builds the place and wants what is promised.
func (tc promise) hold(t *testing.T) {
	t.Helper()
	l := newLab(t)
	relay(t, l, "relay").ListenIPv6()
	p := &pair{lab: l}
	p.n1, p.n2 = tc.place(t, l)
	startAll(t, l)
	p.pod1, p.pod2 = pod(t, p.n1, "one"), pod(t, p.n2, "two")
	start, elapsed := time.Now(), stopwatch(t)
	curl(t, p.pod1.NS, p.pod2, p.pod2.IP4(), p.pod1.IP4(), time.Second)
	first := time.Since(start)
	var paths []string
	for _, n := range [][2]*lab.Node{{p.n1, p.n2}, {p.n2, p.n1}} {
		st, err := n[0].WaitPath(within(t, tc.within-elapsed()+50*time.Millisecond), n[1], tc.paths...)
		if err != nil {
			t.Error(err)
		}
		paths = append(paths, st.Path+" "+st.Transport)
		if tc.transport != "" && st.Transport != tc.transport {
			t.Errorf("%s over %s, want %s", st.Path, st.Transport, tc.transport)
		}
	}
	t.Logf("first answer after %d ms; %s after %d ms", first.Milliseconds(), strings.Join(paths, ", "),
		time.Since(start).Milliseconds())
	curlPods(t, p.pod2, p.pod1, 3*time.Second)
	if tc.reason != nil {
		err := lab.Until(within(t, 15*time.Second), 100*time.Millisecond, func() error {
			st, err := p.n1.WaitPath(t.Context(), p.n2, tc.paths...)
			if err == nil &&
				slices.ContainsFunc(tc.reason, func(r string) bool { return !strings.Contains(st.Reason, r) }) {
				err = errNoReason(st.Reason)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
}

type errNoReason string

func (e errNoReason) Error() string { return "reason: " + string(e) }
