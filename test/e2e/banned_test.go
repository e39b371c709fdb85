package e2e

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"edgemesh/internal/membership/mesh"
	"edgemesh/test/lab"
)

// TestBannedInTheTunnel: a member that is banned by its name is cut off within 2 s where its packets take a relay, or a direct
// path of the tunnel, in both directions, and those who are left do not notice.
func TestBannedInTheTunnel(t *testing.T) {
	beside(t)
	for _, kind := range []string{"relayed", "direct"} {
		t.Run(kind, func(t *testing.T) {
			beside(t)
			bannedInTheTunnel(t, kind)
		})
	}
}

func bannedInTheTunnel(t *testing.T, kind string) {
	l := newLab(t)
	relay(t, l, "relay")
	var nodes []*lab.Node
	for i := range 3 {
		name := fmt.Sprintf("edge-%d", i+1)
		if kind == "direct" {
			nodes = append(nodes, cloud(t, l, name, lab.NodeOptions{}))
			continue
		}
		nodes = append(nodes, node(t, site(t, l, fmt.Sprintf("site-%d", i+1), lab.Symmetric), name, lab.NodeOptions{}))
	}
	startAll(t, l)
	thief := nodes[2]
	one, two, stolen := pod(t, nodes[0], "one"), pod(t, nodes[1], "two"), pod(t, thief, "three")
	onPaths := func() {
		t.Helper()
		for _, p := range []*lab.Pod{one, two} {
			curlPods(t, stolen, p, 10*time.Second)
		}
		curlPods(t, one, two, 10*time.Second)
		for _, n := range nodes[:2] {
			for _, pair := range [][2]*lab.Node{{n, thief}, {thief, n}} {
				_, err := pair[0].WaitPath(within(t, 15*time.Second), pair[1], kind)
				ok(t, err)
			}
		}
	}
	ways := [][2]*lab.Pod{{stolen, one}, {one, stolen}, {stolen, two}}
	onPaths()
	answered(t, ways)

	banning := l.Cluster
	banning.Banned = []string{thief.Name}
	for _, n := range nodes[:2] {
		ok(t, lab.ReplaceFile(n.Membership, banning.YAML()))
	}
	ok(t, lab.ReplaceFile(l.Relays[0].Membership, banning.YAML()))
	cutOffWithin2s(t, ways)
	curlPods(t, one, two, 2*time.Second)
	st, err := nodes[0].Status(t.Context())
	ok(t, err)
	if st.Peer(thief.Name).Path != "" || st.Peer(nodes[1].Name).Path != kind {
		t.Errorf("status lists %q to the banned member, %q to the other", st.Peer(thief.Name).Path, st.Peer(nodes[1].Name).Path)
	}
	for _, w := range ways {
		noAnswer(t, w[0].NS, w[1].IP4(), "after the ban: "+w[0].Name+" to "+w[1].Name)
	}

	ok(t, l.WriteMembership())
	ok(t, lab.Until(within(t, 10*time.Second), 100*time.Millisecond, func() error {
		return tryCurl(t.Context(), stolen.NS, one, one.IP4(), stolen.IP4(), time.Second)
	}))
	onPaths()
}

// quickPing is a ping whose answer cutOffWithin2s would wait for.
func quickPing(ctx context.Context, way [2]*lab.Pod) error {
	return way[0].Ping(ctx, way[1].IP4().String(), time.Second, "-W", "0.2")
}

// answered wants every way to answer as fast as cutOffWithin2s asks: its control.
func answered(t *testing.T, ways [][2]*lab.Pod) {
	t.Helper()
	for _, w := range ways {
		ok(t, lab.Until(within(t, 5*time.Second), 20*time.Millisecond, func() error { return quickPing(t.Context(), w) }))
	}
}

// cutOffWithin2s wants each direction to be silent within 2 s from now.
func cutOffWithin2s(t *testing.T, ways [][2]*lab.Pod) {
	t.Helper()
	ctx, elapsed := within(t, 2*time.Second), stopwatch(t)
	var wg sync.WaitGroup
	for _, w := range ways {
		wg.Go(func() {
			err := lab.Until(ctx, 20*time.Millisecond, func() error {
				if quickPing(ctx, w) == nil {
					return errors.New("still answered")
				}
				return ctx.Err()
			})
			if err != nil {
				t.Errorf("%s to %s, after 2 s: %v", w[0].Name, w[1].Name, err)
			}
			t.Logf("%s to %s: cut off after at most %d ms", w[0].Name, w[1].Name, elapsed().Milliseconds())
		})
	}
	wg.Wait()
}

// TestBannedOnTheLAN: a banned member whose packets need no tunnel is cut off within 2 s all the same, whatever it continues
// to send, and those who are left do not notice. Relayed and direct paths are in TestBannedInTheTunnel, the
// punched one is in TestTwoSites.
func TestBannedOnTheLAN(t *testing.T) {
	beside(t)
	for _, kind := range []string{"native", "vxlan"} {
		t.Run(kind, func(t *testing.T) {
			beside(t)
			var thief *lab.Node
			p := newLANPair(t, func(p *lanPair) {
				thief = node(t, p.site, "edge-3", lab.NodeOptions{})
				for _, n := range []*lab.Node{p.n1, p.n2, thief} {
					n.Config.LAN = map[string]any{"native": kind == "native"}
				}
			})
			stolen := pod(t, thief, "three")
			// As the thief may: packets of its own making, as its kernel and VXLAN device would send them.
			frame := []string{"spoof", "--from-mac", macOf(t, thief, "eth0"), "--to-mac", macOf(t, p.n1, "eth0"), "--dev", "eth0"}
			if kind == "vxlan" {
				frame = []string{"spoof", "--from-mac", macOf(t, thief, "edgemesh-vx"), "--to-mac", macOf(t, p.n1, "edgemesh-vx"),
					"--vtep", fmt.Sprintf("%s:%d", p.n1.Addr, mesh.VXLANPort), "--vni", fmt.Sprint(mesh.VXLANID)}
			}
			forge := func() {
				t.Helper()
				ok(t, thief.Tool(t.Context(), nil, append(frame, "--src", stolen.IP4().String(), p.pod1.IP4().String())...))
			}
			onPath := func(wait time.Duration) {
				t.Helper()
				curlPods(t, stolen, p.pod1, wait)
				for _, pair := range [][2]*lab.Node{{p.n1, thief}, {thief, p.n1}} {
					_, err := pair[0].WaitPath(within(t, 15*time.Second), pair[1], kind)
					ok(t, err)
				}
				before := seen(t, p.pod1, stolen.IP4())
				forge() // control
				ok(t, lab.Until(within(t, 3*time.Second), 20*time.Millisecond, func() error {
					if seen(t, p.pod1, stolen.IP4())-before < 3 {
						return errors.New("its own packets do not arrive")
					}
					return nil
				}))
			}
			curlPods(t, p.pod2, p.pod1, 5*time.Second)
			onPath(5 * time.Second)

			banning := p.lab.Cluster
			banning.Banned = []string{thief.PeerID, thief.Name}
			for _, n := range []*lab.Node{p.n1, p.n2} {
				ok(t, lab.ReplaceFile(n.Membership, banning.YAML()))
			}
			ok(t, lab.ReplaceFile(p.lab.Relays[0].Membership, banning.YAML()))
			start, ctx := time.Now(), within(t, 2*time.Second)
			err := lab.Until(ctx, 20*time.Millisecond, func() error {
				before := seen(t, p.pod1, stolen.IP4())
				forge()
				time.Sleep(20 * time.Millisecond) // sleep: the packets arrive, if they do
				if stolen.Ping(ctx, p.pod1.IP4().String(), time.Second, "-W", "0.2") == nil || seen(t, p.pod1, stolen.IP4()) > before {
					return errors.New("its packets still arrive")
				}
				return ctx.Err()
			})
			if err != nil {
				t.Errorf("banned, after 2 s: %v", err)
			}
			t.Logf("cut off after at most %d ms", time.Since(start).Milliseconds())
			before := seen(t, p.pod1, stolen.IP4())
			forge()
			noAnswer(t, stolen.NS, p.pod1.IP4(), "from the banned member")
			noAnswer(t, stolen.NS, p.pod2.IP4(), "from the banned member")
			noAnswer(t, p.pod1.NS, stolen.IP4(), "to the banned member")
			if n := seen(t, p.pod1, stolen.IP4()) - before; n > 0 {
				t.Errorf("%d datagrams of the banned member arrived", n)
			}
			curlPods(t, p.pod2, p.pod1, 2*time.Second)
			ok(t, lab.Until(within(t, time.Second), 50*time.Millisecond, func() error {
				st, err := p.n1.Status(t.Context())
				if err == nil && (st.Peer(thief.Name).Path != "" || st.Peer(p.n2.Name).Path != kind) {
					err = fmt.Errorf("status lists %q to the banned member, %q to the other", st.Peer(thief.Name).Path, st.Peer(p.n2.Name).Path)
				}
				return err
			}))

			ok(t, p.lab.WriteMembership())
			ok(t, lab.Until(within(t, 10*time.Second), 100*time.Millisecond, func() error {
				return tryCurl(t.Context(), stolen.NS, p.pod1, p.pod1.IP4(), stolen.IP4(), time.Second)
			}))
			onPath(5 * time.Second)
		})
	}
}
