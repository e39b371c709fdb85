package e2e

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"edgemesh/test/lab"
	"edgemesh/test/tier"
)

// TestMemberIsRelay has no relay but a cloud node that is one.
func TestMemberIsRelay(t *testing.T) {
	tier.All(t)
	beside(t)
	l := newLab(t)
	c := memberRelay(t, l)
	p := &pair{lab: l}
	p.n1 = node(t, site(t, l, "site-1", lab.Symmetric), "edge-1", lab.NodeOptions{})
	p.n2 = node(t, site(t, l, "site-2", lab.Symmetric), "edge-2", lab.NodeOptions{})
	ok(t, l.WriteMembership())
	for _, n := range l.Nodes() {
		ok(t, n.Start())
	}
	ready(t, p.n1, p.n2)
	ok(t, c.WaitPods(within(t, 5*time.Second)))
	p.pod1, p.pod2 = pod(t, p.n1, "one"), pod(t, p.n2, "two")
	on := pod(t, c, "cloud")
	for _, pair := range [][2]*lab.Pod{{p.pod1, p.pod2}, {p.pod1, on}, {on, p.pod2}, {p.pod2, p.pod1}} {
		start := time.Now()
		curlPods(t, pair[0], pair[1], time.Second)
		t.Logf("%s → %s after %d ms", pair[0].Name, pair[1].Name, time.Since(start).Milliseconds())
	}
	st, err := p.n1.WaitPath(within(t, 5*time.Second), p.n2, "relayed")
	ok(t, err)
	if st.Relay != c.PeerID {
		t.Errorf("relayed by %s, want the cloud node", st.Relay)
	}
	for _, n := range l.Nodes() {
		if out, _, err := n.AgentCommand(t.Context(), "doctor", "--runtime-dir", n.Config.RuntimeDir); err != nil {
			t.Errorf("%s: doctor: %v\n%s", n.Name, err, out)
		}
	}
	// The relay restarts under a flow.
	tcp := flow(t, p.pod1, "tcp", 8*time.Second, p.pod2.IP4())
	c.Agent.Kill()
	ok(t, c.Start())
	g, err := tcp()
	if err != nil || g.Lost > 0 || g.FairMs > worstMoved {
		t.Errorf("TCP flow across the restart: %+v: %v", g, err)
	}
	t.Logf("agent with the relay restarted: longest gap %.0f ms", g.GapMs)

	// Listed, but no longer a relay.
	c.Config.Relay = nil
	ok(t, c.Agent.Stop())
	ok(t, c.Start())
	err = lab.Until(within(t, 10*time.Second), 50*time.Millisecond, func() error {
		s, err := p.n1.Status(t.Context())
		if err == nil && (s.Relays[0].Reserved || !strings.Contains(s.Relays[0].Error, "relay.enabled")) {
			err = fmt.Errorf("%+v", s.Relays)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	// The node's answer to its peers comes before the socket that doctor asks.
	err = lab.Until(within(t, 5*time.Second), 50*time.Millisecond, func() error {
		out, _, err := c.AgentCommand(t.Context(), "doctor", "--runtime-dir", c.Config.RuntimeDir)
		if err == nil || !strings.Contains(out, "relay: {enabled: true}") {
			return fmt.Errorf("doctor does not report it: %v\n%s", err, out) //nolint:errorlint // mostly nil
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestIdleCost measures what a node sends to each relay while nobody talks: two
// servers, and a member that is a relay.
func TestIdleCost(t *testing.T) {
	tier.Long(t)
	l := newLab(t)
	to := map[string]string{}
	for _, name := range []string{"relay-1", "relay-2"} {
		to[name] = relay(t, l, name).Addr
	}
	c := memberRelay(t, l)
	to[c.Name] = c.Addr.String()
	n := node(t, site(t, l, "site-1", lab.Symmetric), "edge-1", lab.NodeOptions{})
	startAll(t, l)
	for _, addr := range to {
		ok(t, n.Script("iptables -w -A OUTPUT -d "+addr))
	}
	sent := func() map[string]int {
		out, err := n.Run(context.Background(), "iptables", "-w", "-nvxL", "OUTPUT")
		ok(t, err)
		bytes := map[string]int{}
		for line := range strings.Lines(out) {
			if f := strings.Fields(line); len(f) > 2 {
				if n, err := strconv.Atoi(f[1]); err == nil {
					bytes[f[len(f)-1]] = n
				}
			}
		}
		return bytes
	}
	// Peers, and circuits to them, are closed after three minutes.
	const quietTime, measured = 200 * time.Second, 2 * time.Minute
	time.Sleep(quietTime) // sleep: peers are closed
	before := sent()
	time.Sleep(measured) // sleep: what rest costs
	after := sent()
	for name, addr := range to {
		if after[addr] == 0 {
			t.Errorf("%s: nothing was ever sent", name)
		}
		perMinute := float64(after[addr]-before[addr]) / measured.Minutes()
		t.Logf("%s: %.0f bytes a minute", name, perMinute)
		most := 2000.0
		if name == c.Name { // it is a peer as well, whose paths are probed
			most = 3000
		}
		if perMinute > most {
			t.Errorf("%s: an idle node sends %.0f bytes a minute, want at most %.0f", name, perMinute, most)
		}
	}
}

// memberRelay makes a cloud node that is a relay, and lists it.
func memberRelay(t *testing.T, l *lab.Lab) *lab.Node {
	t.Helper()
	c := cloud(t, l, "cloud-1", lab.NodeOptions{})
	c.Config.Listen = []string{"/ip4/0.0.0.0/tcp/4001", "/ip4/0.0.0.0/udp/4001/quic-v1"}
	c.Config.Relay = map[string]any{"enabled": true}
	for _, a := range []string{"/ip4/%s/tcp/4001/p2p/%s", "/ip4/%s/udp/4001/quic-v1/p2p/%s"} {
		l.Cluster.Relays = append(l.Cluster.Relays, fmt.Sprintf(a, c.Addr, c.PeerID))
	}
	return c
}
