package relayservice

import (
	"encoding/binary"
	"errors"
	"hash/maphash"
	"io"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	pbv2 "github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/pb"
	"github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/proto"
	relayv2 "github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/relay"
	"github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/util"
	protobuf "google.golang.org/protobuf/proto"

	"edgemesh/tunnel/p2p/base/endpoint"
)

const (
	// manyShards: with 10,000 reservations each shard has some 300, and 0.1 ms for one instead of 3.
	manyShards = 32
	// openingTime is how long a stream may take to say what it is for, openingSize how long that may be: as circuit relay
	// v2 has them.
	openingTime = relayv2.StreamTimeout
	openingSize = 4096
)

// shards are several circuit relays on one host, each with some of the peers. go-libp2p's makes four passes over all of its
// reservations for each one that is made or renewed, and two for each peer that disconnects, under one lock. A reservation
// is its owner's shard's, and a circuit is that of the peer that it leads to. What all together may hold is counted in roll.
type shards struct {
	host    host.Host
	seed    maphash.Seed
	all     [manyShards]shard
	roll    roll
	served  func(peer.ID) bool // a member or controller; others are refused by the ACL, and not counted
	free    func(peer.ID) bool // of these, one that was let in as any number of keys would be
	tracer  relayv2.MetricsTracer
	watcher network.Notifiee
}

// shard is one of them, and the host that it sees: it leaves there what it wants to hear of.
type shard struct {
	host.Host
	relay  *relayv2.Relay
	handle network.StreamHandler
	gone   network.Notifiee
}

// newShards starts them on h. Streams arrive through on, which may be h itself.
func newShards(h, on host.Host, l Limits, served, free func(peer.ID) bool, tracer relayv2.MetricsTracer, opts ...relayv2.Option) (*shards, error) {
	s := &shards{host: h, seed: maphash.MakeSeed(), roll: newRoll(l), served: served, free: free, tracer: tracer}
	var errs []error
	for i := range s.all {
		x := &s.all[i]
		x.Host = on
		var err error
		x.relay, err = relayv2.New(x, opts...)
		errs = append(errs, err)
	}
	s.watcher = &network.NotifyBundle{DisconnectedF: s.disconnected}
	if err := errors.Join(errs...); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	h.Network().Notify(s.watcher)
	on.SetStreamHandler(proto.ProtoIDv2Hop, s.serve)
	return s, nil
}

// Close stops serving; circuits are cut.
func (s *shards) Close() error {
	s.host.RemoveStreamHandler(proto.ProtoIDv2Hop)
	s.host.Network().StopNotify(s.watcher)
	var errs []error
	for i := range s.all {
		if r := s.all[i].relay; r != nil {
			errs = append(errs, r.Close())
		}
	}
	return errors.Join(errs...)
}

func (s *shards) of(p peer.ID) *shard { return &s.all[maphash.String(s.seed, string(p))%manyShards] }

// serve has the right shard serve a stream.
func (s *shards) serve(st network.Stream) {
	by := st.Conn().RemotePeer()
	msg, st, err := opening(st)
	switch {
	case err != nil:
		_ = st.Reset()
	case msg == nil || endpoint.IsCircuit(st.Conn().RemoteMultiaddr()):
		s.of(by).handle(st) // is refused
	case msg.GetType() == pbv2.HopMessage_RESERVE:
		s.reserve(st, by)
	case msg.GetType() == pbv2.HopMessage_CONNECT:
		to, _ := peer.IDFromBytes(msg.GetPeer().GetId())
		s.connect(st, by, to)
	default:
		s.of(by).handle(st) // is refused
	}
}

// reserve makes or renews a reservation.
func (s *shards) reserve(st network.Stream, by peer.ID) {
	if s.served(by) && !s.roll.enter(by, st.Conn().RemoteMultiaddr(), s.free(by)) {
		s.tracer.ReservationRequestHandled(refuse(st, pbv2.Status_RESERVATION_REFUSED))
		return
	}
	s.of(by).handle(st)
	if n := s.host.Network(); n.Connectedness(by) != network.Connected { // the news may have come before the reservation
		s.roll.leave(by)
		s.of(by).gone.Disconnected(n, st.Conn())
	}
}

// connect makes a circuit. Those of others than members are counted by the shard alone: the ACL may refuse them.
func (s *shards) connect(st network.Stream, by, to peer.ID) {
	if s.served(by) && s.served(to) {
		at := site(st.Conn().RemoteMultiaddr())
		if !s.roll.connect(by, to, at) {
			s.tracer.ConnectionRequestHandled(refuse(st, pbv2.Status_RESOURCE_LIMIT_EXCEEDED))
			return
		}
		st = &counted{Stream: st, left: sync.OnceFunc(func() { s.roll.disconnect(by, to, at) })}
	}
	s.of(to).handle(st)
}

// refuse answers a request.
func refuse(st network.Stream, why pbv2.Status) pbv2.Status {
	_ = st.SetWriteDeadline(time.Now().Add(openingTime))
	msg := pbv2.HopMessage{Type: pbv2.HopMessage_STATUS.Enum(), Status: why.Enum()}
	if util.NewDelimitedWriter(st).WriteMsg(&msg) != nil {
		_ = st.Reset()
	} else {
		_ = st.Close()
	}
	return why
}

// disconnected tells the shard of a peer that holds a reservation; it would search all of its reservations for others.
func (s *shards) disconnected(n network.Network, c network.Conn) {
	if p := c.RemotePeer(); n.Connectedness(p) != network.Connected && s.roll.leave(p) {
		s.of(p).gone.Disconnected(n, c)
	}
}

// SetStreamHandler implements host.Host for a shard, as do the following.
func (x *shard) SetStreamHandler(_ protocol.ID, h network.StreamHandler) { x.handle = h }
func (x *shard) RemoveStreamHandler(protocol.ID)                         {}
func (x *shard) Network() network.Network                                { return shardNetwork{x.Host.Network(), x} }

// shardNetwork is the network that a shard sees.
type shardNetwork struct {
	network.Network
	shard *shard
}

// Notify implements network.Network.
func (n shardNetwork) Notify(x network.Notifiee) { n.shard.gone = x }

// StopNotify implements network.Network.
func (shardNetwork) StopNotify(network.Notifiee) {}

// opening reads the first message of a stream, and leaves it to be read again. A message that is none is nil, and is left
// to be refused.
func opening(st network.Stream) (*pbv2.HopMessage, network.Stream, error) {
	_ = st.SetReadDeadline(time.Now().Add(openingTime))
	defer func() { _ = st.SetReadDeadline(time.Time{}) }()
	again := &opened{Stream: st}
	n, err := binary.ReadUvarint(again)
	if err != nil {
		return nil, st, err
	}
	if n > openingSize {
		return nil, again, nil
	}
	head := len(again.said)
	again.said = append(again.said, make([]byte, n)...)
	if _, err := io.ReadFull(st, again.said[head:]); err != nil {
		return nil, st, err
	}
	msg := &pbv2.HopMessage{}
	if protobuf.Unmarshal(again.said[head:], msg) != nil {
		msg = nil
	}
	return msg, again, nil
}

// opened is a stream whose first bytes were read, and are read again.
type opened struct {
	network.Stream
	said []byte
}

// ReadByte implements io.ByteReader for the one who reads for the first time.
func (o *opened) ReadByte() (byte, error) {
	var b [1]byte
	_, err := io.ReadFull(o.Stream, b[:])
	if err == nil {
		o.said = append(o.said, b[0])
	}
	return b[0], err
}

// Read implements network.Stream.
func (o *opened) Read(b []byte) (int, error) {
	if len(o.said) == 0 {
		o.said = nil
		return o.Stream.Read(b)
	}
	n := copy(b, o.said)
	o.said = o.said[n:]
	return n, nil
}
