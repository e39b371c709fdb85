// Package flight carries frames to one peer in sealed packets, and repairs what is lost: a stream of bytes for each of the peer's
// buckets of flows, and datagrams that are not repaired. It has no clock, does no I/O and starts no goroutine. DESIGN.md draws its
// states.
//
//	wire.go      the frames of a packet
//	peer.go      what all paths to a peer share; Source and Sink are its owner's
//	stream.go    the sending half of buckets: frames until they are acknowledged
//	parts.go     pieces behind holes, by offset
//	assembly.go  the receiving half of buckets: pieces in order
//	path.go      a path: packets out and in
//	sender.go    what the next packet holds, and when it may leave
//	loss.go      acknowledgements, losses, probe timeouts
//	receiver.go  what arrived, and what is acknowledged
//	parity.go    sums of packets, from which a lost one is computed
//	window.go    packet numbers: serial arithmetic, and which have arrived
//	memory.go    what all peers hold together
//	refused.go   what a peer sent that is not taken, by reason
//
// A Peer and its Paths are one unit for locking: one goroutine at a time. Times are seconds, of any clock that does not run
// backwards unless said otherwise; sizes are bytes.
package flight
