package e2e

import (
	"net/netip"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"edgemesh/test/lab"
	"edgemesh/test/tier"
)

// medianMoved is the longest gap of pings, in ms, that half of the moves may see; worstMoved holds for all of them.
const medianMoved = 3000

// move is something that happens to a site's uplink, again and again. No time is left between two of them for what the first
// one broke to repair itself.
type move struct {
	name string
	// prepare makes what do needs; nil: nothing.
	prepare func(t *testing.T, p *pair)
	do      func(t *testing.T, p *pair, i int)
	away    time.Duration // how long the site has no uplink, which no path can repair
}

// away is how long an uplink is cut, and booting how long a router boots.
const away, booting = 3 * time.Second, time.Second

func moves() []move {
	address := func(i int, site byte) netip.Addr { return netip.AddrFrom4([4]byte{5, 5, site, byte(100 + i)}) }
	offline := func(t *testing.T, p *pair, d time.Duration, forget string) {
		t.Helper()
		router := p.lab.Sites[1].Router
		ok(t, router.Script("ip link set wan0 down", forget))
		time.Sleep(d) // sleep: the site is offline
		ok(t, router.Script("ip link set wan0 up", "ip route replace default via "+lab.InternetAddr))
	}
	return []move{
		{name: "address", do: func(t *testing.T, p *pair, i int) {
			t.Helper()
			ok(t, p.lab.Sites[1].SetWAN(address(i, 2)))
		}},
		{name: "both addresses", do: func(t *testing.T, p *pair, i int) {
			t.Helper()
			ok(t, p.lab.Sites[0].SetWAN(address(i, 1)))
			ok(t, p.lab.Sites[1].SetWAN(address(i, 2)))
		}},
		{name: "uplink away", away: away, do: func(t *testing.T, p *pair, _ int) {
			t.Helper()
			offline(t, p, away, "true")
		}},
		{name: "router boots", away: booting, do: func(t *testing.T, p *pair, _ int) {
			t.Helper()
			offline(t, p, booting, "conntrack -F")
		}},
		{name: "second uplink", prepare: func(t *testing.T, p *pair) { t.Helper(); modem(t, p.lab, p.n2, "carrier") }, do: func(t *testing.T, p *pair, i int) {
			t.Helper()
			if i%2 == 0 {
				ok(t, p.n2.Script("ip link set eth0 down"))
				return
			}
			ok(t, p.n2.Script("ip link set eth0 up", "ip route replace default via 192.168.1.1 dev eth0 metric 100"))
		}},
	}
}

// modem gives a node an uplink of its own beside its site's, which is the better one.
func modem(t *testing.T, l *lab.Lab, n *lab.Node, carrier string) {
	t.Helper()
	c, err := l.AddCarrier(carrier, lab.EIM)
	ok(t, err)
	ok(t, l.Wire(n.NS, "wwan0", "100.64.9.2/24", c.Router, "modem0", "100.64.9.1/24"))
	ok(t, n.Script("ip route replace default via 192.168.1.1 dev eth0 metric 100",
		"ip route del default metric 0 2>/dev/null || true",
		"ip route add default via 100.64.9.1 dev wwan0 metric 700"))
}

// TestMoves holds that pings, in either direction and behind either kind of NAT, are back within 5 s, half of them within 3 s,
// whatever happens to a site's uplink, with two relays. EDGEMESH_MOVES says how often it happens (make e2e-moves: 30).
func TestMoves(t *testing.T) {
	tier.All(t)
	beside(t)
	times, _ := strconv.Atoi(os.Getenv("EDGEMESH_MOVES"))
	if times == 0 {
		times = rounds() + 1
	}
	for _, m := range moves() {
		for _, kinds := range [][2]lab.NAT{{lab.EIM, lab.EIM}, {lab.Symmetric, lab.EIM}, {lab.EIM, lab.Symmetric}} {
			t.Run(m.name+" "+string(kinds[0])+"-"+string(kinds[1]), func(t *testing.T) {
				if m.name != "address" || kinds[0] != lab.EIM {
					tier.Long(t)
				}
				beside(t)
				m.hold(t, kinds, times)
			})
		}
	}
}

func (m move) hold(t *testing.T, kinds [2]lab.NAT, times int) {
	t.Helper()
	const between = 11 * time.Second
	p := newPair(t, kinds[0], kinds[1], "relay-2")
	if m.prepare != nil {
		m.prepare(t, p)
	}
	curlPods(t, p.pod1, p.pod2, 3*time.Second)
	time.Sleep(5 * time.Second) // sleep: of the session on the first path
	var there, back []float64
	for i := range times {
		to, from := pings(t, p.pod1, p.pod2.IP4(), between), pings(t, p.pod2, p.pod1.IP4(), between)
		m.do(t, p, i)
		there, back = append(there, to()), append(back, from())
		for _, gap := range []float64{there[i], back[i]} {
			if after := gap - float64(m.away.Milliseconds()); after > worstMoved {
				t.Errorf("move %d: a gap of %.0f ms, %.0f of them with an uplink: want at most %d", i, gap, after, worstMoved)
			}
		}
	}
	noClone(t, p.lab)
	all := slices.Concat(there, back)
	held(t, all, medianMoved+float64(m.away.Milliseconds()))
	t.Logf("%d moves: to the one that moves %.1f s, longest %.1f; from it %.1f s, longest %.1f", times,
		median(there)/1e3, slices.Max(there)/1e3, median(back)/1e3, slices.Max(back)/1e3)
}
