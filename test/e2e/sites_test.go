package e2e

import (
	"slices"
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
		{"BannedMemberIsCutOff", s.bannedMember},
		{"UnlabelledMemberIsCutOff", s.unlabelledMember},
		{"SecondAgentOnOneStateDirRefused", s.secondAgent},
		{"DoctorNamesCauseAndRemedy", s.doctor},
		{"NothingOfTheTunnelInside", s.nothingInside},
		{"NothingLeaked", s.noLeaks},
	} {
		if !t.Run(part.name, part.run) && part.name == "StartToFirstCurlWithin5s" {
			t.Fatal("nothing further can be tested")
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

// allPods returns the pods of all nodes.
func (s *sites) allPods() []*lab.Pod {
	return []*lab.Pod{s.pod1, s.near1, s.pod2, s.pod3, s.podCloud, s.pod4, s.pod6}
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
			if err := ping(t, tc.from, addrs[1], time.Second); err != nil {
				t.Errorf("%s → %s (%s before): %v", tc.from.Name, tc.to.Name, before, err)
			}
			t.Logf("%s → %s (%s before): answered after %d ms", tc.from.Name, tc.to.Name, before,
				time.Since(start).Milliseconds())
		}
	}
}
