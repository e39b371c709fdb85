// Package mux is yamux with a short queue. yamux copies what a stream writes into
// a queue of 64 messages, 1 MiB, in front of the connection; over a path of
// 10 Mbit/s that is 0.8 s during which nothing can overtake, change its path or be
// dropped. Here a stream's Write blocks as soon as the stream has more in that
// queue than the path takes in a few milliseconds:
//
//	Stream.Write ─ gate ─ yamux's queue ─ Conn.Write ─ TLS ─ socket
//	                ▲                         │
//	                └──── bytes that left ────┘
//
//	mux.go     sessions
//	stream.go  a stream, whose Write waits at the gate
//	gate.go    counts what stands in yamux's queue
//	held.go    counts what was received and nobody has read
//
// yamux itself is untouched, and on the wire nothing differs: the other end may be
// any yamux.
package mux
