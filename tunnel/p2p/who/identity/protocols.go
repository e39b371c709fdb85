package identity

import "github.com/libp2p/go-libp2p/core/protocol"

// The overlay's own protocols, spoken only between members.
const (
	// StreamProtocol carries the stream lane (TCP packets).
	StreamProtocol protocol.ID = "/edgemesh/stream/1"
	// DatagramProtocol carries the datagram lane (all other packets).
	DatagramProtocol protocol.ID = "/edgemesh/datagram/1"
	// FlightProtocol agrees on sealed packets beside a QUIC connection, which then carry both lanes, or beside a circuit, whose
	// relay forwards them: the datagram lane.
	FlightProtocol protocol.ID = "/edgemesh/flight/2"
	// ChannelProtocol requests a channel for those from a relay.
	ChannelProtocol protocol.ID = "/edgemesh/channel/1"
	// PathProtocol probes one connection: liveness, round-trip time, and the
	// addresses each side sees of the other.
	PathProtocol protocol.ID = "/edgemesh/path/1"
	// PunchProtocol coordinates a TCP connection beside a QUIC one.
	PunchProtocol protocol.ID = "/edgemesh/punch/1"
	// RelaysProtocol says at which relays the sender can be reached, and how far
	// they are from it.
	RelaysProtocol protocol.ID = "/edgemesh/relays/1"
	// SeenProtocol queries a relay for where it sees a member.
	SeenProtocol protocol.ID = "/edgemesh/seen/1"
	// LoadProtocol queries whether a relay is crowded: the answer is LoadUnknown and a line's end, then perhaps
	// LoadCrowded and another.
	LoadProtocol protocol.ID = "/edgemesh/load/1"
	// InstanceProtocol has two places of one key answer at the same time (package clones).
	InstanceProtocol protocol.ID = "/edgemesh/instance/1"
	// LANProtocol exchanges what native and VXLAN paths need.
	LANProtocol protocol.ID = "/edgemesh/lan/1"
	// ObserveProtocol reports a member's paths to another one.
	ObserveProtocol protocol.ID = "/edgemesh/observe/1"
	// ExplainProtocol queries a member for its side of what happens to packets between the two.
	ExplainProtocol protocol.ID = "/edgemesh/explain/1"
	// ContactProtocol shows a member when each step of its first packet was done here.
	ContactProtocol protocol.ID = "/edgemesh/contact/1"
	// JoinProtocol proves the join secret to a relay that does not know the membership.
	JoinProtocol protocol.ID = "/edgemesh/join/1"
	// MemberProtocol shows a relay that pins a key what was signed about this node.
	MemberProtocol protocol.ID = "/edgemesh/member/1"
	// SignedProtocol passes on signed statements of the membership.
	SignedProtocol protocol.ID = "/edgemesh/signed/1"
	// EnrollProtocol has a controller write what a node may not.
	EnrollProtocol protocol.ID = "/edgemesh/enroll/1"
	// DHTPrefix keeps the overlay's DHT apart from every other one: its protocol
	// is DHTPrefix + "/kad/1.0.0".
	DHTPrefix protocol.ID = "/edgemesh"
)

// OfLane reports whether a protocol carries one of the two lanes.
func OfLane(p protocol.ID) bool { return p == StreamProtocol || p == DatagramProtocol }

// Protocols are all of the above. A peer that lacks one is spoken to without it, so the
// number behind the last slash counts what two versions cannot say to each other.
func Protocols() []protocol.ID {
	return []protocol.ID{
		StreamProtocol, DatagramProtocol, FlightProtocol, ChannelProtocol, PathProtocol, PunchProtocol, RelaysProtocol, SeenProtocol, LoadProtocol, InstanceProtocol,
		LANProtocol, ObserveProtocol, ExplainProtocol, ContactProtocol, JoinProtocol, MemberProtocol, SignedProtocol, EnrollProtocol, DHTPrefix + "/kad/1.0.0",
	}
}
