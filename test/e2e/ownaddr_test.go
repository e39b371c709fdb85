package e2e

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"edgemesh/test/lab"
	"edgemesh/test/lab/link"
	"edgemesh/test/tier"
)

// newIPv6Pair are two sites with IPv6 behind firewalls, whose NATs for IPv4 are of a kind, 40 ms apart in the full suite. The first node has an
// address of a second prefix, which the kernel does not choose for the other node.
func newIPv6Pair(t *testing.T, kind lab.NAT) *pair {
	t.Helper()
	l := newLab(t)
	relay(t, l, "relay").ServeIPv6() // it sees where the nodes' IPv6 is
	p := &pair{lab: l}
	p.n1, p.n2 = two(kind, kind)(t, l)
	ok(t, p.n1.AddIPv6())
	ok(t, p.n2.AddIPv6())
	ok(t, p.n1.Site.Router.Script("ip -6 addr add 2a05:6:9::1/64 dev lan0 nodad"))
	ok(t, p.n1.Script("ip -6 addr add 2a05:6:9::10/64 dev eth0 nodad"))
	ok(t, l.WAN.Script("ip -6 route add 2a05:6:9::/64 via 2a05:5:0:1::1"))
	if tier.IsLong() { // for gaps alone: an emulator that has to wait for its turn loses neighbour discovery
		_, err := l.InsertLink(t.Context(), p.n1.Site.Router, link.Both(link.Direction{Delay: 20 * time.Millisecond}), 1)
		ok(t, err)
	}
	startAll(t, l)
	p.pod1, p.pod2 = pod(t, p.n1, "one"), pod(t, p.n2, "two")
	curlPods(t, p.pod1, p.pod2, 3*time.Second)
	t.Logf("direct %v after the first packet's answer", p.onPath(t, "direct", 30*time.Second))
	return p
}

// until waits for what is true of the paths of a pair in demand, for nobody looks for better ones without packets, and returns the fair
// time that it took.
func (p *pair) until(t *testing.T, d time.Duration, is func(n1, n2 lab.PeerStatus) error) time.Duration {
	t.Helper()
	ctx, clock := within(t, d), product(t).Start()
	defer clock.Stop()
	var last error // is's: a call that the end of the time cuts says nothing
	ok(t, lab.Until(ctx, 50*time.Millisecond, func() error {
		_ = tryCurl(ctx, p.pod1.NS, p.pod2, pairs(p.pod1, p.pod2)[0][1], pairs(p.pod1, p.pod2)[0][0], time.Second)
		one, err := p.n1.Status(ctx)
		if err != nil {
			return errors.Join(last, err)
		}
		two, err := p.n2.Status(ctx)
		if err != nil {
			return errors.Join(last, err)
		}
		last = is(one.Peer(p.n2.Name), two.Peer(p.n1.Name))
		return last
	}))
	return clock.Elapsed()
}

// onPath waits until both nodes use a path of a kind, and returns how long that took. One over IPv6 is direct here, one over IPv4 punched.
func (p *pair) onPath(t *testing.T, kind string, d time.Duration) time.Duration {
	t.Helper()
	return p.until(t, d, func(n1, n2 lab.PeerStatus) error {
		if n1.Path != kind || n2.Path != kind {
			return fmt.Errorf("paths %s and %s, want %s; %s; %s", n1.Path, n2.Path, kind, n1.Reason, n2.Reason)
		}
		return nil
	})
}

// from waits until the path leads to the first node's other address than used.
func (p *pair) from(t *testing.T, used string) time.Duration {
	t.Helper()
	return p.until(t, time.Minute, func(_, n2 lab.PeerStatus) error {
		if n2.Path != "direct" || strings.Contains(n2.Endpoint, used) {
			return fmt.Errorf("the path is %s, and leads to %s; %s", n2.Path, n2.Endpoint, n2.Reason)
		}
		return nil
	})
}

// TestAddressDeleted deletes the own address that the direct path uses, while there is another one. The full suite measures the gap.
func TestAddressDeleted(t *testing.T) {
	tier.All(t)
	beside(t)
	p := newIPv6Pair(t, lab.Symmetric)
	if !tier.IsLong() {
		ok(t, p.n1.Script("ip -6 addr del 2a05:6:1::10/64 dev eth0"))
		p.from(t, "2a05:6:1::10")
		curlPods(t, p.pod1, p.pod2, 3*time.Second)
		return
	}
	var gaps []float64
	for i := range fullRounds {
		p.onPath(t, "direct", 10*time.Second)
		time.Sleep(2 * time.Second) // sleep: of the session on that path
		wait := pings(t, p.pod1, p.pod2.IP4(), 5*time.Second)
		used := []string{"2a05:6:1::10/64", "2a05:6:9::10/64"}[i%2]
		ok(t, p.n1.Script("ip -6 addr del "+used+" dev eth0"))
		gaps = append(gaps, wait())
		t.Logf("direct again at most %v later", p.onPath(t, "direct", 10*time.Second))
		ok(t, p.n1.Script("ip -6 addr add "+used+" dev eth0 nodad"))
		time.Sleep(2 * time.Second) // sleep: the address is announced
	}
	heldAll(t, gaps, 500)
}

// TestPrefixLost has a site's router lose the prefix of the address that the kernel chooses, silently: the node still has it. The full
// suite measures the gap.
func TestPrefixLost(t *testing.T) {
	tier.All(t)
	beside(t)
	p := newIPv6Pair(t, lab.Symmetric)
	lose := func() {
		ok(t, p.lab.WAN.Script("ip -6 route del 2a05:6:1::/64", "ip -6 route add blackhole 2a05:6:1::/64"))
	}
	if !tier.IsLong() {
		lose()
		p.from(t, "2a05:6:1::10")
		return
	}
	time.Sleep(2 * time.Second) // sleep: of the session on that path
	wait := pings(t, p.pod1, p.pod2.IP4(), 12*time.Second)
	lose()
	took := p.from(t, "2a05:6:1::10")
	if t.Logf("direct from the other address after %v", took); took > 5*time.Second {
		t.Errorf("direct from the other address after %v, want at most 5 s", took)
	}
	if gap := wait(); gap > 5000 {
		t.Errorf("gap %.0f ms, want at most 5 s", gap)
	}
}

// TestNewAddressDeleted gives a node an address that the kernel prefers for paths which began without it, and deletes it again.
func TestNewAddressDeleted(t *testing.T) {
	tier.Long(t)
	beside(t)
	p := newIPv6Pair(t, lab.Symmetric)
	ok(t, p.n1.Site.Router.Script("ip -6 addr add 2a05:6:3::1/64 dev lan0 nodad"))
	ok(t, p.lab.WAN.Script("ip -6 route add 2a05:6:3::/64 via 2a05:5:0:1::1"))
	for _, router := range []*lab.NS{p.n1.Site.Router, p.n2.Site.Router} { // so that what QUIC sends from another source arrives
		ok(t, router.Script("ip6tables -w -I FORWARD -p udp -j ACCEPT"))
	}
	ok(t, p.n2.Site.Router.Script("ip6tables -w -I FORWARD -p tcp -j DROP"))
	p.onPath(t, "direct", 20*time.Second)
	var gaps []float64
	for range fullRounds {
		ok(t, p.n1.Script("ip -6 addr add 2a05:6:3::10/64 dev eth0 nodad")) // by longest match the kernel's choice for 2a05:6:2::
		time.Sleep(3 * time.Second)                                         // sleep: the address is announced
		wait := pings(t, p.pod1, p.pod2.IP4(), 5*time.Second)
		ok(t, p.n1.Script("ip -6 addr del 2a05:6:3::10/64 dev eth0"))
		gaps = append(gaps, wait())
		p.onPath(t, "direct", 20*time.Second)
	}
	heldAll(t, gaps, 500)
}

// TestIPv6ComesBack cuts IPv6 between two sites whose IPv4 is punched, and has it back.
func TestIPv6ComesBack(t *testing.T) {
	tier.Long(t)
	beside(t)
	p := newIPv6Pair(t, lab.EIM)
	time.Sleep(2 * time.Second) // sleep: of the session on that path
	ok(t, p.lab.WAN.Script("ip6tables -w -I FORWARD -j DROP"))
	wait := pings(t, p.pod1, p.pod2.IP4(), 60*time.Second)
	p.onPath(t, "punched", 30*time.Second)
	time.Sleep(10 * time.Second) // sleep: IPv6 is cut
	ok(t, p.lab.WAN.Script("ip6tables -w -D FORWARD -j DROP"))
	if took := p.onPath(t, "direct", 45*time.Second); took > 30*time.Second {
		t.Errorf("over IPv6 again after %v, want at most 30 s", took)
	} else {
		t.Logf("over IPv6 again after %v", took)
	}
	_ = wait()
}
