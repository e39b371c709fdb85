// Package lan finds native and VXLAN paths to members and proves them by
// authenticated probes, without trusting any address. DESIGN.md tells the whole.
//
//	decide/      what is probed, taken and left (pure; it is told the time)
//	service.go   Service: joins the decisions with sockets, streams, kernel and clock
//	exchange.go  offers over streams of the tunnel's connections
//	socket.go    sends and receives probes; inbox.go: those that wait to be looked at
//	lantest/     a kernel, streams and a LAN for tests
package lan
