package main

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	dht "github.com/libp2p/go-libp2p-kad-dht"
	"github.com/libp2p/go-libp2p/core/protocol"
	"github.com/libp2p/go-libp2p/p2p/net/swarm"
	ma "github.com/multiformats/go-multiaddr"
	"github.com/vishvananda/netlink"

	"edgemesh/internal/keytest"
	"edgemesh/internal/membership/mesh"
	"edgemesh/test/fair"
	"edgemesh/tunnel/p2p/who/identity"
	"edgemesh/tunnel/p2p/who/refusals"
)

func TestMembersRelayWithoutDataCap(t *testing.T) {
	a, b := newNode(t), newNode(t)
	v := newTestServer(t, testConfig(), state(a, b))
	s := mustDial(t, v, a, b)
	const size = 4 << 20 // libp2p's default ends a circuit after 128 KiB
	go func() {
		_, _ = io.Copy(s, io.LimitReader(rand.Reader, size))
		s.CloseWrite()
	}()
	if n, err := io.Copy(io.Discard, s); n != size || err != nil {
		t.Errorf("%d bytes came back, %v; want %d", n, err, size)
	}
	if !s.Conn().Stat().Limited {
		t.Error("the connection is not marked as relayed")
	}
	if v.metrics.Circuits() != 1 || v.metrics.Reservations() != 1 || v.connected() != 2 {
		t.Errorf("%d circuits, %d reservations, %d peers; want 1, 1, 2",
			v.metrics.Circuits(), v.metrics.Reservations(), v.connected())
	}
}

// BBR and what members learn by identify, on a connection a member opened.
func TestMembersConnection(t *testing.T) {
	a := newNode(t)
	v := newTestServer(t, testConfig(), state(a))
	if err := a.Connect(a.ctx(), v.info("tcp")); err != nil {
		t.Fatal(err)
	}
	want := []protocol.ID{
		"/libp2p/circuit/relay/0.2.0/hop", "/edgemesh/kad/1.0.0", "/ipfs/ping/1.0.0",
	}
	fair.Eventually(t, deadline, "identify", fair.True(func() bool {
		got, err := a.Peerstore().SupportsProtocols(v.host.ID(), want...)
		return err == nil && len(got) == len(want)
	}))
	available, err := os.ReadFile("/proc/sys/net/ipv4/tcp_available_congestion_control")
	if err != nil || !strings.Contains(string(available), "bbr") {
		t.Skip("this kernel has no BBR")
	}
	port, err := v.info("tcp").Addrs[0].ValueForProtocol(ma.P_TCP)
	if err != nil {
		t.Fatal(err)
	}
	socks, err := netlink.SocketDiagTCPInfo(syscall.AF_INET)
	if err != nil {
		t.Fatal(err)
	}
	accepted := 0
	for _, s := range socks {
		if fmt.Sprint(s.InetDiagMsg.ID.SourcePort) == port && s.InetDiagMsg.State == netlink.TCP_ESTABLISHED {
			accepted++
			if s.TCPBBRInfo == nil {
				t.Error("the accepted socket does not use BBR")
			}
		}
	}
	if accepted != 1 {
		t.Errorf("%d accepted sockets, want 1", accepted)
	}
}

func TestStrangersAreRefused(t *testing.T) {
	a, stranger := newNode(t), newNode(t)
	v := newTestServer(t, testConfig(), state(a))
	var log logBuffer
	v.refused = refusals.New(slog.New(slog.NewTextHandler(&log, nil)), nil)
	for _, transport := range []string{"tcp", "quic-v1"} {
		if err := stranger.reserve(v, transport); err == nil {
			t.Errorf("%s: a stranger got a reservation", transport)
		}
		fair.Eventually(t, deadline, "the stranger's connection is closed", fair.True(func() bool { return v.connected() == 0 }))
		if protos, _ := stranger.Peerstore().GetProtocols(v.host.ID()); len(protos) > 0 {
			t.Errorf("%s: the stranger learned %v", transport, protos)
		}
		stranger.Network().ClosePeer(v.host.ID())
	}
	if err := a.reserve(v, "quic-v1"); err != nil {
		t.Errorf("the member: %v", err)
	}
	if n := v.refused.Counts()[refusals.Stranger]; n < 2 || counted(t, v, "edgemesh_relay_refused_total") != float64(n) {
		t.Errorf("%d refusals are counted", n)
	}
	line := log.String() // one for all of them
	if strings.Count(line, "\n") != 1 || !strings.Contains(line, stranger.ID().String()) || !strings.Contains(line, "127.0.0.1") ||
		!strings.Contains(line, "reason=stranger") {
		t.Errorf("the log says %q, want one line with peer, address and reason", line)
	}
}

// Another relay may connect, for the DHT, but not use us as a relay.
func TestRelaysMayNotReserve(t *testing.T) {
	a, other := newNode(t), newNode(t)
	s := state(a)
	s.Relays = []mesh.Relay{{PeerID: mesh.PeerID(other.ID().String()), Addrs: []string{"/ip4/127.0.0.1/tcp/1"}}}
	v := newTestServer(t, testConfig(), s)
	if err := a.reserve(v, "tcp"); err != nil {
		t.Fatal(err)
	}
	if err := other.Connect(other.ctx(), v.info("tcp")); err != nil {
		t.Fatalf("connect: %v", err)
	}
	if err := other.reserve(v, "tcp"); err == nil || !strings.Contains(err.Error(), "PERMISSION_DENIED") {
		t.Errorf("reserve: error %v, want PERMISSION_DENIED", err)
	}
	if _, err := other.dialThrough(v, a.ID()); err == nil {
		t.Error("another relay got a circuit")
	}
}

func TestRemovedMemberIsCutOff(t *testing.T) {
	a, b, c := newNode(t), newNode(t), newNode(t)
	v := newTestServer(t, testConfig(), state(a, b, c))
	removed := mustDial(t, v, a, b)
	stays := mustDial(t, v, a, c)
	ended := ends(removed)
	if err := v.setMembership(state(a, c)); err != nil {
		t.Fatal(err)
	}
	fair.Eventually(t, cutOff, "the circuit to the removed member ends, and b's reservation is gone", fair.True(func() bool {
		return ended.Load() && v.metrics.Reservations() == 1
	}))
	if err := b.reserve(v, "tcp"); err == nil {
		t.Error("the removed member got a new reservation")
	}
	if _, err := stays.Write([]byte("x")); err != nil {
		t.Error(err)
	}
	if _, err := io.ReadFull(stays, make([]byte, 1)); err != nil {
		t.Errorf("another member's circuit was hurt: %v", err)
	}

	if err := v.setMembership(state(a, b, c)); err != nil {
		t.Fatal(err)
	}
	fair.Eventually(t, deadline, "b is admitted again", fair.True(func() bool {
		b.Network().ClosePeer(v.host.ID())
		b.Network().(*swarm.Swarm).Backoff().Clear(v.host.ID())
		return b.reserve(v, "tcp") == nil
	}))
}

// A relay serves nodes that carry the label which the membership requires.
func TestUnlabelledMemberIsCutOff(t *testing.T) {
	a, b := newNode(t), newNode(t)
	const label = mesh.RestrictedPrefix + "mesh"
	labelled := func(who ...node) mesh.State {
		s := state(a, b)
		s.AdmitLabel = label
		for i := range s.Nodes {
			for _, n := range who {
				if s.Nodes[i].PeerID == mesh.PeerID(n.ID().String()) {
					s.Nodes[i].Labels = map[string]string{label: ""}
				}
			}
		}
		return s
	}
	v := newTestServer(t, testConfig(), labelled(a, b))
	ended := ends(mustDial(t, v, a, b))
	if err := v.setMembership(labelled(a)); err != nil {
		t.Fatal(err)
	}
	fair.Eventually(t, cutOff, "the circuit to the node without the label ends", fair.True(ended.Load))
	if err := b.reserve(v, "tcp"); err == nil {
		t.Error("the node without the label got a reservation")
	}
	if err := a.reserve(v, "tcp"); err != nil {
		t.Errorf("the other one: %v", err)
	}
}

func TestCircuitLimits(t *testing.T) {
	a, b, c, d := newNode(t), newNode(t), newNode(t), newNode(t)
	for _, x := range []struct {
		name            string
		total, perPeer  int
		firstA, secondA bool // a→c and then a→d
		other           bool // b→d afterwards
	}{
		{"per peer", 100, 1, true, false, true},
		{"total", 1, 1, true, false, false},
	} {
		t.Run(x.name, func(t *testing.T) {
			conf := testConfig()
			conf.limits.MaxCircuits, conf.limits.MaxCircuitsPerPeer = x.total, x.perPeer
			v := newTestServer(t, conf, state(a, b, c, d))
			for _, n := range []node{c, d} {
				if err := n.reserve(v, "tcp"); err != nil {
					t.Fatal(err)
				}
			}
			for _, try := range []struct {
				from, to node
				want     bool
			}{{a, c, x.firstA}, {a, d, x.secondA}, {b, d, x.other}} {
				if _, err := try.from.dialThrough(v, try.to.ID()); (err == nil) != try.want {
					t.Errorf("%s to %s: error %v, want success %t", try.from.ID(), try.to.ID(), err, try.want)
				}
			}
			for _, n := range []node{a, b, c, d} {
				for _, p := range n.Network().Peers() {
					n.Network().ClosePeer(p)
				}
			}
		})
	}
}

func TestReservationLimits(t *testing.T) {
	a, b := newNode(t), newNode(t)
	conf := testConfig()
	conf.limits.MaxReservations = 1
	v := newTestServer(t, conf, state(a, b))
	if err := a.reserve(v, "tcp"); err != nil {
		t.Fatal(err)
	}
	if err := b.reserve(v, "tcp"); err == nil || !strings.Contains(err.Error(), "RESERVATION_REFUSED") {
		t.Errorf("error %v, want RESERVATION_REFUSED", err)
	}
	if err := a.reserve(v, "tcp"); err != nil {
		t.Errorf("renewal: %v", err)
	}
}

// Many nodes behind one address reserve at the same time: libp2p's own limits, 8 per
// address and 0.2 new connections a second, do not apply.
func TestManyMembersFromOneAddress(t *testing.T) {
	var nodes []node
	for range 24 {
		nodes = append(nodes, newNode(t))
	}
	v := newTestServer(t, testConfig(), state(nodes...))
	for i, n := range nodes {
		if err := n.reserve(v, []string{"tcp", "quic-v1"}[i%2]); err != nil {
			t.Fatalf("member %d: %v", i, err)
		}
	}
}

func TestCircuitsEndOnTCP(t *testing.T) {
	a, b := newNode(t), newNode(t)
	v := newTestServer(t, testConfig(), state(a, b))
	if err := b.reserve(v, "tcp"); err != nil {
		t.Fatal(err)
	}
	// The same member over QUIC; the swarm would prefer the newer connection.
	twin := newNodeWithKey(t, b.Peerstore().PrivKey(b.ID()))
	if err := twin.Connect(twin.ctx(), v.info("quic-v1")); err != nil {
		t.Fatal(err)
	}
	fair.Eventually(t, deadline, "both connections", fair.True(func() bool { return len(v.host.Network().ConnsToPeer(b.ID())) == 2 }))
	if _, err := a.dialThrough(v, b.ID()); err != nil {
		t.Fatal(err)
	}
	var ends []string
	for _, c := range v.host.Network().ConnsToPeer(b.ID()) {
		for _, s := range c.GetStreams() {
			if strings.HasSuffix(string(s.Protocol()), "/stop") {
				ends = append(ends, c.RemoteMultiaddr().String())
			}
		}
	}
	if len(ends) != 1 || !strings.Contains(ends[0], "/tcp/") {
		t.Errorf("the circuit ends on %v, want one TCP connection", ends)
	}
}

func TestDHTFindsMembers(t *testing.T) {
	a, b := newNode(t), newNode(t)
	if err := b.Network().Listen(ma.StringCast("/ip4/127.0.0.1/tcp/0")); err != nil {
		t.Fatal(err)
	}
	v := newTestServer(t, testConfig(), state(a, b))
	if err := b.reserve(v, "tcp"); err != nil {
		t.Fatal(err)
	}
	if err := a.Connect(a.ctx(), v.info("tcp")); err != nil {
		t.Fatal(err)
	}
	kad, err := dht.New(a.Host, dht.ProtocolPrefix(identity.DHTPrefix), dht.Mode(dht.ModeClient),
		dht.DisableProviders(), dht.DisableValues(), dht.BootstrapPeers(v.info("tcp")),
		dht.AddressFilter(func(in []ma.Multiaddr) []ma.Multiaddr { return in }))
	if err != nil {
		t.Fatal(err)
	}
	defer kad.Close()
	fair.Eventually(t, deadline, "the relay is in the routing table", fair.True(func() bool { return kad.RoutingTable().Find(v.host.ID()) != "" }))
	info, err := kad.FindPeer(a.ctx(), b.ID())
	if err != nil {
		t.Fatalf("find the other member: %v", err)
	}
	if !slices.ContainsFunc(info.Addrs, b.Addrs()[0].Equal) {
		t.Errorf("found at %v, want %v", info.Addrs, b.Addrs())
	}
}

func TestPortInUse(t *testing.T) {
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	udp, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer udp.Close()
	_, tcpPort, _ := net.SplitHostPort(tcp.Addr().String())
	_, udpPort, _ := net.SplitHostPort(udp.LocalAddr().String())
	key, self := keytest.New(t)
	for _, addr := range []string{"/ip4/127.0.0.1/tcp/" + tcpPort, "/ip4/127.0.0.1/udp/" + udpPort + "/quic-v1"} {
		c := testConfig()
		c.listen = append(c.listen, ma.StringCast(addr))
		_, err := newServer(c, key, self, state(), byController{}, slog.New(slog.DiscardHandler))
		if !errors.Is(err, errListen) || !errors.Is(err, syscall.EADDRINUSE) || !strings.Contains(err.Error(), "listen[2]: ") {
			t.Errorf("%s: error %v, want listen[2]: in use", addr, err)
		}
	}
}

// The cluster's own addresses must not be dialed or accepted.
func TestGaterKeepsOutOfTheTunnel(t *testing.T) {
	a := newNode(t)
	v := newTestServer(t, testConfig(), state(a))
	for addr, want := range map[string]bool{"/ip4/10.244.3.1/tcp/1": false, "/ip4/10.245.3.1/tcp/1": true, "/ip6/::ffff:10.244.3.1/tcp/1": false} {
		if got := v.gater.InterceptAddrDial(a.ID(), ma.StringCast(addr)); got != want {
			t.Errorf("dial %s: %t, want %t", addr, got, want)
		}
		if got := (gater{v.gater, v.gate}).InterceptAccept(remote(ma.StringCast(addr))); got != want {
			t.Errorf("accept %s: %t, want %t", addr, got, want)
		}
	}
	if got := counted(t, v, "edgemesh_relay_refused_total"); got != 2 {
		t.Errorf("counted %v, want 2", got)
	}
}

// counted is the sum of a counter over its labels.
func counted(t *testing.T, v *server, name string) (sum float64) {
	t.Helper()
	families, err := v.metrics.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			for _, m := range f.GetMetric() {
				sum += m.GetCounter().GetValue()
			}
		}
	}
	return sum
}

// remote is a connection from an address.
type remote ma.Multiaddr

func (r remote) LocalMultiaddr() ma.Multiaddr  { return ma.StringCast("/ip4/5.5.5.5/tcp/1") }
func (r remote) RemoteMultiaddr() ma.Multiaddr { return ma.Multiaddr(r) }
