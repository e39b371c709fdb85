// Package lan finds native and VXLAN paths to members and proves them by
// authenticated probes, without trusting any address. DESIGN.md has the rules.
//
//	decide/      which paths are probed, used and given up (pure; it is given the time)
//	service.go   Service: carries out the decisions: sockets, streams, kernel, clock
//	exchange.go  one exchange of offers on a stream
//	socket.go    sends and receives probes, and holds those that wait to be handled
//	lantest/     a kernel, streams and a LAN for tests
package lan
