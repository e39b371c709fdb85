package e2e

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"edgemesh/test/lab"
	"edgemesh/test/tier"
)

// stands is where a node stands, as the matrix goes, and what it needs of the other side.
type stands struct {
	name string
	put  func(t *testing.T, l *lab.Lab, name string) *lab.Node
	// random: nobody can tell its ports. noUDP: only TCP leaves. proxy: only an HTTP proxy leads out. open: it, or one port of
	// it, is reached by all. ipv6: so is every port over IPv6 once something has left from it.
	random, noUDP, proxy, open, ipv6 bool
}

func behind(kind lab.NAT) func(*testing.T, *lab.Lab, string) *lab.Node {
	return func(t *testing.T, l *lab.Lab, name string) *lab.Node {
		t.Helper()
		return at(t, l, name, kind)
	}
}

func everywhere() []stands {
	return []stands{
		{name: "public", put: behind(public), open: true},
		{name: "full cone", put: behind(lab.Cone), open: true},
		{name: "port-restricted", put: behind(lab.EIM)},
		{name: "random", put: behind(lab.Symmetric), random: true},
		{name: "sequential", put: behind(lab.Sequential), random: true},
		{name: "CGN + cone", put: func(t *testing.T, l *lab.Lab, name string) *lab.Node {
			t.Helper()
			c, err := l.AddCarrier("carrier-of-"+name, lab.EIM)
			ok(t, err)
			home, err := l.AddSiteBehind(c, "home-of-"+name, lab.EIM)
			ok(t, err)
			return node(t, home, name, lab.NodeOptions{})
		}},
		{name: "UDP-blocked", noUDP: true, put: func(t *testing.T, l *lab.Lab, name string) *lab.Node {
			t.Helper()
			n := at(t, l, name, lab.EIM)
			ok(t, n.Site.Router.Script(noUDP))
			return n
		}},
		{name: "proxy-only", proxy: true, put: func(t *testing.T, l *lab.Lab, name string) *lab.Node {
			t.Helper()
			n := at(t, l, name, lab.EIM)
			onlyProxy(t, l, n.Site, "")
			throughProxy(t, n, "")
			return n
		}},
		{name: "IPv6 firewall", random: true, ipv6: true, put: func(t *testing.T, l *lab.Lab, name string) *lab.Node {
			t.Helper()
			n := at(t, l, name, lab.Symmetric)
			ok(t, n.AddIPv6())
			return n
		}},
		{name: "two uplinks", put: func(t *testing.T, l *lab.Lab, name string) *lab.Node {
			t.Helper()
			n := at(t, l, name, lab.EIM)
			modem(t, l, n, "modem-of-"+name)
			return n
		}},
	}
}

// best is the path that a pair is promised, and within what time.
func best(a, b stands) (paths []string, within time.Duration) {
	unmet := func(a, b stands) bool { // a's ports are random, and b cannot take part in guessing them
		return a.random && !b.open && (b.random || b.noUDP)
	}
	switch {
	case a.proxy || b.proxy:
		return []string{"relayed"}, time.Second
	case a.ipv6 && b.ipv6:
		return []string{"direct"}, 10 * time.Second
	case unmet(a, b) || unmet(b, a):
		return []string{"relayed"}, time.Second
	case a.open && b.open:
		return []string{"direct", "punched"}, 10 * time.Second
	case a.random || b.random:
		return []string{"punched", "direct"}, 30 * time.Second
	}
	return []string{"punched", "direct"}, 10 * time.Second
}

// TestMatrix holds what is promised for all pairs of places, and prints the path and the time of each.
func TestMatrix(t *testing.T) {
	tier.Long(t)
	matrix(t, meet)
}

// matrix prints what meet says of all pairs of places.
func matrix(t *testing.T, meet func(t *testing.T, a, b stands) string) {
	t.Helper()
	places := everywhere()
	var mu sync.Mutex // guards table
	table := make(map[string]string)
	t.Run("pairs", func(t *testing.T) {
		for i, a := range places {
			for _, b := range places[i:] {
				t.Run(a.name+" - "+b.name, func(t *testing.T) {
					beside(t)
					got := meet(t, a, b)
					mu.Lock()
					defer mu.Unlock()
					table[a.name+b.name], table[b.name+a.name] = got, got
				})
			}
		}
	})
	var out strings.Builder
	for _, a := range places {
		fmt.Fprintf(&out, "| %s |", a.name)
		for _, b := range places {
			fmt.Fprintf(&out, " %s |", table[a.name+b.name])
		}
		out.WriteByte('\n')
	}
	t.Logf("\n%s", out.String())
}

// meet builds a pair and returns its path and when it was there.
func meet(t *testing.T, a, b stands) string {
	t.Helper()
	l := newLab(t)
	r := relay(t, l, "relay")
	r.ListenIPv6()
	r.Listen = append(r.Listen, "/ip4/0.0.0.0/tcp/443") // where proxies let connections go
	l.Cluster.Relays = append(l.Cluster.Relays, "/ip4/"+r.Addr+"/tcp/443/p2p/"+r.PeerID)
	p := &pair{lab: l}
	p.n1, p.n2 = a.put(t, l, "edge-1"), b.put(t, l, "edge-2")
	startAll(t, l)
	p.pod1, p.pod2 = pod(t, p.n1, "one"), pod(t, p.n2, "two")
	paths, most := best(a, b)
	start, left := time.Now(), within(t, most+50*time.Millisecond)
	curl(t, p.pod1.NS, p.pod2, p.pod2.IP4(), p.pod1.IP4(), time.Second)
	st, err := p.n1.WaitPath(left, p.n2, paths...)
	if err != nil {
		t.Error(err)
	}
	took := time.Since(start)
	if slices.Contains(paths, "relayed") { // and nothing else comes of it
		for stay := stopwatch(t); stay() < 12*time.Second; {
			pings(t, p.pod1, p.pod2.IP4(), time.Second)()
		}
		p.onPaths(t, 5*time.Second, paths...)
		return fmt.Sprintf("relayed %.1f s", took.Seconds())
	}
	return fmt.Sprintf("%s %.1f s", st.Path, took.Seconds())
}
