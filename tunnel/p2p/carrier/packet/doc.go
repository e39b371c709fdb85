// Package packet carries datagrams beside a direct QUIC connection: sealed packets on the same addresses as QUIC's own,
// so that what let the one through a NAT lets the other through. They are unreliable and unordered.
//
//	service.go    a node's end of all sessions
//	session.go    one connection's datagrams in both directions, and the handshake for each
//	relayed.go    datagrams beside a circuit, which its relay forwards
//	forward.go    a packet for a relay to forward, and where a relay sends it
//	sockets.go    which of the shared sockets a connection uses
//	intake.go     whom an incoming packet is for, and how much a peer may have
//	receiver.go   the receiving direction
//	sender.go     the sending direction: sealing, and trains of packets in one system call
//	node.go       what both directions share
//	search.go     how large a packet passes (RFC 8899), and MTU black holes
//	refused.go    what was refused
//	socket.go     a UDP socket that QUIC and sealed packets share; batched reads
//	lanes.go      sealed packets with repair: what they carry
//	flight.go     they beside one connection, and the agreement on a path
//	flights.go    what all such paths to a peer share, and which one carries
//	flightpath.go a path: packets out and in
//	address.go    where its other end is
//	wire.go       kinds of packets, and what the owner hands in for a path
//	errors.go     what callers can distinguish
//
// Beside a circuit they go to its relay instead, which forwards them: keys come from the circuit's own TLS session.
//
// For each direction the sender opens a stream that lives as long as its datagrams do:
//
//	sender    version (1) | nonce (16)
//	receiver  version (1) | index (4) | largest datagram it takes (2)
//	receiver  id (4) for every probe that arrived, where it cannot send datagrams itself
//
// Sealed packets with repair are agreed on for both directions in one go, by a stream of the end with the lesser peer ID:
//
//	offer, answer  version (2) | nonce (16) | index of its receiver (4) | id of what the two have agreed on before (8); 0: nothing
//
// The traffic secret is what the connection's TLS session exports for exportLabel (flightLabel) with nonce (both), index, and the peer IDs
// of sender and receiver. A payload is the owner's if its first byte is below ownKinds; the others are the package's own:
//
//	kindProbe, id (4), padding: a probe of how large a packet passes
//	kindArrived, id (4): that probe arrived
//	kindChallenge, data (8): are you where this goes? (RFC 9000, 8.2)
//	kindResponse, data (8): yes, this was asked
//
// The package knows no node. Its owner hands in a Config, and a Path for each connection.
package packet
