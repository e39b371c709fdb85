package p2p

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	pb "github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/pb"
	"github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/proto"
	"github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/util"

	"edgemesh/test/fair"
	"edgemesh/tunnel/p2p/base/endpoint"
	"edgemesh/tunnel/p2p/base/mux"
	"edgemesh/tunnel/p2p/carrier/dialer"
	"edgemesh/tunnel/p2p/who/identity"
	"edgemesh/tunnel/p2p/who/members"
)

// slowRelay is a relay that answers a request for a circuit once it is told how. early has what followed each request until then.
type slowRelay struct {
	early  chan []byte
	answer chan pb.Status
}

func (r slowRelay) serve(s network.Stream) {
	defer s.Close()
	rd := util.NewDelimitedReader(s, 4096)
	defer rd.Close()
	var msg pb.HopMessage
	if rd.ReadMsg(&msg) != nil || msg.GetType() != pb.HopMessage_CONNECT {
		_ = s.Reset()
		return
	}
	var early []byte
	buf := make([]byte, 4096)
	_ = s.SetReadDeadline(time.Now().Add(5 * time.Second))
	for !bytes.Contains(early, []byte("/tls/1.0.0\n\x16\x03\x01")) { // a record with a ClientHello (RFC 8446, 5.1)
		n, err := s.Read(buf)
		if err != nil {
			break
		}
		early = append(early, buf[:n]...)
	}
	r.early <- early
	if status, ok := <-r.answer; ok {
		_ = util.NewDelimitedWriter(s).WriteMsg(&pb.HopMessage{Type: pb.HopMessage_STATUS.Enum(), Status: status.Enum()})
	}
}

// TestClientHelloFollowsRequest: a circuit's far end is sent the offer of TLS and the ClientHello together with the request, before
// the relay has answered. A refusal is what the dial returns, whatever the handshake made of it; and a dial ends with its context.
func TestClientHelloFollowsRequest(t *testing.T) {
	r := slowRelay{make(chan []byte, 1), make(chan pb.Status, 1)}
	h, err := libp2p.New(libp2p.ListenAddrStrings("/ip4/127.0.0.1/tcp/0"), libp2p.DisableMetrics(), libp2p.DisableRelay(),
		libp2p.Muxer(mux.ID, identity.RelayMuxer()))
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	h.SetStreamHandler(proto.ProtoIDv2Hop, r.serve)
	key := newKey(t)
	far := idOf(t, newKey(t))
	a := loopbackNode(t, key, members.Membership{Members: []members.Member{{Name: "a", ID: idOf(t, key)}, {Name: "far", ID: far}},
		Relays: []peer.AddrInfo{{ID: h.ID(), Addrs: h.Addrs()}}})
	fair.Eventually(t, 10*time.Second, "the relay", fair.True(func() bool { return len(a.h.Network().ConnsToPeer(h.ID())) != 0 }))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	dial := func() chan error {
		ended := make(chan error, 1)
		go func() { ended <- a.dialer.Dial(ctx, endpoint.Circuit(h.ID(), h.Addrs()[0]), far) }()
		if early := <-r.early; !bytes.Contains(early, []byte("\x16\x03\x01")) {
			t.Errorf("%q followed the request, no ClientHello", early)
		}
		return ended
	}
	ended := dial()
	r.answer <- pb.Status_NO_RESERVATION
	if err, said := <-ended, dialer.RefusedCircuit(0); !errors.As(err, &said) || pb.Status(said) != pb.Status_NO_RESERVATION {
		t.Errorf("refused with NO_RESERVATION: %v", err)
	}
	ended = dial()
	began := time.Now()
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if took := time.Since(began); took > time.Second {
		t.Errorf("a dial took %v to end after its context", took)
	}
	close(r.answer)
}

// A relay refuses before it has read what followed the request, and closes the stream, as relays do: the dial returns what it said,
// over yamux and over QUIC.
func TestRefusedAhead(t *testing.T) {
	for _, listen := range []string{"/ip4/127.0.0.1/tcp/0", "/ip4/127.0.0.1/udp/0/quic-v1"} {
		t.Run(listen, func(t *testing.T) {
			h, err := libp2p.New(libp2p.ListenAddrStrings(listen), libp2p.DisableMetrics(), libp2p.DisableRelay(),
				libp2p.Muxer(mux.ID, identity.RelayMuxer()))
			if err != nil {
				t.Fatal(err)
			}
			defer h.Close()
			h.SetStreamHandler(proto.ProtoIDv2Hop, func(s network.Stream) {
				rd := util.NewDelimitedReader(s, 4096)
				defer rd.Close()
				var msg pb.HopMessage
				if rd.ReadMsg(&msg) != nil || msg.GetType() != pb.HopMessage_CONNECT {
					_ = s.Reset()
					return
				}
				status := pb.Status_NO_RESERVATION
				_ = util.NewDelimitedWriter(s).WriteMsg(&pb.HopMessage{Type: pb.HopMessage_STATUS.Enum(), Status: &status})
				_ = s.Close()
			})
			key := newKey(t)
			far := idOf(t, newKey(t))
			a := loopbackNode(t, key, members.Membership{Members: []members.Member{{Name: "a", ID: idOf(t, key)}, {Name: "far", ID: far}},
				Relays: []peer.AddrInfo{{ID: h.ID(), Addrs: h.Addrs()}}})
			fair.Eventually(t, 10*time.Second, "the relay", fair.True(func() bool { return len(a.h.Network().ConnsToPeer(h.ID())) != 0 }))
			ctx, cancel := fair.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			for range 20 {
				err := a.dialer.Dial(ctx, endpoint.Circuit(h.ID(), h.Addrs()[0]), far)
				if said := dialer.RefusedCircuit(0); !errors.As(err, &said) || pb.Status(said) != pb.Status_NO_RESERVATION {
					t.Fatal(err)
				}
			}
		})
	}
}
