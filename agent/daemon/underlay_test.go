package daemon

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"

	"edgemesh/agent/describe"
	"edgemesh/internal/keytest"
	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/wording"
	"edgemesh/test/fair"
	"edgemesh/test/relaytest"
	"edgemesh/tunnel"
	"edgemesh/tunnel/p2p"
	"edgemesh/tunnel/p2p/path/paths"
	"edgemesh/tunnel/p2p/path/peers"
	"edgemesh/tunnel/p2p/who/identity"
	"edgemesh/tunnel/p2p/who/members"
	"edgemesh/tunnel/tunneltest"
)

// patience is for what is not promised within a time.
const patience = 30 * time.Second

// end is one of two nodes: p2p and tunnel joined as the agent does it.
type end struct {
	key    crypto.PrivKey
	id     peer.ID
	block  netip.Prefix
	pod    netip.AddrPort
	node   *p2p.Node
	tunnel *tunnel.Tunnel
	device *tunneltest.Device
	got    atomic.Int64
}

func newEnd(t *testing.T, x byte) *end {
	t.Helper()
	key, id := keytest.New(t)
	gateway := netip.AddrFrom4([4]byte{10, 244, x, 0})
	return &end{key: key, id: id, block: netip.PrefixFrom(gateway, 24), pod: netip.AddrPortFrom(gateway.Next().Next(), 1000)}
}

func loopback(t *testing.T) []ma.Multiaddr {
	t.Helper()
	return []ma.Multiaddr{ma.StringCast("/ip4/127.0.0.1/tcp/0"), ma.StringCast("/ip4/127.0.0.1/udp/0/quic-v1")}
}

func (e *end) start(t *testing.T, other *end, relay peer.AddrInfo, lim tunnel.Limits) {
	t.Helper()
	log := slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug})).With("node", e.block)
	var err error
	e.node, err = p2p.New(p2p.Config{Key: e.key, Listen: loopback(t), Log: log, Membership: members.Membership{
		Members:      []members.Member{{Name: "self", ID: e.id}, {Name: "other", ID: other.id}},
		Relays:       []peer.AddrInfo{relay},
		ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")},
	}})
	if err != nil {
		t.Fatal(err)
	}
	e.device = tunneltest.NewDevice(func([]byte) error { e.got.Add(1); return nil })
	e.tunnel = tunnel.New(overNode(e.node, func(peer.ID) {}, tunnel.Config{Device: e.device, Log: log, Limits: lim}))
	e.tunnel.SetRoutes([]tunnel.Route{{Prefix: e.block, Self: true}, {Prefix: other.block, Peer: tunnel.PeerID(other.id)}})
	join(e.node, e.tunnel, func(peer.ID) {}, newCounts(nil), log)
	ended := make(chan error, 1)
	go func() { ended <- e.tunnel.Run(context.Background()) }()
	t.Cleanup(func() {
		if err := errors.Join(e.tunnel.Close(), e.node.Close(), <-ended); err != nil {
			t.Error(err)
		}
	})
	fair.Eventually(t, patience, "reservation", func() error {
		if r := e.node.Status().Relays[0]; !r.Reserved {
			return fmt.Errorf("%+v", r)
		}
		return nil
	})
}

// status is what an operator is shown of the other end.
func (e *end) status(other *end) string {
	p, _ := e.node.PeerStatus(other.id)
	t := tunnel.PeerStats{Idle: true} // nobody has talked to it
	if all := e.tunnel.Stats().Peers; len(all) > 0 {
		t = all[0]
	}
	return describe.Peer(mesh.Node{}, p, t).Path
}

// A packet with a source that is not its sender's is logged with the peer, its address and the reason.
func TestForgedPacketIsLogged(t *testing.T) {
	_, relay := relaytest.Loopback(t)
	a, b := newEnd(t, 1), newEnd(t, 2)
	a.start(t, b, relay, tunnel.Limits{})
	b.start(t, a, relay, tunnel.Limits{})
	var log bytes.Buffer
	forged := overNode(b.node, func(peer.ID) {}, tunnel.Config{Device: tunneltest.NewDevice(func([]byte) error { return nil }), Log: slog.New(slog.NewTextHandler(&log, nil))})
	a.device.Inject(tunneltest.UDPPacket(a.pod, b.pod, []byte("x")))
	fair.Eventually(t, patience, "a path", fair.True(func() bool { st, ok := b.node.PeerStatus(a.id); return ok && st.Path.Addr != "" }))
	for range 1000 {
		forged.Refused(tunnel.PeerID(a.id), tunnel.DropSourceNotPeer)
	}
	for _, want := range []string{"level=WARN", "peer=" + a.id.String(), "reason=source_not_peer", "from=/ip4/127.0.0.1/"} {
		if strings.Count(log.String(), want) != 1 {
			t.Errorf("%s\nhas %q not once", log.String(), want)
		}
	}
}

// The tunnel's log names peers as everybody else does.
func TestTunnelLogsPeerIDs(t *testing.T) {
	_, id := keytest.New(t)
	var log bytes.Buffer
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "peer", tunnel.PeerID(id))
	if want := "peer=" + id.String() + "\n"; !strings.HasSuffix(log.String(), want) {
		t.Errorf("%q does not end with %q", log.String(), want)
	}
}

// An idle peer is disconnected by both ends and shown as idle; nothing brings it back
// but a packet.
func TestIdlePeerStaysDisconnected(t *testing.T) {
	_, relay := relaytest.Loopback(t)
	a, b := newEnd(t, 1), newEnd(t, 2)
	lim := tunnel.Limits{QuietTime: time.Second, IdleTimeout: 5 * time.Second}
	a.start(t, b, relay, lim)
	lim.IdleTimeout *= 2 // b still thinks that a is in use when a disconnects
	b.start(t, a, relay, lim)
	talk := func() { // both lanes, both directions
		t.Helper()
		for _, x := range []struct{ from, to *end }{{a, b}, {b, a}} {
			want := x.to.got.Load() + 2
			x.from.device.Inject(tunneltest.UDPPacket(x.from.pod, x.to.pod, []byte("x")))
			x.from.device.Inject(tunneltest.TCPPacket(x.from.pod, x.to.pod, []byte("x")))
			fair.Eventually(t, patience, "packets", func() error {
				if n := x.to.got.Load(); n < want {
					return fmt.Errorf("%d of %d", n, want)
				}
				return nil
			})
		}
	}
	talk()
	fair.Eventually(t, patience, "relayed, TCP and QUIC beside each other", func() error {
		if p, _ := a.node.PeerStatus(b.id); len(p.All) < 3 {
			return fmt.Errorf("%+v", p)
		}
		return nil
	})
	talk()
	fair.Eventually(t, patience, "direct", func() error { // "punched" until a probe's answer says that no address is translated
		if got := a.status(b); got != string(paths.KindDirect) {
			return fmt.Errorf("shown as %q", got)
		}
		return nil
	})
	for _, x := range []struct{ n, of *end }{{a, b}, {b, a}} {
		fair.Eventually(t, patience, "disconnected", func() error {
			if got := x.n.status(x.of); got != describe.Idle {
				return fmt.Errorf("shown as %q", got)
			}
			return nil
		})
	}
	fair.Eventually(t, patience, "b's tunnel is idle as well", func() error {
		for _, x := range []struct{ n, of *end }{{a, b}, {b, a}} {
			if got := x.n.status(x.of); got != describe.Idle {
				t.Fatalf("shown as %q although nobody has said anything", got)
			}
		}
		if s := b.tunnel.Stats().Peers[0]; !s.Idle {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	talk()
}

// A peer that the tunnel quarantines is refused by p2p as well.
func TestQuarantinedPeerIsRefused(t *testing.T) {
	_, relay := relaytest.Loopback(t)
	a, b := newEnd(t, 1), newEnd(t, 2)
	a.start(t, b, relay, tunnel.Limits{})
	b.start(t, a, relay, tunnel.Limits{})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for i := range 17 { // broken framing, on one stream after the other
		s, err := b.node.OpenStream(ctx, a.id, identity.StreamProtocol)
		if err != nil {
			t.Fatalf("stream %d: %v", i, err)
		}
		_, _ = s.Write([]byte{9, 255, 255, 255})
		_ = s.SetReadDeadline(time.Now().Add(10 * time.Second))
		if n, err := s.Read(make([]byte, 1)); err == nil {
			t.Errorf("read %d bytes", n)
		}
		s.Reset()
	}
	fair.Eventually(t, patience, "the peer is in quarantine", func() error { // the last stream's reset may come first
		_, err := a.node.OpenStream(ctx, b.id, identity.StreamProtocol)
		if errors.Is(err, members.ErrQuarantined) {
			return nil
		}
		return fmt.Errorf("open a stream to a quarantined peer: %w", err)
	})
	// The first ones may be opened before the answer is there.
	fair.Eventually(t, patience, "a quarantined peer opens none", func() error {
		if _, err := b.node.OpenStream(ctx, a.id, identity.StreamProtocol); !errors.Is(err, p2p.ErrUnreachable) {
			return fmt.Errorf("open a stream as a quarantined peer: %w", err)
		}
		return nil
	})
}

func TestPeerStatusWithoutPath(t *testing.T) {
	none := peers.Status{Path: paths.Path{Kind: paths.KindNone}, Reason: "why"}
	wanted := none
	wanted.Wanted = true
	var queued, connecting tunnel.PeerStats
	queued.Lanes[1].QueuedPackets = 1
	connecting.Lanes[0].State = tunnel.LaneConnecting
	for name, c := range map[string]struct {
		p    peers.Status
		t    tunnel.PeerStats
		want string
	}{
		"never used":               {none, tunnel.PeerStats{Idle: true}, describe.Idle},
		"disconnected by the peer": {none, tunnel.PeerStats{Idle: false}, describe.Idle},
		"wanted":                   {wanted, tunnel.PeerStats{Idle: true}, "none"},
		"packets wait":             {none, queued, "none"},
		"connecting":               {none, connecting, "none"},
	} {
		if got := describe.Peer(mesh.Node{}, c.p, c.t); got.Path != c.want {
			t.Errorf("%s: shown as %q, want %q", name, got.Path, c.want)
		}
	}
}

func TestOneLine(t *testing.T) {
	if got := wording.OneLine("a\n\n  b\r\nc\n"); got != "a; b; c" {
		t.Errorf("%q", got)
	}
}
