// Package herd is many light members of one relay in one process. Each handshakes for real, with a key of its own, keeps a
// TCP connection, and one over QUIC where members are few, as agents do that nobody calls, answers what the relay requests,
// holds a reservation and comes back with the agents' pauses when the relay is gone. What an agent does beside that is left
// out: there is no host, no peerstore, no tunnel.
//
//	herd.go     the members
//	member.go   the life of one
//	link.go     its connections
//	serve.go    what it answers on streams that the relay opens
//	circuit.go  circuits between two of them
package herd
