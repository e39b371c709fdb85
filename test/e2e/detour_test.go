package e2e

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"edgemesh/test/lab"
	"edgemesh/test/lab/link"
)

// TestDetour compares a direct path with the relayed one where the direct way is the worse one: the internet takes a detour
// between the two sites, or loses packets there, and not on the way to the relay, which is 40 ms of round trip in all. It
// prints what pings and 30 MB take on each (docs/measurements, "worse direct paths").
func TestDetour(t *testing.T) {
	slow(t)
	for _, direct := range []struct {
		rtt  time.Duration
		loss float64 // of each direction
	}{
		{rtt: 40 * time.Millisecond},
		{rtt: 60 * time.Millisecond},
		{rtt: 120 * time.Millisecond},
		{rtt: 40 * time.Millisecond, loss: 0.01},
		{rtt: 40 * time.Millisecond, loss: 0.05},
	} {
		t.Run(fmt.Sprintf("%v, %g %%", direct.rtt, 100*direct.loss), func(t *testing.T) {
			l := newLab(t)
			r := relay(t, l, "relay")
			r.Bandwidth = 1000 // nobody takes a detour through a relay that does not know
			p := &pair{lab: l, n1: at(t, l, "edge-1", lab.EIM), n2: at(t, l, "edge-2", lab.EIM)}
			around := cloud(t, l, "around", lab.NodeOptions{NoAgent: true})
			ok(t, around.Script("sysctl -qw net.ipv4.ip_forward=1",
				"sysctl -qw net.ipv4.conf.all.send_redirects=0 net.ipv4.conf.wan0.send_redirects=0"))
			insert := func(n *lab.NS, d link.Direction) *lab.Link {
				k, err := l.InsertLink(t.Context(), n, link.Both(d), 1)
				ok(t, err)
				return k
			}
			insert(p.n1.Site.Router, link.Direction{Rate: 50e6, QueueTime: 50 * time.Millisecond}) // the line of a site
			insert(r.NS, link.Direction{Delay: 10 * time.Millisecond})
			detour := insert(around.NS, link.Direction{Delay: direct.rtt / 4, Loss: direct.loss / 2}) // in and out again
			for _, s := range [][2]*lab.Site{{p.n1.Site, p.n2.Site}, {p.n2.Site, p.n1.Site}} {
				ok(t, s[0].Router.Script(fmt.Sprintf("ip route add %s/32 via %s", s[1].WAN, around.Addr)))
			}
			startRelays(t, l)
			ok(t, p.n1.Start())
			ok(t, p.n2.Start())
			ready(t, p.n1, p.n2)
			p.pod1, p.pod2 = pod(t, p.n1, "one"), pod(t, p.n2, "two")
			curl(t, p.pod1.NS, p.pod2, p.pod2.IP4(), p.pod1.IP4(), 3*time.Second)
			p.is(t, "punched", 30*time.Second)
			p.compare(t)
			if direct.rtt < 120*time.Millisecond { // not so much longer than the relayed way: the path stays
				ok(t, around.Script("iptables -w -P FORWARD DROP"))
				p.is(t, "relayed", 30*time.Second)
				p.compare(t)
				return
			}
			p.moves(t, "relayed")
			p.compare(t)
			err := detour.Set(t.Context(), link.Both(link.Direction{}))
			ok(t, err)
			p.moves(t, "punched")
		})
	}
}

// is waits for a path.
func (p *pair) is(t *testing.T, path string, d time.Duration) lab.PeerStatus {
	t.Helper()
	st, err := p.n1.WaitPath(within(t, d), p.n2, path)
	ok(t, err)
	return st
}

// moves waits for another path than the one in use, which carries pings that are not to be lost.
func (p *pair) moves(t *testing.T, path string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	pinged := make(chan string)
	go func() {
		var out string
		for ctx.Err() == nil && (out == "" || strings.Contains(out, " 0% packet loss")) {
			out, _ = p.pod1.Run(t.Context(), "ping", "-q", "-i", "0.05", "-c", "100", "-W", "2", p.pod2.IP4().String())
		}
		pinged <- out
	}()
	start := time.Now()
	st := p.is(t, path, 2*time.Minute)
	t.Logf("%s after %v: %s", st.Path, time.Since(start).Round(time.Second), st.Reason)
	cancel()
	if out := <-pinged; !strings.Contains(out, " 0% packet loss") {
		t.Errorf("pings were lost: %s", out)
	}
	if path == "relayed" && !strings.Contains(st.Reason, "the relayed path takes") {
		t.Errorf("the reason is %q", st.Reason)
	}
}

// compare prints what pings and bulk data take on the path in use.
func (p *pair) compare(t *testing.T) {
	t.Helper()
	time.Sleep(2 * time.Second)
	out, err := p.pod1.Run(within(t, 60*time.Second), "ping", "-q", "-i", "0.05", "-c", "200", "-W", "2", p.pod2.IP4().String())
	ok(t, err)
	lost := regexp.MustCompile(`[\d.]+% packet loss`).FindString(out)
	times := regexp.MustCompile(`= [\d./]+ ms`).FindString(out)
	var b lab.Bulk
	ok(t, p.pod1.Tool(within(t, 120*time.Second), &b, "bulk", "--bytes", "30000000", p.pod2.IP4().String()))
	st, err := p.n1.WaitPath(within(t, 5*time.Second), p.n2, "punched", "relayed")
	ok(t, err)
	t.Logf("%s over %s: pings min/avg/max/mdev %s, %s; 30 MB %.1f Mbit/s", st.Path, st.Transport, times, lost, b.Mbps)
}
