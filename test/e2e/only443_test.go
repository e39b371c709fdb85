package e2e

import (
	"fmt"
	"testing"
	"time"

	"edgemesh/test/lab"
	"edgemesh/test/tier"
)

// TestOnly443 lets nothing but TCP to port 443 out of two sites.
func TestOnly443(t *testing.T) {
	tier.All(t)
	beside(t)
	for _, ws := range []bool{false, true} {
		name := "tcp"
		if ws {
			name = "ws"
		}
		t.Run(name, func(t *testing.T) {
			beside(t)
			l := newLab(t)
			r := relay(t, l, "relay")
			tail := "/tcp/443"
			if ws {
				tail += "/ws"
			}
			r.Listen = append(r.Listen, "/ip4/0.0.0.0/tcp/443", "/ip4/0.0.0.0/tcp/443/ws")
			l.Cluster.Relays = append(l.Cluster.Relays, "/ip4/"+r.Addr+tail+"/p2p/"+r.PeerID)
			p := &pair{lab: l}
			var routers []*lab.Site
			for i := range 2 {
				s := site(t, l, fmt.Sprintf("site-%d", i+1), lab.EIM)
				lines := []string{
					"iptables -w -I FORWARD -o wan0 -j DROP",
					"iptables -w -I FORWARD -o wan0 -p tcp --dport 443 -j ACCEPT",
				}
				if ws { // only what begins like HTTP gets through
					lines = append(lines,
						"iptables -w -I FORWARD -o wan0 -p tcp --dport 443 -m string --algo bm --string /multistream --to 100 -j DROP")
				}
				ok(t, s.Router.Script(lines...))
				routers = append(routers, s)
			}
			p.n1, p.n2 = node(t, routers[0], "edge-1", lab.NodeOptions{}), node(t, routers[1], "edge-2", lab.NodeOptions{})
			startRelays(t, l)
			start := time.Now()
			for _, n := range l.Nodes() {
				ok(t, n.Start())
			}
			ready(t, p.n1, p.n2)
			p.pod1, p.pod2 = pod(t, p.n1, "one"), pod(t, p.n2, "two")
			ctx := within(t, 10*time.Second)
			err := lab.Until(ctx, 20*time.Millisecond, func() error {
				return tryCurl(ctx, p.pod1.NS, p.pod2, p.pod2.IP4(), p.pod1.IP4(), time.Second)
			})
			if err != nil {
				t.Error(err)
			}
			t.Logf("agents' start to first curl: %d ms", time.Since(start).Milliseconds())
			st, err := p.n1.WaitTransport(within(t, 5*time.Second), p.n2, "relay/"+name)
			ok(t, err)
			t.Logf("%s over %s: %s", st.Path, st.Transport, st.Reason)
			var b lab.Bulk
			if err := p.pod1.Tool(within(t, 60*time.Second), &b, "bulk", "--bytes", "50000000",
				p.pod2.IP4().String()); err != nil ||
				!b.Match {
				t.Errorf("50 MB: %+v %v", b, err)
			}
			t.Logf("%.0f Mbit/s with checksums", b.Mbps)
		})
	}
}
