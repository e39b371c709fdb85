package tunnel_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net/netip"
	"sync"
	"testing"
	"time"

	"edgemesh/tunnel"
	"edgemesh/tunnel/tunneltest"
	"edgemesh/tunnel/virtio"
)

const (
	nodeA = tunnel.PeerID("a")
	nodeB = tunnel.PeerID("b")

	// patience is for what is not promised within a time.
	patience = time.Minute
)

var (
	addrA  = netip.MustParseAddrPort("10.244.1.5:1000")
	addrB  = netip.MustParseAddrPort("10.244.2.6:2000")
	addrA6 = netip.MustParseAddrPort("[fd00:1::5]:1000")
	addrB6 = netip.MustParseAddrPort("[fd00:2::6]:2000")
)

// node is a tunnel with its device and what came out of it.
type node struct {
	*tunnel.Tunnel
	dev *tunneltest.Device

	mu     sync.Mutex
	cond   *sync.Cond
	frames [][]byte
	dead   bool
}

func routes(self tunnel.PeerID) []tunnel.Route {
	return []tunnel.Route{
		{Prefix: netip.MustParsePrefix("10.244.1.0/24"), Peer: nodeA, Self: self == nodeA},
		{Prefix: netip.MustParsePrefix("10.244.2.0/24"), Peer: nodeB, Self: self == nodeB},
		{Prefix: netip.MustParsePrefix("fd00:1::/64"), Peer: nodeA, Self: self == nodeA},
		{Prefix: netip.MustParsePrefix("fd00:2::/64"), Peer: nodeB, Self: self == nodeB},
	}
}

// newNode starts a tunnel; the test's end closes it.
func newNode(t *testing.T, id tunnel.PeerID, under tunnel.Underlay, lim tunnel.Limits, idle func(tunnel.PeerID)) *node {
	t.Helper()
	return startNode(t, id, tunnel.Config{Underlay: under, Limits: lim, Idle: idle})
}

// startNode is newNode with a device and a log added to cfg.
func startNode(t *testing.T, id tunnel.PeerID, cfg tunnel.Config) *node {
	t.Helper()
	n := &node{}
	n.cond = sync.NewCond(&n.mu)
	n.dev = tunneltest.NewDevice(func(b []byte) error {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.frames = append(n.frames, bytes.Clone(b))
		n.cond.Broadcast()
		return nil
	})
	cfg.Device = n.dev
	cfg.Log = slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug})).With("node", id)
	n.Tunnel = tunnel.New(cfg)
	n.SetRoutes(routes(id))
	ended := make(chan error, 1)
	go func() { ended <- n.Run(context.Background()) }()
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		if err := <-ended; err != nil && !errors.Is(err, tunnel.ErrClosed) { // closed before it ran
			t.Errorf("run: %v", err)
		}
	})
	return n
}

// pair is two nodes on one net, joined by one path for each direction.
func pair(t *testing.T, lim tunnel.Limits) (net *tunneltest.Net, a, b *node, path *tunneltest.Path) {
	t.Helper()
	return startPair(t, tunnel.Config{Limits: lim})
}

// startPair is pair with all of a configuration but the underlay.
func startPair(t *testing.T, cfg tunnel.Config) (net *tunneltest.Net, a, b *node, path *tunneltest.Path) {
	t.Helper()
	net = tunneltest.NewNet()
	path = tunneltest.NewPath(64 << 10)
	net.SetPath(nodeA, nodeB, path)
	net.SetPath(nodeB, nodeA, path)
	t.Cleanup(net.Wait)
	start := func(id tunnel.PeerID) *node {
		cfg.Underlay = net.Underlay(id)
		n := startNode(t, id, cfg)
		net.Attach(id, n.Tunnel)
		return n
	}
	return net, start(nodeA), start(nodeB), path
}

// alone is a node whose peer is played by the test.
func alone(t *testing.T, lim tunnel.Limits) *node {
	t.Helper()
	net := tunneltest.NewNet()
	t.Cleanup(net.Wait)
	return newNode(t, nodeA, net.Underlay(nodeA), lim, nil)
}

// packets waits until n frames were written to the device and returns their
// packets, without the virtio header.
func (n *node) packets(t *testing.T, count int) [][]byte {
	t.Helper()
	stop := time.AfterFunc(60*time.Second, func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.dead = true
		n.cond.Broadcast()
	})
	defer stop.Stop()
	n.mu.Lock()
	defer n.mu.Unlock()
	for len(n.frames) < count && !n.dead {
		n.cond.Wait()
	}
	if len(n.frames) < count {
		t.Fatalf("%d packets arrived, want %d; stats %+v", len(n.frames), count, n.Stats())
	}
	out := make([][]byte, 0, len(n.frames))
	for _, f := range n.frames {
		out = append(out, f[virtio.HeaderLen:])
	}
	return out
}

// raw sends frames as a peer's process might, without a tunnel.
type raw struct {
	w   *io.PipeWriter
	end chan error
}

func (n *node) raw(from tunnel.PeerID, lane tunnel.Lane, nonce, epoch, after uint64) *raw {
	r, w := io.Pipe()
	s := &raw{w, make(chan error, 1)}
	go func() {
		err := n.Receive(from, lane, tunneltest.NewStream(r, func() { _ = r.Close() }))
		_ = r.Close()
		s.end <- err
	}()
	h := []byte{1, 0, 0, 28, 1, byte(lane), 0, 0}
	for _, v := range []uint64{nonce, epoch, after} {
		h = binary.BigEndian.AppendUint64(h, v)
	}
	_, _ = w.Write(h)
	return s
}

func (s *raw) packet(b []byte) { s.frame(2, append(make([]byte, virtio.HeaderLen), b...)) }

func (s *raw) frame(typ byte, body []byte) {
	_, _ = s.w.Write(append(binary.BigEndian.AppendUint32(nil, uint32(typ)<<24|uint32(len(body))), body...))
}
