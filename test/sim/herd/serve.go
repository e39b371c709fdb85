package herd

import (
	"io"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	"github.com/libp2p/go-libp2p/core/record"
	pbv2 "github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/pb"
	"github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/proto"
	"github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/util"
	"github.com/libp2p/go-libp2p/p2p/protocol/identify"
	identifypb "github.com/libp2p/go-libp2p/p2p/protocol/identify/pb"
	"github.com/libp2p/go-libp2p/p2p/protocol/ping"
	ma "github.com/multiformats/go-multiaddr"
	mss "github.com/multiformats/go-multistream"
	"github.com/multiformats/go-varint"
	protobuf "google.golang.org/protobuf/proto"

	"edgemesh/tunnel/p2p/who/identity"
)

// patience bounds what a member waits for on one stream.
const patience = 30 * time.Second

// protocols are what a member says that it serves, as an agent does. Only what serve answers is ever requested.
func protocols() []string {
	out := []string{identify.ID, identify.IDPush, ping.ID, proto.ProtoIDv2Stop}
	for _, p := range []protocol.ID{identity.StreamProtocol, identity.DatagramProtocol, identity.FlightProtocol, identity.PathProtocol,
		identity.PunchProtocol, identity.RelaysProtocol, identity.LANProtocol, identity.ObserveProtocol, identity.ExplainProtocol} {
		out = append(out, string(p))
	}
	return out
}

// identify is a member's answer to identify, as an agent with one uplink gives it.
func (m *Member) identify(key crypto.PrivKey) ([]byte, error) {
	pub, err := crypto.MarshalPublicKey(key.GetPublic())
	if err != nil {
		return nil, err
	}
	addrs := []ma.Multiaddr{ma.StringCast("/ip4/192.168.178.20/tcp/44700"), ma.StringCast("/ip4/192.168.178.20/udp/44700/quic-v1")}
	rec := peer.PeerRecordFromAddrInfo(peer.AddrInfo{ID: m.ID, Addrs: addrs})
	signed, err := record.Seal(rec, key)
	if err != nil {
		return nil, err
	}
	envelope, err := signed.Marshal()
	if err != nil {
		return nil, err
	}
	msg := &identifypb.Identify{ProtocolVersion: protobuf.String("ipfs/0.1.0"), AgentVersion: protobuf.String("edgemesh-agent"),
		PublicKey: pub, Protocols: protocols(), SignedPeerRecord: envelope,
		ObservedAddr: ma.StringCast("/ip4/127.0.0.1/tcp/4470").Bytes()}
	for _, a := range addrs {
		msg.ListenAddrs = append(msg.ListenAddrs, a.Bytes())
	}
	body, err := protobuf.Marshal(msg)
	if err != nil {
		return nil, err
	}
	return append(varint.ToUvarint(uint64(len(body))), body...), nil
}

// serve answers on the streams that the relay opens, until the link ends.
func (m *Member) serve(l *link) {
	defer close(l.ended)
	for {
		s, err := l.accept()
		if err != nil {
			return
		}
		go m.answer(s)
	}
}

// answer is one stream. It ends with its link.
func (m *Member) answer(s stream) {
	_ = s.SetDeadline(time.Now().Add(patience))
	all := mss.NewMultistreamMuxer[string]()
	for _, p := range []string{identify.ID, ping.ID, proto.ProtoIDv2Stop} {
		all.AddHandler(p, nil)
	}
	name, _, err := all.Negotiate(s)
	if err != nil {
		s.reset()
		return
	}
	switch name {
	case identify.ID:
		_, _ = s.Write(m.who)
	case ping.ID:
		_, _ = io.Copy(s, s)
	case proto.ProtoIDv2Stop:
		m.circuit(s)
	}
	_ = s.Close()
}

// circuit takes a circuit and gives back what comes through it.
func (m *Member) circuit(s stream) {
	rd := util.NewDelimitedReader(s, maxMessage)
	var msg pbv2.StopMessage
	err := rd.ReadMsg(&msg)
	rd.Close()
	if err != nil {
		s.reset()
		return
	}
	answer := pbv2.StopMessage{Type: pbv2.StopMessage_STATUS.Enum(), Status: pbv2.Status_OK.Enum()}
	if util.NewDelimitedWriter(s).WriteMsg(&answer) == nil {
		_, _ = io.Copy(s, s)
	}
}
