// Package socket is what agents and relays do with the sockets of their connections: options, buffers between a TCP socket
// and the security layer, both adapted to the path, and what the system does not provide.
//
//	control.go   the options of an underlay socket, before it is bound
//	options.go   congestion control, how much a socket takes unsent, and how much it holds until it has arrived
//	conn.go      buffers between a TCP socket and the security layer
//	upgrader.go  puts them under every connection
//	tune.go      follows a busy connection's path
//	faults.go    whether the path lost or reordered something lately
//	pacer.go     finds the rate of a connection's line (its bottleneck rate), and sets the sending rate to it; pure, as are:
//	round.go     what happens in a round trip
//	losses.go    what a line loses, and what a queue that overflows
//	route.go     a path's round trips, and whose queue makes them longer
//	far.go       whether the other end sends as well, and how long its queue may be
//	hold.go      sends less until a queue has drained
//	keepalive.go  probes of the kernel on idle connections
//	unacked.go   the end of a connection whose other end acknowledges nothing
//	probe.go     tries whether the line carries more
//	swift.go     when a path is better off without BBR
//	system.go    what this system does not provide, and the remedy
//
// A Conn's mu is a leaf.
package socket
