package tunnel

// Every packet that is dropped is counted here, by reason: with the peer it goes to or comes from, or with Tunnel.lost
// where no peer is known for it. An ACK that a newer one replaces is not a drop (acks/). The reasons follow a packet's steps; each names the file where it is found.
//
//	sent      read ─ malformed, source_route, extension ─ source_not_own, no_route ─ bad_offload ─┬▶ queue ─ queue_full, delay, peer_gone
//	                                                                                   ├▶ no carrier ─ dials, expired
//	                                                                                   └▶ datagram ─ send
//	received  frame ─ bad_frame, half ─ malformed, source_route, extension, bad_offload ─ source_not_peer, dest_not_own ─ device

import (
	"errors"
	"sync/atomic"

	"edgemesh/tunnel/inet"
)

// Reason says why a packet was dropped. Zero means that it was not.
type Reason uint8

// The reasons; String gives the name used as a metric label.
const (
	_ Reason = iota
	// DropMalformed: it is not an IP packet of the length it claims, or its transport header is cut (send.go,
	// receive.go, sink.go; inet decides).
	DropMalformed
	// DropSourceRoute: it carries a route of its own, which would evade the check of its destination (as above).
	DropSourceRoute
	// DropExtension: an IPv6 extension header follows a fragment header (as above). This is no reason to refuse the peer: one
	// of an older version passes such packets of its pods on.
	DropExtension
	// DropBadOffload: its virtio header does not fit the packet (send.go, receive.go, sink.go; virtio decides).
	DropBadOffload
	// DropBadFrame: the frame or the datagram around it is malformed (receive.go, sink.go).
	DropBadFrame
	// DropSourceNotOwn: it was sent from here with a source outside the own blocks (send.go; routes.go decides).
	DropSourceNotOwn
	// DropSourceNotPeer: it was received with a source that the sending peer does not own (receive.go, sink.go;
	// routes.go decides).
	DropSourceNotPeer
	// DropDestNotOwn: it was received for an address outside the own blocks (receive.go, sink.go; routes.go decides).
	DropDestNotOwn
	// DropNoRoute: no member owns the destination (send.go; routes.go decides).
	DropNoRoute
	// DropQueueFull: the lane's byte bound was reached, and it was the oldest of the flow that holds most memory
	// (lane.go; queue.go chooses).
	DropQueueFull
	// DropDelay: its flow's standing queue was too old for too long (writer.go; queue.go chooses), of a TCP super-segment
	// only the last segment (fill in write.go counts); or it waited longer than any packet may (writer.go).
	DropDelay
	// DropDials: its peer is not connected, and too many others wait for that because of the same pod (lane.go;
	// dials.go decides).
	DropDials
	// DropExpired: it waited too long for a path to the peer (writer.go).
	DropExpired
	// DropPeerGone: the peer left, or the tunnel closed, while it waited (lane.go, writer.go).
	DropPeerGone
	// DropDevice: the device refused it (receive.go, sink.go, unreachable.go).
	DropDevice
	// DropSend: the path refused the datagram (datagram.go).
	DropSend
	// DropHalf: the other half of a split packet never came (halves.go).
	DropHalf
	numReasons
)

// String is the reason's name as a metric label.
func (r Reason) String() string {
	if r == 0 || r >= numReasons {
		return "none"
	}
	return [...]string{
		DropMalformed:     "malformed",
		DropSourceRoute:   "source_route",
		DropExtension:     "extension",
		DropBadOffload:    "bad_offload",
		DropBadFrame:      "bad_frame",
		DropSourceNotOwn:  "source_not_own",
		DropSourceNotPeer: "source_not_peer",
		DropDestNotOwn:    "dest_not_own",
		DropNoRoute:       "no_route",
		DropQueueFull:     "queue_full",
		DropDelay:         "delay",
		DropDials:         "dials",
		DropExpired:       "expired",
		DropPeerGone:      "peer_gone",
		DropDevice:        "device",
		DropSend:          "send",
		DropHalf:          "half",
	}[r]
}

// reasonOf is why a packet is dropped whose headers cannot be read.
func reasonOf(err error) Reason {
	switch {
	case errors.Is(err, inet.ErrSourceRoute):
		return DropSourceRoute
	case errors.Is(err, inet.ErrExtension):
		return DropExtension
	}
	return DropMalformed
}

// Reasons lists every reason, in a fixed order.
func Reasons() []Reason {
	all := make([]Reason, 0, numReasons-1)
	for r := Reason(1); r < numReasons; r++ {
		all = append(all, r)
	}
	return all
}

// Drops counts packets by reason; a super-segment counts once.
type Drops [numReasons]uint64

// Of returns the count of one reason.
func (d Drops) Of(r Reason) uint64 {
	if r >= numReasons {
		return 0
	}
	return d[r]
}

// Total is the sum over all reasons.
func (d Drops) Total() uint64 {
	var n uint64
	for _, v := range d {
		n += v
	}
	return n
}

// counters are the live numbers behind Counters.
type counters struct {
	txPackets, txBytes atomic.Uint64
	rxPackets, rxBytes atomic.Uint64
	marked             atomic.Uint64
	drops              [numReasons]atomic.Uint64
}

func (c *counters) drop(r Reason) { c.drops[r].Add(1) }

// dropSegments counts segments that super-segments lost for their flow's delay.
func (c *counters) dropSegments(n uint64) { c.drops[DropDelay].Add(n) }

func (c *counters) snapshot() Counters {
	s := Counters{
		TxPackets: c.txPackets.Load(), TxBytes: c.txBytes.Load(),
		RxPackets: c.rxPackets.Load(), RxBytes: c.rxBytes.Load(),
		Marked: c.marked.Load(),
	}
	for i := range c.drops {
		s.Drops[i] = c.drops[i].Load()
	}
	return s
}

// add moves the numbers of a peer that is gone into c.
func (c *counters) add(s Counters) {
	c.txPackets.Add(s.TxPackets)
	c.txBytes.Add(s.TxBytes)
	c.rxPackets.Add(s.RxPackets)
	c.rxBytes.Add(s.RxBytes)
	c.marked.Add(s.Marked)
	for i, n := range s.Drops {
		c.drops[i].Add(n)
	}
}

// drop counts and frees packets that were to go to the peer.
func (p *peer) drop(c *chain, r Reason) {
	c.each(func(pkt *packet) {
		p.counters.drop(r)
		p.t.pools.put(pkt)
	})
}

// expired drops a packet and reports to its sender that the peer is unreachable.
func (p *peer) expired(pkt *packet) {
	p.counters.drop(DropExpired)
	p.t.unreachable(pkt.ip())
	p.t.pools.put(pkt)
}
