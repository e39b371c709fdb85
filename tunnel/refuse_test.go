package tunnel_test

import (
	"bytes"
	"errors"
	"net/netip"
	"sync"
	"testing"
	"time"

	"edgemesh/test/fair"
	"edgemesh/tunnel"
	"edgemesh/tunnel/inet/inettest"
	"edgemesh/tunnel/tunneltest"
	"edgemesh/tunnel/virtio"
)

func TestSpoofingAndForeignAddresses(t *testing.T) {
	_, a, b, _ := pair(t, tunnel.Limits{})
	other := netip.MustParseAddrPort("10.244.3.7:3000")
	a.dev.Inject(tunneltest.UDPPacket(other, addrB, nil))
	a.dev.Inject(tunneltest.UDPPacket(addrB, addrB, nil))
	a.dev.Inject(tunneltest.UDPPacket(addrA, other, nil))
	a.dev.Inject(tunneltest.UDPPacket(addrA, addrA, nil))
	a.dev.Inject(tunneltest.UDPPacket(netip.MustParseAddrPort("[fe80::1]:1"), netip.MustParseAddrPort("[ff02::2]:1"), nil)) // noise
	a.dev.Inject([]byte{0x45})
	a.dev.Inject(tunneltest.UDPPacket(addrA, addrB, []byte("good")))
	b.packets(t, 1)
	d := a.Stats().Total.Drops
	if d.Of(tunnel.DropSourceNotOwn) != 2 || d.Of(tunnel.DropNoRoute) != 2 || d.Of(tunnel.DropMalformed) != 1 || d.Total() != 5 {
		t.Errorf("drops on send: %v", d)
	}

	s := a.raw(nodeB, tunnel.DatagramLane, 1, 1, 0)
	s.packet(tunneltest.UDPPacket(other, addrA, nil))
	s.packet(tunneltest.UDPPacket(addrA, addrA, nil))
	s.packet(tunneltest.UDPPacket(addrB, addrB, nil))
	s.packet(tunneltest.UDPPacket(addrB, other, nil))
	s.packet(tunneltest.UDPPacket(addrB, addrA, []byte("good")))
	got := a.packets(t, 2) // the first is the answer that 10.244.3.7 cannot be reached
	if len(got) != 2 || got[0][9] != tunneltest.ICMP || !bytes.Equal(got[0][12:16], other.Addr().AsSlice()) || string(got[1][28:]) != "good" {
		t.Errorf("injected: %q", got)
	}
	d = a.Stats().Peers[0].Drops
	if d.Of(tunnel.DropSourceNotPeer) != 2 || d.Of(tunnel.DropDestNotOwn) != 2 || d.Total() != 4 {
		t.Errorf("drops on receive: %v", d)
	}
	s.w.Close()
	if err := <-s.end; err != nil {
		t.Errorf("foreign addresses ended the stream: %v", err)
	}
}

// TestRefusalsAreTold: whose packet it was, and why, though the stream continues.
func TestRefusalsAreTold(t *testing.T) {
	net := tunneltest.NewNet()
	t.Cleanup(net.Wait)
	refused := make(chan string, 9)
	a := startNode(t, nodeA, tunnel.Config{Underlay: net.Underlay(nodeA), Refused: func(p tunnel.PeerID, r tunnel.Reason) { refused <- string(p) + ": " + r.String() }})
	s := a.raw(nodeB, tunnel.DatagramLane, 1, 1, 0)
	s.packet(tunneltest.UDPPacket(addrA, addrA, nil))
	s.packet(tunneltest.UDPPacket(addrB, addrB, nil))
	s.packet(tunneltest.UDPPacket(addrB, addrA, nil))
	a.packets(t, 1)
	if first, second := <-refused, <-refused; first != string(nodeB)+": source_not_peer" || second != string(nodeB)+": dest_not_own" || len(refused) != 0 {
		t.Errorf("refused %q, %q and %d more", first, second, len(refused))
	}
}

// TestExtensionsBehindAFragmentHeader: such packets go neither out nor in, and the peer that passes them on keeps its stream.
func TestExtensionsBehindAFragmentHeader(t *testing.T) {
	_, a, b, _ := pair(t, tunnel.Limits{MalformedPerMinute: 16})
	hidden := inettest.IPv6(44, append([]byte{43, 0, 0, 1, 0, 0, 0, 1}, append([]byte{17, 0, 4, 1, 0, 0, 0, 0}, inettest.UDP(1, 2)...)...))
	a.dev.Inject(hidden)
	a.dev.Inject(tunneltest.UDPPacket(addrA, addrB, []byte("good")))
	b.packets(t, 1)
	if d := a.Stats().Total.Drops; d.Of(tunnel.DropExtension) != 1 || d.Total() != 1 {
		t.Errorf("drops on send: %v", d)
	}
	s := a.raw(nodeB, tunnel.DatagramLane, 1, 1, 0)
	for range 100 {
		s.packet(hidden)
	}
	s.packet(tunneltest.UDPPacket(addrB, addrA, []byte("good")))
	if got := a.packets(t, 1); string(got[0][28:]) != "good" {
		t.Errorf("injected: %q", got)
	}
	if d := a.Stats().Peers[0].Drops; d.Of(tunnel.DropExtension) != 100 || d.Total() != 100 {
		t.Errorf("drops on receive: %v", d)
	}
}

func TestMalformedFramesCloseTheStream(t *testing.T) {
	for name, body := range map[string][]byte{
		"cut":      {0, 0, 0},
		"offload":  append([]byte{1, 0, 0, 0, 0, 0, 255, 0, 16, 0}, tunneltest.UDPPacket(addrB, addrA, nil)...),
		"length":   append(make([]byte, virtio.HeaderLen), append(tunneltest.UDPPacket(addrB, addrA, nil), 0)...),
		"protocol": append(make([]byte, virtio.HeaderLen), make([]byte, 40)...),
	} {
		t.Run(name, func(t *testing.T) {
			a := alone(t, tunnel.Limits{MalformedPerMinute: 16})
			s := a.raw(nodeB, tunnel.StreamLane, 1, 1, 0)
			for range 16 {
				s.frame(2, body)
			}
			s.packet(tunneltest.TCPPacket(addrB, addrA, nil))
			a.packets(t, 1) // 16 are borne
			s.frame(2, body)
			if err := <-s.end; !errors.Is(err, tunnel.ErrMalformed) {
				t.Errorf("receive ended with %v", err)
			}
			if n := a.Stats().Total.Drops.Total(); n != 17 {
				t.Errorf("%d drops", n)
			}
		})
	}
	t.Run("framing", func(t *testing.T) {
		a := alone(t, tunnel.Limits{})
		s := a.raw(nodeB, tunnel.StreamLane, 1, 1, 0)
		_, _ = s.w.Write([]byte{2, 255, 255, 255})
		if err := <-s.end; !errors.Is(err, tunnel.ErrMalformed) {
			t.Errorf("receive ended with %v", err)
		}
	})
}

func TestReceiveRefuses(t *testing.T) {
	a := alone(t, tunnel.Limits{})
	if err := a.Receive("stranger", 0, tunneltest.NewStream(bytes.NewReader(nil), nil)); !errors.Is(err, tunnel.ErrUnknownPeer) {
		t.Errorf("stranger: %v", err)
	}
	if err := a.Receive(nodeB, 2, tunneltest.NewStream(bytes.NewReader(nil), nil)); !errors.Is(err, tunnel.ErrBadLane) {
		t.Errorf("lane 2: %v", err)
	}
	hello := append([]byte{1, 0, 0, 28, 1, 1, 0, 0}, make([]byte, 24)...)
	hello[8+15] = 1 // epoch
	if err := a.Receive(nodeB, tunnel.StreamLane, tunneltest.NewStream(bytes.NewReader(hello), nil)); !errors.Is(err, tunnel.ErrBadLane) {
		t.Errorf("hello of the other lane: %v", err)
	}
	hello[4] = 9
	if err := a.Receive(nodeB, tunnel.DatagramLane, tunneltest.NewStream(bytes.NewReader(hello), nil)); !errors.Is(err, tunnel.ErrVersion) {
		t.Errorf("version 9: %v", err)
	}
	if err := a.Receive(nodeB, tunnel.DatagramLane, tunneltest.NewStream(bytes.NewReader([]byte{2, 0, 0, 0}), nil)); !errors.Is(err, tunnel.ErrMalformed) {
		t.Errorf("no hello: %v", err)
	}
}

// TestMalformedFramesQuarantineThePeer: frames on all streams count together, all
// streams end, and the peer may come back later, at last.
func TestMalformedFramesQuarantineThePeer(t *testing.T) {
	net := tunneltest.NewNet()
	t.Cleanup(net.Wait)
	type quarantine struct {
		peer tunnel.PeerID
		d    time.Duration
		why  string
	}
	var mu sync.Mutex
	var notified []quarantine
	a := startNode(t, nodeA, tunnel.Config{
		Underlay: net.Underlay(nodeA),
		Limits:   tunnel.Limits{MalformedPerMinute: 16, QuarantineMin: 50 * time.Millisecond, QuarantineMax: time.Hour},
		Quarantine: func(p tunnel.PeerID, d time.Duration, why string) {
			mu.Lock()
			defer mu.Unlock()
			notified = append(notified, quarantine{p, d, why})
		},
	})
	for round, d := range []time.Duration{50 * time.Millisecond, 100 * time.Millisecond} {
		var quiet *raw // a stream of the other lane, which does nothing wrong
		fair.Eventually(t, patience, "streams are taken", fair.True(func() bool {
			quiet = a.raw(nodeB, tunnel.DatagramLane, 1, uint64(round+1), 0)
			select {
			case err := <-quiet.end:
				if !errors.Is(err, tunnel.ErrMalformed) {
					t.Errorf("refused with %v", err)
				}
				return false
			default:
				quiet.packet(tunneltest.UDPPacket(addrB, addrA, nil))
				return a.Stats().Peers[0].Streams == 1
			}
		}))
		for i := range 17 { // each on a stream of its own
			s := a.raw(nodeB, tunnel.StreamLane, 1, uint64(100*round+i+1), 0)
			s.frame(9, nil)
			s.w.Close()
			if err := <-s.end; (i == 16) != errors.Is(err, tunnel.ErrMalformed) {
				t.Errorf("stream %d ended with %v", i, err)
			}
		}
		if err := <-quiet.end; err == nil {
			t.Error("the other stream was read to its end")
		}
		mu.Lock()
		if want := (quarantine{nodeB, d, "malformed frames, the last: bad_frame"}); len(notified) != round+1 || notified[round] != want {
			t.Errorf("notified of %v, want %v last", notified, want)
		}
		mu.Unlock()
	}
}
