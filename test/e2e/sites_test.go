package e2e

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"edgemesh/test/lab"
)

// sites is the topology most promises are about: two sites behind NATs that keep
// ports, with the same LAN, a cloud node and one relay.
type sites struct {
	lab                         *lab.Lab
	relay                       *lab.Relay
	a, b                        *lab.Site
	edge1, edge2, edge3, cloud1 *lab.Node
	only4, only6                *lab.Node // cloud nodes with blocks of one family
	pod1, near1, pod2, pod3     *lab.Pod  // near1 is pod1's neighbour
	podCloud, pod4, pod6        *lab.Pod
	inner                       []*lab.Process // tcpdump on every TUN, for the agents' own packets
}

// TestTwoSites runs its parts in order on one topology: later ones rely on the
// pods and paths of earlier ones.
func TestTwoSites(t *testing.T) {
	l := newLab(t)
	s := &sites{lab: l, relay: relay(t, l, "relay"), a: site(t, l, "site-a", lab.EIM), b: site(t, l, "site-b", lab.EIM)}
	s.edge1 = node(t, s.a, "edge-1", lab.NodeOptions{})
	s.edge3 = node(t, s.a, "edge-3", lab.NodeOptions{})
	s.edge2 = node(t, s.b, "edge-2", lab.NodeOptions{})
	s.cloud1 = cloud(t, l, "cloud-1", lab.NodeOptions{})
	s.only4 = cloud(t, l, "only-4", lab.NodeOptions{PodCIDRs: []string{"10.244.40.0/24"}})
	s.only6 = cloud(t, l, "only-6", lab.NodeOptions{PodCIDRs: []string{"fd44:44:0:60::/64"}})
	if s.edge1.Addr != s.edge2.Addr {
		t.Fatalf("the sites must have the same addresses: %s and %s", s.edge1.Addr, s.edge2.Addr)
	}
	for _, part := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"StartToFirstCurlWithin5s", s.startToCurl},
		{"PunchedWithin10s", s.punched},
		{"StatusListsIdlePeers", s.idleStatus},
		{"FirstPacketToIdlePeerWithin1s", s.firstPacket},
		{"BulkWhilePathMoves", s.bulkWhilePathMoves},
		{"AllPairsKeepSourceAddress", s.allPairs},
		{"NodeToRemotePod", s.nodeToPod},
		{"NodePortStyleDNAT", s.dnat},
		{"PodToInternetIsMasqueraded", s.toInternet},
		{"UDPUpTo60000Bytes", s.udp},
		{"PingWithDFUpToMTU", s.dfPing},
		{"StatusAndPingContracts", s.contracts},
		{"LANHostCannotReachOrSpoofPods", s.lanHost},
		{"PodCannotSpoofAcrossNodes", s.podSpoof},
		{"AgentKilledAndRestarted", s.agentKilled},
		{"RelayRestarted", s.relayRestarted},
		{"BrokenMembershipKeepsLastGood", s.brokenMembership},
		{"RemovedMemberIsCutOff", s.removedMember},
		{"SecondAgentOnOneStateDirRefused", s.secondAgent},
		{"DoctorNamesCauseAndRemedy", s.doctor},
		{"NothingOfTheTunnelInside", s.nothingInside},
		{"NothingLeaked", s.noLeaks},
	} {
		if !t.Run(part.name, part.run) && part.name == "StartToFirstCurlWithin5s" {
			t.Fatal("no way to go on")
		}
	}
}

// startToCurl starts everything, the relay first.
func (s *sites) startToCurl(t *testing.T) {
	startRelays(t, s.lab)
	start := time.Now()
	ctx := within(t, 5*time.Second)
	for _, n := range s.lab.Nodes() {
		ok(t, n.Start())
	}
	for _, n := range s.lab.Nodes() {
		ok(t, n.WaitPods(ctx))
	}
	s.pod1, s.pod2 = pod(t, s.edge1, "one"), pod(t, s.edge2, "two")
	err := lab.Until(ctx, 20*time.Millisecond, func() error {
		return tryCurl(ctx, s.pod1.NS, s.pod2, s.pod2.IP4(), s.pod1.IP4(), time.Second)
	})
	if err != nil {
		t.Errorf("no curl within 5 s of the agents' start: %v", err)
	}
	t.Logf("agents' start to first curl: %d ms (six agents, pods made meanwhile)", time.Since(start).Milliseconds())

	s.near1, s.pod3, s.podCloud = pod(t, s.edge1, "near"), pod(t, s.edge3, "three"), pod(t, s.cloud1, "cloud")
	s.pod4, s.pod6 = pod(t, s.only4, "four"), pod(t, s.only6, "six")
	ready(t, s.lab.Nodes()...)
	for _, n := range s.lab.Nodes() {
		s.watchInside(t, n)
	}
}

// watchInside lets tcpdump look for packets of the agents' own connections on
// the node's TUN.
func (s *sites) watchInside(t *testing.T, n *lab.Node) {
	t.Helper()
	var ports []string
	for _, m := range s.lab.Nodes() {
		out, err := m.Run(t.Context(), "ss", "-Hltnp")
		ok(t, err)
		for line := range strings.Lines(out) {
			f := strings.Fields(line)
			if len(f) < 4 || !strings.Contains(line, fmt.Sprintf("pid=%d,", m.Agent.PID())) || strings.HasPrefix(f[3], "127.") {
				continue
			}
			ports = append(ports, "port "+f[3][strings.LastIndex(f[3], ":")+1:])
		}
	}
	if len(ports) < len(s.lab.Nodes()) {
		t.Fatalf("agents' ports: %v", ports)
	}
	ports = append(ports, "port 4501")
	p, err := n.NS.Start("inside-"+n.Name, "tcpdump", "-lnni", "edgemesh0", strings.Join(ports, " or "))
	ok(t, err)
	s.inner = append(s.inner, p)
}

func (s *sites) nothingInside(t *testing.T) {
	for _, p := range s.inner {
		ok(t, p.Stop())
		log := p.Tail(1000)
		if !strings.Contains(log, "0 packets captured") {
			t.Errorf("%s: packets of the agents' own connections inside the tunnel:\n%s", p.Name, log)
		}
	}
	var ranges []netip.Prefix
	for _, r := range s.lab.Cluster.PodCIDRs {
		ranges = append(ranges, netip.MustParsePrefix(r))
	}
	for _, n := range s.lab.Nodes() {
		out, err := n.Run(t.Context(), "ss", "-Htunap")
		ok(t, err)
		for line := range strings.Lines(out) {
			if !strings.Contains(line, fmt.Sprintf("pid=%d,", n.Agent.PID())) {
				continue
			}
			for _, f := range strings.Fields(line)[4:6] {
				ap, err := netip.ParseAddrPort(f)
				if err != nil {
					continue // "*:*"
				}
				if slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Contains(ap.Addr().Unmap()) }) {
					t.Errorf("%s: the agent has a socket inside the cluster's range: %s", n.Name, line)
				}
			}
		}
	}
}

func (s *sites) punched(t *testing.T) {
	ctx := within(t, 10*time.Second)
	start := time.Now()
	for _, pair := range [][2]*lab.Node{{s.edge1, s.edge2}, {s.edge2, s.edge1}} {
		p, err := pair[0].WaitPath(ctx, pair[1], "punched")
		if err != nil {
			t.Error(err)
			continue
		}
		t.Logf("%s → %s: %s over %s, since %v", pair[0].Name, pair[1].Name, p.Path, p.Transport, p.Since)
	}
	t.Logf("punched after %d ms", time.Since(start).Milliseconds())
}

// idleStatus holds that every other member is listed, and as idle when nothing
// was ever said to it.
func (s *sites) idleStatus(t *testing.T) {
	st, err := s.edge3.Status(t.Context())
	ok(t, err)
	if len(st.Peers) != len(s.lab.Nodes())-1 {
		t.Errorf("%d peers listed, want %d", len(st.Peers), len(s.lab.Nodes())-1)
	}
	for _, n := range s.lab.Nodes() {
		p := st.Peer(n.Name)
		if n == s.edge3 {
			continue
		}
		if p.Path != "idle" || p.RTTMs != nil {
			t.Errorf("peer %s, never talked to: path %q, rttMs %v", n.Name, p.Path, p.RTTMs)
		}
		if p.PeerID != n.PeerID || !slices.Equal(p.PodCIDRs, n.PodCIDRs) {
			t.Errorf("peer %s is %+v", n.Name, p)
		}
	}
}

func (s *sites) firstPacket(t *testing.T) {
	for _, tc := range []struct{ from, to *lab.Pod }{{s.pod3, s.podCloud}, {s.podCloud, s.pod2}, {s.pod4, s.pod1}, {s.pod6, s.pod1}} {
		for _, addrs := range pairs(tc.from, tc.to)[:1] {
			st, err := tc.from.Node.Status(t.Context())
			ok(t, err)
			before := st.Peer(tc.to.Node.Name).Path
			start := time.Now()
			if err := tc.from.Ping(t.Context(), addrs[1].String(), time.Second); err != nil {
				t.Errorf("%s → %s (%s before): %v", tc.from.Name, tc.to.Name, before, err)
			}
			t.Logf("%s → %s (%s before): answered after %d ms", tc.from.Name, tc.to.Name, before, time.Since(start).Milliseconds())
		}
	}
}

// bulkWhilePathMoves makes a relayed path by keeping the sites apart, and lets
// them come together in the middle of a transfer.
func (s *sites) bulkWhilePathMoves(t *testing.T) {
	undo, err := s.a.Block(s.b)
	ok(t, err)
	if err := s.pod3.Ping(t.Context(), s.pod2.IP4().String(), time.Second); err != nil {
		t.Error(err)
	}
	if _, err := s.edge3.WaitPath(within(t, 10*time.Second), s.edge2, "relayed"); err != nil {
		ok(t, undo())
		t.Fatal(err)
	}
	const size = 200_000_000
	var b lab.Bulk
	var bulkErr error
	var wg sync.WaitGroup
	// 120 Mbit/s: 13 s, so that it is under way when the path moves.
	wg.Go(func() {
		bulkErr = s.pod3.Tool(within(t, 60*time.Second), &b, "bulk", "--bytes", fmt.Sprint(size), "--mbps", "120", s.pod2.IP4().String())
	})
	time.Sleep(time.Second)
	before, err := s.edge3.Status(t.Context())
	ok(t, err)
	ok(t, undo())
	start := time.Now()
	_, pathErr := s.edge3.WaitPath(within(t, 20*time.Second), s.edge2, "punched")
	moved := time.Since(start)
	wg.Wait()
	if bulkErr != nil || !b.Match || b.Bytes != size {
		t.Errorf("200 MB while the path moved: %+v: %v", b, bulkErr)
	}
	if p := before.Peer("edge-2"); p.Path != "relayed" || p.TxBytes < 1_000_000 {
		t.Errorf("the transfer did not begin relayed: %+v", p)
	}
	if pathErr != nil {
		t.Errorf("the path did not move while data flowed: %v", pathErr)
	} else if moved > time.Duration(b.Seconds*float64(time.Second)) {
		t.Error("the path moved after the transfer")
	}
	t.Logf("moved to punched %d ms after the sites came together; %.0f Mbit/s, longest stall %.0f ms", moved.Milliseconds(), b.Mbps, b.StallMs)
	// And as fast as it gets, in the other direction.
	var back lab.Bulk
	err = s.pod3.Tool(within(t, 60*time.Second), &back, "bulk", "--pull", "--bytes", fmt.Sprint(size), s.pod2.IP4().String())
	if err != nil || !back.Match {
		t.Errorf("200 MB back: %+v: %v", back, err)
	}
	t.Logf("and back at %.0f Mbit/s with checksums", back.Mbps)
}

// allPods returns the pods of all nodes.
func (s *sites) allPods() []*lab.Pod {
	return []*lab.Pod{s.pod1, s.near1, s.pod2, s.pod3, s.podCloud, s.pod4, s.pod6}
}

func (s *sites) allPairs(t *testing.T) {
	count := 0
	for _, from := range s.allPods() {
		for _, to := range s.allPods() {
			if from == to {
				continue
			}
			curlPods(t, from, to, 3*time.Second)
			count += len(pairs(from, to))
		}
	}
	t.Logf("%d curls, IPv4-only, IPv6-only and dual-stack pods", count)
}

// nodeToPod curls remote pods from nodes; the source must be the node's gateway,
// so that answers find back.
func (s *sites) nodeToPod(t *testing.T) {
	for _, n := range s.lab.Nodes() {
		for _, to := range s.allPods() {
			for _, addr := range to.Addrs {
				var source netip.Addr
				for _, b := range n.PodCIDRs {
					if p := netip.MustParsePrefix(b); p.Addr().Is4() == addr.Is4() {
						source = p.Addr().Next()
					}
				}
				if !source.IsValid() {
					continue
				}
				curl(t, n.NS, to, addr, source, 3*time.Second)
				if addr.Is6() {
					continue
				}
				// Also from an address outside the cluster, as kube-proxy makes them.
				out, err := n.Run(t.Context(), "curl", "-sS", "-m", "3", "--interface", n.Addr.String(), fmt.Sprintf("http://%s:%d/", addr, lab.ServePort))
				if to.Node != n && (err != nil || !strings.Contains(out, `"`+source.String()+`"`)) {
					t.Errorf("%s as %s → %s: the server said %q, want it to see %s; %v", n.Name, n.Addr, to.Name, out, source, err)
				}
			}
		}
	}
}

// dnat redirects a port of the node to pods, as hostPort and NodePort do, and
// curls it from a host of the LAN.
func (s *sites) dnat(t *testing.T) {
	h, _, err := s.a.AddHost("client")
	ok(t, err)
	for port, to := range map[string]*lab.Pod{"8081": s.pod1, "8082": s.pod2, "8083": s.podCloud} {
		ok(t, s.edge1.Script(fmt.Sprintf("iptables -w -t nat -A PREROUTING -i eth0 -p tcp --dport %s -j DNAT --to-destination %s:%d", port, to.IP4(), lab.ServePort)))
		var r lab.Reply
		err := h.Tool(t.Context(), &r, "get", "http://"+s.edge1.Addr.String()+":"+port+"/")
		if err != nil || r.Name != to.Name {
			t.Errorf("port %s of edge-1, which leads to pod %s: %+v %v", port, to.Name, r, err)
		}
	}
	ok(t, s.edge1.Script("iptables -w -t nat -F PREROUTING"))
}

func (s *sites) toInternet(t *testing.T) {
	_, err := s.lab.WAN.Serve(within(t, 5*time.Second), "internet")
	ok(t, err)
	internet := netip.MustParseAddr(lab.InternetAddr)
	for _, tc := range []struct {
		from *lab.Pod
		as   netip.Addr
	}{{s.pod1, s.a.WAN}, {s.podCloud, s.cloud1.Addr}} {
		r, err := tc.from.Get(t.Context(), internet, 2*time.Second)
		if err != nil || r.Client != tc.as {
			t.Errorf("%s to the internet: seen as %s, want %s; %v", tc.from.Name, r.Client, tc.as, err)
		}
	}
}

func (s *sites) udp(t *testing.T) {
	for _, tc := range []struct{ from, to *lab.Pod }{{s.pod1, s.pod2}, {s.pod1, s.podCloud}, {s.podCloud, s.pod2}} {
		for _, addrs := range pairs(tc.from, tc.to) {
			for _, size := range []string{"0", "1", "1472", "1473", "9000", "60000"} {
				var u lab.Echoed
				err := tc.from.Tool(t.Context(), &u, "udp", "--size", size, "--count", "10", addrs[1].String())
				if err != nil {
					t.Errorf("%s → %s, %s bytes: %d of %d came back: %v", tc.from.Name, addrs[1], size, u.Received, u.Sent, err)
				}
			}
		}
	}
}

func (s *sites) dfPing(t *testing.T) {
	for _, to := range []*lab.Pod{s.pod2, s.podCloud, s.near1} {
		for _, addrs := range pairs(s.pod1, to) {
			fits := 1500 - 28 // IPv4 and ICMP headers
			if addrs[1].Is6() {
				fits = 1500 - 48
			}
			if err := s.pod1.Ping(t.Context(), addrs[1].String(), time.Second, "-M", "do", "-s", fmt.Sprint(fits)); err != nil {
				t.Errorf("full size to %s: %v", to.Name, err)
			}
			if s.pod1.Ping(t.Context(), addrs[1].String(), time.Second, "-M", "do", "-s", fmt.Sprint(fits+1)) == nil {
				t.Errorf("more than the MTU to %s passed with DF", to.Name)
			}
		}
	}
}

func (s *sites) noLeaks(t *testing.T) {
	leaks, err := s.lab.Leaks(t.Context())
	ok(t, err)
	if len(leaks) > 0 {
		t.Errorf("packets with addresses of the cluster's ranges outside the tunnel: %v", leaks)
	}
}

func (s *sites) secondAgent(t *testing.T) {
	start := time.Now()
	_, stderr, err := s.edge1.AgentCommand(within(t, 5*time.Second), "run", "--config", s.edge1.ConfigFile())
	var exit *lab.ExitError
	if !errors.As(err, &exit) || exit.Code != 1 && exit.Code != 2 {
		t.Fatalf("a second agent on one state dir: %v", err)
	}
	if took := time.Since(start); took > 2*time.Second {
		t.Errorf("refused after %v", took)
	}
	contains(t, stderr, s.edge1.Config.StateDir)
	curlPods(t, s.pod1, s.pod2, 2*time.Second) // the first goes on
}

func (s *sites) brokenMembership(t *testing.T) {
	good := s.lab.Cluster.YAML()
	for name, content := range map[string]string{
		"torn":          good[:len(good)/2],
		"unknown field": good + "podCIDR: 10.0.0.0/8\n",
		"empty":         "",
		"without me":    s.lab.Cluster.Without("edge-1").YAML(),
	} {
		before := s.edge1.Agent.Tail(1 << 20)
		ok(t, lab.ReplaceFile(s.edge1.Membership, content))
		err := lab.Until(within(t, 2*time.Second), 50*time.Millisecond, func() error {
			if strings.Contains(strings.TrimPrefix(s.edge1.Agent.Tail(1<<20), before), s.edge1.Membership) {
				return nil
			}
			return errors.New("not reported")
		})
		if err != nil {
			t.Errorf("%s: the log does not name the file within 2 s: %v", name, err)
		}
		curlPods(t, s.pod1, s.pod2, time.Second)
		curlPods(t, s.pod2, s.pod1, time.Second)
	}
	ok(t, os.Remove(s.edge1.Membership))
	time.Sleep(500 * time.Millisecond) // a removed file is no new membership either
	curlPods(t, s.pod1, s.pod2, time.Second)
	ok(t, lab.ReplaceFile(s.edge1.Membership, good))
	if !s.edge1.Agent.Running() {
		t.Error("the agent has ended")
	}
}

// removedMember takes edge-3 out of everybody's membership but its own.
func (s *sites) removedMember(t *testing.T) {
	curlPods(t, s.pod3, s.pod2, 2*time.Second)
	curlPods(t, s.podCloud, s.pod3, 2*time.Second)
	rest := s.lab.Cluster.Without("edge-3")
	for _, n := range s.lab.Nodes() {
		if n != s.edge3 {
			ok(t, lab.ReplaceFile(n.Membership, rest.YAML()))
		}
	}
	ok(t, lab.ReplaceFile(s.relay.Membership, rest.YAML()))
	start := time.Now()
	ctx := within(t, 2*time.Second)
	err := lab.Until(ctx, 20*time.Millisecond, func() error {
		if s.pod3.Ping(ctx, s.pod2.IP4().String(), time.Second, "-W", "0.2") == nil {
			return errors.New("still answered")
		}
		return ctx.Err()
	})
	if err != nil {
		t.Errorf("removed member after 2 s: %v", err)
	}
	t.Logf("cut off after at most %d ms", time.Since(start).Milliseconds())
	noAnswer(t, s.pod3.NS, s.pod2.IP4(), "from the removed member")
	noAnswer(t, s.pod3.NS, s.podCloud.IP4(), "from the removed member to the cloud")
	noAnswer(t, s.podCloud.NS, s.pod3.IP4(), "to the removed member")
	st, err := s.edge1.Status(t.Context())
	ok(t, err)
	if st.Peer("edge-3").Path != "" {
		t.Error("status still lists the removed member")
	}
	curlPods(t, s.pod1, s.pod2, 2*time.Second) // the others do not notice

	ok(t, s.lab.WriteMembership())
	start = time.Now()
	ctx = within(t, 2*time.Second)
	err = lab.Until(ctx, 20*time.Millisecond, func() error {
		st, err := s.edge1.Status(ctx)
		if err == nil && st.Peer("edge-3").Path == "" {
			err = errors.New("not listed")
		}
		return err
	})
	if err != nil {
		t.Errorf("member again, after 2 s: %v", err)
	}
	ctx = within(t, 10*time.Second)
	err = lab.Until(ctx, 100*time.Millisecond, func() error {
		return tryCurl(ctx, s.pod3.NS, s.pod2, s.pod2.IP4(), s.pod3.IP4(), time.Second)
	})
	if err != nil {
		t.Errorf("member again, after 10 s: %v", err)
	}
	t.Logf("member again: first curl after %d ms", time.Since(start).Milliseconds())
}

func (s *sites) relayRestarted(t *testing.T) {
	s.relay.Process.Kill()
	curlPods(t, s.pod1, s.pod2, 2*time.Second) // punched paths do not need it
	ok(t, s.relay.Start())
	start := time.Now()
	if err := s.relay.WaitReservations(within(t, 5*time.Second), len(s.lab.Nodes())); err != nil {
		t.Errorf("5 s after the relay's restart: %v", err)
	}
	t.Logf("all reservations back after %d ms", time.Since(start).Milliseconds())
}

// flow runs a flow between two pods in the background; the function returned
// waits for its end.
func flow(t *testing.T, from *lab.Pod, proto string, d time.Duration, to netip.Addr) func() (lab.Gaps, error) {
	t.Helper()
	var g lab.Gaps
	var err error
	done := make(chan struct{})
	ctx := within(t, d+15*time.Second)
	go func() {
		defer close(done)
		err = from.Tool(ctx, &g, "gaps", "--proto", proto, "--duration", d.String(), "--linger", "8s", to.String())
	}()
	return func() (lab.Gaps, error) { <-done; return g, err }
}

func (s *sites) agentKilled(t *testing.T) {
	leaksBefore, err := s.lab.Leaks(t.Context())
	ok(t, err)
	tcp := flow(t, s.pod1, "tcp", 8*time.Second, s.pod2.IP4())
	back := flow(t, s.podCloud, "tcp", 8*time.Second, s.pod1.IP6())
	time.Sleep(time.Second)
	s.edge1.Agent.Kill()

	curlPods(t, s.pod1, s.near1, time.Second)
	noAnswer(t, s.near1.NS, s.podCloud.IP4(), "while the agent is dead")
	noAnswer(t, s.near1.NS, s.podCloud.IP6(), "while the agent is dead")
	noAnswer(t, s.near1.NS, netip.MustParseAddr("10.244.200.1"), "an address of nobody")
	noAnswer(t, s.edge1.NS, s.podCloud.IP4(), "from the node while the agent is dead")
	leaks, err := s.lab.Leaks(t.Context())
	ok(t, err)
	if fmt.Sprint(leaks) != fmt.Sprint(leaksBefore) {
		t.Errorf("while the agent was dead packets got out: %v", leaks)
	}
	if p, err := s.edge1.AddPod(t.Context(), "meanwhile"); err != nil {
		t.Errorf("a pod made while the agent is dead: %v", err)
	} else {
		ok(t, p.Delete(t.Context()))
	}

	ok(t, s.edge1.Start())
	start := time.Now()
	ctx := within(t, 8*time.Second)
	err = lab.Until(ctx, 20*time.Millisecond, func() error {
		return tryCurl(ctx, s.pod1.NS, s.pod2, s.pod2.IP4(), s.pod1.IP4(), time.Second)
	})
	if err != nil {
		t.Errorf("after the restart: %v", err)
	}
	t.Logf("first curl %d ms after the restart", time.Since(start).Milliseconds())
	for name, wait := range map[string]func() (lab.Gaps, error){"to edge-2": tcp, "from cloud-1": back} {
		g, err := wait()
		if err != nil || g.Lost > 0 || g.Reordered > 0 || g.Doubled > 0 {
			t.Errorf("TCP flow %s did not survive: %+v: %v", name, g, err)
		}
		t.Logf("TCP flow %s: longest gap %.0f ms", name, g.GapMs)
	}
	curlPods(t, s.pod1, s.pod2, 2*time.Second)
	curlPods(t, s.pod2, s.pod1, 2*time.Second)
	ready(t, s.edge1)
}

// lanHost tries from a host on site A's LAN, and from one on the WAN, what a
// router would let it do.
func (s *sites) lanHost(t *testing.T) {
	h, hostAddr, err := s.a.AddHost("laptop")
	ok(t, err)
	_, err = h.Serve(within(t, 5*time.Second), "laptop")
	ok(t, err)
	via := s.edge1.Addr.String()
	ok(t, h.Script("ip route add 10.244.0.0/16 via "+via))
	for _, to := range []*lab.Pod{s.pod1, s.pod2, s.podCloud} {
		noAnswer(t, h, to.IP4(), "a LAN host routes to pod "+to.Name)
		if h.Ping(t.Context(), to.IP4().String(), time.Second) == nil {
			t.Errorf("a LAN host pings pod %s through the node", to.Name)
		}
		forge(t, h, hostAddr, to, to.IP4())              // as itself
		forge(t, h, s.pod3.IP4(), to, to.IP4())          // as a remote pod
		forge(t, h, s.near1.IP4(), to, to.IP4())         // as a pod of the node
		forge(t, h, gateway(s.pod1.IP4()), to, to.IP4()) // as the node
	}
	// The gateway is the node's own address: it is not for the LAN either.
	if h.Ping(t.Context(), gateway(s.pod1.IP4()).String(), time.Second) == nil {
		t.Log("note: the bridge's gateway address answers the LAN")
	}
	// What pods ask for themselves does come back.
	r, err := s.pod1.Get(t.Context(), hostAddr, 2*time.Second)
	if err != nil || r.Client != s.edge1.Addr {
		t.Errorf("a pod to a host of its LAN: seen as %s, want %s; %v", r.Client, s.edge1.Addr, err)
	}
}

func (s *sites) podSpoof(t *testing.T) {
	podCannotSpoof(t, s.pod1, s.near1, s.pod2)     // a neighbour, towards another node
	podCannotSpoof(t, s.pod1, s.podCloud, s.pod2)  // a pod of a third node
	podCannotSpoof(t, s.pod1, s.podCloud, s.near1) // the same, towards its own node
	cannotClaim(t, s.pod1, s.near1, s.podCloud)
	cannotClaim(t, s.pod1, s.podCloud, s.near1)
	// Nor the node's root: the tunnel takes only packets of own pods.
	forge(t, s.edge1.NS, s.podCloud.IP4(), s.pod2, s.pod2.IP4())
}

// contracts holds the JSON of status and ping.
func (s *sites) contracts(t *testing.T) {
	t.Run("Status", func(t *testing.T) { s.statusContract(t) })
	t.Run("Ping", func(t *testing.T) { s.pingContract(t) })
}
