package tunnel

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
	// DropMalformed: not an IP packet of the length it claims, or its transport
	// header is cut.
	DropMalformed
	// DropSourceRoute: it carries a route of its own (IPv4 LSRR and SSRR, an IPv6
	// routing header with segments left), which would evade the check of its destination.
	DropSourceRoute
	// DropBadOffload: its virtio header does not fit the packet.
	DropBadOffload
	// DropBadFrame: the frame around it is malformed.
	DropBadFrame
	// DropSourceNotOwn: sent from here with a source outside the own blocks.
	DropSourceNotOwn
	// DropSourceNotPeer: received with a source that the sending peer does not own.
	DropSourceNotPeer
	// DropDestNotOwn: received for an address outside the own blocks.
	DropDestNotOwn
	// DropNoRoute: no member owns the destination.
	DropNoRoute
	// DropQueueFull: the lane's byte bound was reached; the oldest of the fattest flow went.
	DropQueueFull
	// DropDelay: its flow's standing queue was too old for too long. Of a TCP
	// super-segment one segment goes, the rest is sent. Or it waited longer than any
	// packet may.
	DropDelay
	// DropExpired: it waited too long for a path to the peer.
	DropExpired
	// DropPeerGone: the peer left, or the tunnel closed, while it waited.
	DropPeerGone
	// DropDevice: the device refused it.
	DropDevice
	// DropSend: the path refused the datagram.
	DropSend
	// DropHalf: the other half of a split packet never came.
	DropHalf
	numReasons
)

// String is the reason's name as a metric label.
func (r Reason) String() string {
	switch r {
	case DropMalformed:
		return "malformed"
	case DropSourceRoute:
		return "source_route"
	case DropBadOffload:
		return "bad_offload"
	case DropBadFrame:
		return "bad_frame"
	case DropSourceNotOwn:
		return "source_not_own"
	case DropSourceNotPeer:
		return "source_not_peer"
	case DropDestNotOwn:
		return "dest_not_own"
	case DropNoRoute:
		return "no_route"
	case DropQueueFull:
		return "queue_full"
	case DropDelay:
		return "delay"
	case DropExpired:
		return "expired"
	case DropPeerGone:
		return "peer_gone"
	case DropDevice:
		return "device"
	case DropSend:
		return "send"
	case DropHalf:
		return "half"
	}
	return "none"
}

// reasonOf is why a packet is dropped whose headers cannot be read.
func reasonOf(err error) Reason {
	if errors.Is(err, inet.ErrSourceRoute) {
		return DropSourceRoute
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
