// Package paths has connections to a peer as paths: their kind, their traffic, and the
// probes that show that they are alive. The peer's machine (package ladder) decides which of
// them is used and which is given up.
//
//	path.go       what the status says of a path
//	conn.go       one connection as a path
//	line.go       what its probes and streams know of it
//	traffic.go    bytes on it, and when something last arrived
//	stream.go     a stream on it
//	streams.go    which streams are open
//	beside.go     what sealed packets know of it
//	probe.go      probes: round-trip time, whether addresses are translated, other news
//	trip.go       the round trip, and the part of it that is waiting
//	frame.go      the frame of a probe
//	blackhole.go  whether large packets vanish under a TCP connection
package paths

import "time"

// Kind says how a peer is reached. The values are the contract's words.
type Kind string

const (
	// KindDirect: at least one end is reached at an address that is its own, or mapped for it by a router.
	KindDirect Kind = "direct"
	// KindPunched: a direct connection, and both ends are translated, whatever opened it.
	KindPunched Kind = "punched"
	// KindRelayed: through a relay.
	KindRelayed Kind = "relayed"
	// KindNone: there is no connection.
	KindNone Kind = "none"
)

// Forwarded are datagrams that the relay forwards beside its circuit.
const Forwarded = "forwarded"

// Path describes one way to a peer.
type Path struct {
	Kind      Kind
	Transport string        // "tcp", "quic", "relay/tcp", "relay/quic", "relay/ws"; "" for KindNone
	RTT       time.Duration // 0 as long as it is not known
	Queue     time.Duration // how long packets wait on the path, in both directions: RTT minus the shortest of the last 5 to 10 minutes
	Addr      string        // the far end as seen from here, a multiaddr
	NAT64     bool          // it is reached through this network's NAT64
	Relay     string        // peer ID of the relay, of KindRelayed
	Datagrams string        // of KindRelayed: Forwarded, or that the circuit carries them, and why
}
