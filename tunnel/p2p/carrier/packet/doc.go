// Package packet carries sealed packets beside a connection: of QUIC, on the same addresses as its own, so that what let the one
// through a NAT lets the other through; or a circuit, whose relay forwards them.
//
//	service.go    a node's end of all paths
//	flight.go     sealed packets beside one connection, and the agreement on a path
//	flights.go    what all paths to a peer share, and which one carries
//	flightpath.go a path: packets out and in
//	address.go    where its other end is
//	search.go     how large a packet passes (RFC 8899), and MTU black holes
//	relayed.go    a path beside a circuit: when there is one, and why there is none
//	forward.go    a packet for a relay to forward, and where a relay sends it
//	lanes.go      what paths carry
//	intake.go     whom an incoming packet is for, and how much a peer may have
//	sockets.go    which of the shared sockets a connection uses
//	socket.go     a UDP socket that QUIC and sealed packets share; batched reads
//	node.go       what paths need of their owner
//	refused.go    what was refused
//	wire.go       kinds of packets, and what the owner hands in for a path
//	errors.go     what callers can distinguish
//
// A path is agreed on for both directions in one go, by a stream of the end with the lesser peer ID that lives as long as the path:
//
//	offer, answer  version (2) | nonce (16) | index in what its sender receives (4) | id of what the two have agreed on before (8); 0: nothing
//
// The traffic secret of a direction is what the connection's TLS session, or the circuit's own, exports for flightLabel with both nonces,
// the receiver's index, and the peer IDs of sender and receiver. A payload is package flight's, or the package's own:
//
//	kindChallenge, data (8), padding: are you where this goes (RFC 9000, 8.2), and does a packet of this size pass (RFC 8899)?
//	kindResponse, data (8): yes, this was asked
//
// The package knows no node. Its owner hands in a Config, and a Path for each connection.
package packet
