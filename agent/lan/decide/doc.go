// Package decide finds native and VXLAN paths to members and proves them, purely: it has
// no clock and does no I/O. The package lan gives it the time and what came in, sends what
// it orders, and applies its paths to the kernel. A file uses what stands below it:
//
//	tick.go       what is due: probes and offers
//	hear.go       which probe belongs to whom, and what answers it
//	exchange.go   exchanges of offers
//	machine.go    all peers
//	send.go       a probe to be sent
//	status.go     why a member has no better path
//	arrived.go    bytes that came in past the tunnel
//	peer.go       one member: its candidates, and which one is in use
//	forward.go    what forwarded probes say of a peer's paths
//	track.go      one candidate: proving, up, failing, down
//	session.go    the key that two offers make
//	candidate.go  which paths there may be between two offers
//	offer.go      an offer
//	message.go    the bytes of a probe; forwarded.go those of a forwarded one; errors.go
package decide
