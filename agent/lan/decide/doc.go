// Package decide finds native and VXLAN paths to members and proves them, purely: it has
// no clock and does no I/O. The package lan gives it the time and what came in, sends what
// it orders, and applies its paths to the kernel.
//
//	machine.go    all peers: what comes in, what is to be done
//	exchange.go   exchanges of offers; offer.go: an offer, and the key that two of them make
//	candidate.go  which paths there may be between two offers
//	track.go      one candidate: proving, up, failing, down
//	peer.go       one member: its candidates, and which one is in use; status.go: and why
//	arrived.go    bytes that came in past the tunnel
//	packet.go     which probe belongs to whom, what answers it, and its bytes
package decide
