package acks

import (
	"sync/atomic"
	"time"

	"edgemesh/tunnel/inet"
)

const (
	// passFlows flows are told apart, by the lowest bits of their hash: the ACKs of two that share a place count as one flow's.
	passFlows = 64
	// passData is the least packet that counts as data, bytes: acknowledgements wait behind each other, too.
	passData = 1 << 10
	// passLoad is how long a direction counts as loaded after data had to wait in it, nanoseconds.
	passLoad = int64(time.Second)
)

// Passer says which acknowledgements leave as datagrams, past the bulk data of their own direction. On a carrier that loads
// its direction each lost packet holds the ACKs behind it back for a round trip, and the flow that they belong to waits,
// although nothing of its own was lost.
//
// A lost ACK is nothing to a sender that gets the next one, so only one that follows another of its flow within a round trip
// goes that way: not the one that ends a handshake, nor that of a small answer, nor the one that opens a window again.
type Passer struct {
	loaded atomic.Int64 // when the direction was last seen loaded, 0: never
	last   *[passFlows]int64
}

// Waits notes that a packet of so many bytes has to wait behind others of its direction.
func (p *Passer) Waits(bytes int, now int64) {
	if bytes >= passData {
		p.loaded.Store(now)
	}
}

// Passes reports whether a TCP packet is to leave as a datagram; rtt is the carrier's round trip, 0 if it is unknown or
// short. One goroutine calls it.
func (p *Passer) Passes(h *inet.Header, ip []byte, now int64, rtt time.Duration) bool {
	at := p.loaded.Load()
	if at == 0 || now-at > passLoad || rtt < thinRTT || h.L4Len == 0 {
		return false
	}
	if plain, sack := plainACK(ip[h.L4:], h.L4Len); !plain && !sack {
		return false
	}
	if p.last == nil {
		p.last = new([passFlows]int64)
	}
	last := &p.last[h.Flow%passFlows]
	before := *last
	*last = now
	return before != 0 && now-before <= int64(rtt)
}
