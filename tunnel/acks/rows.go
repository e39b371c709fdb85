package acks

import (
	"encoding/binary"
	"time"

	"edgemesh/tunnel/inet"
)

// rowPlaces bounds what Rows remembers; flows whose hashes share a place count as one.
const rowPlaces = 128

// Rows tells the acknowledgements that may be lost on their way to a peer, as the next one of their flow says it again: those that
// soon follow another one. The others, which open or end a connection or a window, or acknowledge a small answer, would be missed
// until a timer of the other end expires. One goroutine uses it.
type Rows struct {
	last *[rowPlaces]int64 // when an ACK left, 0: none has, or it shut the window; nil until the first one
}

// Continues reports whether a TCP packet that leaves now is an acknowledgement alone that follows another one within a round trip.
// rtt 0: unknown.
func (r *Rows) Continues(h *inet.Header, ip []byte, now int64, rtt time.Duration) bool {
	if h.L4Len == 0 {
		return false
	}
	tcp := ip[h.L4:]
	if _, only := hear(tcp, h.L4Len); !only {
		return false
	}
	if r.last == nil {
		r.last = new([rowPlaces]int64)
	}
	last := &r.last[h.Flow%rowPlaces]
	before := *last
	*last = now
	if binary.BigEndian.Uint16(tcp[14:]) == 0 { // of any scale
		*last = 0
	}
	return before != 0 && now-before <= int64(rtt)
}
