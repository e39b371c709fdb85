// Package socket is what agents and relays alike do with the sockets of their
// connections: options, buffers between a TCP socket and the security layer, both
// adapted to the path, and what the system lacks.
package socket
