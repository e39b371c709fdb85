// Package lan finds native and VXLAN paths to members and proves them by
// authenticated probes, without trusting any address. DESIGN.md tells the whole.
//
//	offer.go      what two members tell each other, and the key they share
//	candidate.go  which ways there are between two offers (pure)
//	track.go      one candidate: proving, up, failing, down (pure, no clock)
//	peer.go       one member: its candidates, and which one is in use (pure); status.go: and why
//	wire.go       the probe packet
//	socket.go     sending and receiving probes; packet.go: which one belongs to whom
//	service.go    joins all of it; exchange.go: the streams; apply.go: what the kernel is told
package lan
